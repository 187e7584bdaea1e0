"""Defines the phases of a running request and the meaning of its failures. Values only."""

from enum import Enum
from typing import Final

from tandem.core.errors import KINDS

FINAL: Final = frozenset(code for code, kind in KINDS.items() if kind.http < 499 and code != "ticket_refused")
"""Failures that every worker would repeat: the request itself is at fault."""

UNCHARGED: Final = frozenset(("worker_lost", "draining", "stale_epoch"))
"""Failures that come with a worker's end of life; they do not use up the retry budget."""


class Phase(Enum):
    """The phase of a request; `router.dispatch.request_state` has the transitions."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    ENDING = "ending"
    OVER = "over"
