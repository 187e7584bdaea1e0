"""Determines the status of a client's request that consists of several generations: each of its prompts has a status
of its own. Pure."""

from collections.abc import Sequence
from typing import Final

from router.generation import RequestStatus

_STAGES: Final = ("queue", "prefill", "transfer", "first-token", "decode")


def furthest_behind(running: Sequence[RequestStatus], delivered: int) -> RequestStatus:
    """The one that has least done, with the tokens `delivered` of all; before any is started, the queue."""
    if not running:
        return RequestStatus("queue", None, None, delivered, 0)
    last = min(running, key=lambda one: _STAGES.index(one.stage))
    return RequestStatus(last.stage, last.prefill, last.decode, delivered, last.attempts)
