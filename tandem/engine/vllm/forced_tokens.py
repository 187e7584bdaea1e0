"""Tokens that are known to be the next ones of a request, in the process where vLLM samples.

The connector learns them over the conduit and puts them here before it reports the request's KV as loaded; the
logits processor, which vLLM builds itself in the same process, takes them from here. One engine per process, so the
table can be the module's own.
"""

from typing import Final

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
