"""The rule for when a sequence ends, which is the same for every engine. Pure."""

from typing import Final

from tandem.core.request import Stopping

_GOES_ON: Final = (None, None)


class StopCheck:
    """The stopping parameters of one request, with the end tokens of its model.

    `end_tokens` has every token id that ends a sequence, each once: those of the model, unless the request ignores
    them, then the request's own. `stopping` may be replaced by one with another `max_tokens`.
    """

    __slots__ = ("_stop_tokens", "end_tokens", "ends", "stopping")

    def __init__(self, stopping: Stopping, eos_token_ids: tuple[int, ...]) -> None:
        eos = () if stopping.ignore_eos else eos_token_ids
        self.end_tokens = tuple(dict.fromkeys((*eos, *stopping.stop_token_ids)))
        self.ends = frozenset(self.end_tokens)
        self._stop_tokens = frozenset(stopping.stop_token_ids)
        self.stopping = stopping

    def finish_of(self, token: int, position: int) -> tuple[str | None, int | None]:
        """The pair (finish, stop reason) that results from `token` at output `position` (from 1); (None, None) when
        the sequence goes on.

        End tokens at or below `min_tokens` do not end a sequence: sampling them there is forbidden anyway.
        """
        if position > self.stopping.min_tokens and token in self.ends:
            return "stop", (token if token in self._stop_tokens else None)
        if position >= self.stopping.max_tokens:
            return "length", None
        return _GOES_ON
