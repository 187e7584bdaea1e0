"""Tokens that are known to be the next ones of a request, in the process where vLLM samples. Imports no vLLM.

The connector learns them over the conduit and puts them here before it reports the request's KV as loaded; the
logits processor, which vLLM builds itself in the same process, takes them from here. One engine per process, so the
table can be the module's own.
"""

from typing import Final

from tandem.engine.vllm.requests import ProcessorParams

RequestKey = tuple[int, int]
"""(work id, sequence): both are in the `kv_transfer_params` of the request's sampling parameters."""

_TOKENS: Final[dict[RequestKey, int]] = {}


def provide(key: RequestKey, token: int) -> None:
    """The position after those that came with the request is `token`."""
    _TOKENS[key] = token


def provided(key: RequestKey) -> int | None:
    """The token that was provided, or None while there is none."""
    return _TOKENS.get(key)


def forget(key: RequestKey) -> None:
    """The request is over; unknown ones are ignored."""
    _TOKENS.pop(key, None)


class Known:
    """The known positions of one request, counted from its first output token, which is 0. They are counted and not
    read from what vLLM has drawn: with asynchronous scheduling it does not know yet what that was."""

    def __init__(self, draw: ProcessorParams) -> None:
        self._draw = draw

    def over(self, at: int) -> bool:
        """Whether nothing from position `at` on can be known."""
        return at >= len(self._draw.forced) + self._draw.awaits_first

    def token(self, at: int) -> int | None:
        """The token of position `at`, when it is known."""
        draw = self._draw
        if at < len(draw.forced):
            return draw.forced[at]
        return provided((draw.work, draw.sequence)) if draw.awaits_first and at == len(draw.forced) else None


def known_of(draw: ProcessorParams | None) -> Known | None:
    """None for a request of which nothing can be known."""
    return None if draw is None or not (draw.forced or draw.awaits_first) else Known(draw)
