"""Decides when a worker must become a new incarnation: after its process was frozen for longer than routers wait."""

from collections.abc import Callable


class WorkerEpoch:
    """The worker's epoch, and the watch on the gaps between its own heartbeats. `renew` draws the next epoch.

    A frozen process cannot notice that it is frozen, only afterwards that time has passed. Its routers have given
    up its attempts by then, so it must not serve on as if nothing had happened.
    """

    def __init__(self, epoch: int, lost_s: float, renew: Callable[[], int]) -> None:
        self.epoch = epoch
        self._lost_s = lost_s
        self._renew = renew
        self._beat: float | None = None

    def gap(self, now: float) -> float | None:
        """Seconds without a heartbeat when that is too long, else None. Not a heartbeat itself."""
        if self._beat is None or now - self._beat <= self._lost_s:
            return None
        return now - self._beat

    def beat(self, now: float) -> None:
        """The heartbeat ran."""
        self._beat = now

    def renew(self) -> int:
        """Become a new incarnation."""
        self.epoch = self._renew()
        return self.epoch
