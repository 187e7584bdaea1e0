"""Notices that vLLM's engine process sends about its requests as a step begins, in vLLM's own messages. Imports no
vLLM.

vLLM reports on a request only once it has drawn for it: a long prompt computes for many steps, or for one long one,
without a message, and so does a request that has its blocks and waits for their content. A notice is an output record
without tokens, sent before the step is computed (`step_reports`); it comes in order with everything else that vLLM
sends. The number of such messages is also in shared memory (`heartbeat`), so the worker knows whether there is news
of places that it has not received yet."""

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["computes", "awaits_kv", "has_kv", "preempted"]

_KEY: Final = "tandem_step"


class Notice(NamedTuple):
    """`computes`: the step that begins computes `tokens` tokens of the request's prompt from `start` on. `awaits_kv`:
    the request has its blocks, and waits for their content. `has_kv`: that has come, and it waits for a place in the
    batch. `preempted`: it has lost its place and its blocks."""

    kind: Kind
    start: int = 0
    tokens: int = 0

    def as_params(self) -> dict[str, object]:
        """The notice in the form of an output record's `kv_transfer_params`."""
        return {_KEY: [*self]}


def notice_of(params: Mapping[str, Any] | None) -> Notice | None:
    """The notice that an output record carries; None for a record of vLLM's own."""
    found = None if params is None else params.get(_KEY)
    return None if found is None else Notice(*found)
