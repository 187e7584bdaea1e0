"""What ways carried of the traffic that there was before, and since when there is the traffic of now. Pure."""

from collections.abc import Mapping
from math import exp
from typing import Final

from router.split.values import Way

_WEIGHT: Final = 0.3
"""Of what a way carried of the traffic before, beside what it does of that of now, when it has just changed: that may
come back, and a split that serves both need not move."""
_FADING_S: Final = 120.0
"""After so long it is 1/e of that."""


class Phases:
    """Of one service's traffic; one owner changes it in place. Ways differ by how many take prompts."""

    def __init__(self, apart_s: float) -> None:
        """`apart_s`: what looks like a change so soon after another is the same one."""
        self._apart_s = apart_s
        self.began_s: float | None = None
        """When the traffic of now began; None while there was none."""
        self._now: dict[int, float] = {}
        self._before: dict[int, float] = {}

    def changes(self, began_s: float) -> bool:
        """Whether traffic that began then is another than what is known."""
        return self.began_s is None or began_s > self.began_s + self._apart_s

    def begin(self, began_s: float) -> None:
        """Traffic has changed."""
        self.began_s = began_s
        self._before, self._now = self._now or self._before, {}

    def learn(self, carried: Mapping[Way, float]) -> None:
        """What ways carry of the traffic of now; of those that differ in their steps alone the best."""
        best: dict[int, float] = {}
        for way, share in carried.items():
            best[way.prefills] = max(share, best.get(way.prefills, 0.0))
        self._now |= best

    def worth(self, prefills: int, now: float) -> float:
        """What a number of workers that take prompts gains by the traffic before; one that was not looked at is like
        the nearest that was."""
        if not self._before or self.began_s is None:
            return 0.0
        nearest = min(self._before, key=lambda known: (abs(known - prefills), known))
        return _WEIGHT * exp((self.began_s - now) / _FADING_S) * self._before[nearest]
