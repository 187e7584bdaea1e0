"""How fast each worker is compared to all of them."""

from typing import Final

_NOISE: Final = 0.1
"""Workers of one kind are measured to differ by less, and do not."""
_OUTLIER: Final = 3.0


class Paces:
    """A factor on what the fleet's formula says, per worker; 1 on average. Measured paces are kept, and only the part
    of them that is beyond noise is told."""

    def __init__(self, share: float) -> None:
        """`share` is the weight of a new observation."""
        self._share = share
        self._paces: dict[str, float] = {}
        self._sum = 0.0

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._paces

    def measured(self, worker_id: str) -> float:
        """Compared to the mean of those that have been measured."""
        pace = self._paces.get(worker_id)
        return 1.0 if pace is None else pace * len(self._paces) / self._sum

    def telling(self, worker_id: str) -> float:
        """The part of it that says something of this worker."""
        pace = self.measured(worker_id)
        if pace > 1.0 + _NOISE:
            return pace - _NOISE
        return min(1.0, pace + _NOISE)

    def observe(self, worker_id: str, ratio: float) -> None:
        """A measurement took `ratio` times as long as was expected at the worker's pace."""
        pace = self.measured(worker_id)
        pace *= 1.0 + self._share * (max(1.0 / _OUTLIER, min(ratio, _OUTLIER)) - 1.0)
        self._sum += pace - self._paces.get(worker_id, 0.0)
        self._paces[worker_id] = pace

    def forget(self, worker_id: str) -> None:
        """Its successor may be another machine."""
        self._sum -= self._paces.pop(worker_id, 0.0)
