"""How much longer answers take on each worker for the prompts that are computed beside them. Pure.

Which prompts will come after a request nobody knows. But who has spent much of its time on prompts goes on so for a
while: it is few sequences that draw long prompts to a worker, and those prompts keep them few. Workers tell what
their last steps took, those with prompts in them as well. What the batch alone would have made of such a step, over
what it took, is how fast its streams advance; the mean of that over time is their speed.
"""

from typing import Final

_SHARE: Final = 0.0025
"""Weight of a report. Workers report many times a second; a window holds many prompts, long ones as well."""
_NOISE: Final = 0.1
"""Streams with no prompt beside them are measured to be slower by less, and are not."""
_SPEED_MAX: Final = 2.0
"""A worker tells of a mean over steps, of which the last may have been of another batch."""


class Stalls:
    """Learns for all workers of a router."""

    def __init__(self) -> None:
        self._speeds: dict[str, float] = {}
        """1 where nothing holds streams up."""

    def stretch(self, worker_id: str) -> float:
        """How many times as long as without prompts beside it an answer takes there; at least 1."""
        return 1.0 / min(1.0, self._speeds.get(worker_id, 1.0) + _NOISE)

    def observe(self, worker_id: str, step_ms: float, alone_ms: float) -> None:
        """Steps take `step_ms` of late; with no prompt in them they would take `alone_ms`."""
        known = self._speeds.get(worker_id, 1.0)
        self._speeds[worker_id] = known + _SHARE * (min(_SPEED_MAX, alone_ms / step_ms) - known)

    def forget(self, worker_id: str) -> None:
        """Its successor begins with nothing to do."""
        self._speeds.pop(worker_id, None)
