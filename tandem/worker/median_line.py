"""The time that fetches of one kind usually take, as a line over their bytes. Pure."""

from collections import deque
from itertools import combinations
from statistics import median
from typing import Final

_LATEST: Final = 16
"""Fetches that count. When things change for good, half as many make the new figures the usual ones."""
_RATE_OVER: Final = 100.0
"""Multiple of the rate guessed first beyond which no rate is believed, whatever noise suggests."""


class MedianLine:
    """Seconds = latency + bytes / rate through the latest fetches: the rate is the median over pairs of them (Theil,
    1950; Sen, 1968), pairs whose sizes differ more counting as much more (Jaeckel, 1972), the latency the median of
    what is left.

    A fetch that met something else - a connection being made, a process that had the core, a page that was not there
    - took longer than fetches do, never less: least squares would remember it for as long as they remember anything,
    and what a small prompt saves is less than that. The guessed rate counts as one more pair, so that fetches of one
    size, which say nothing of the rate, leave it.
    """

    def __init__(self, bytes_per_s: float) -> None:
        assert bytes_per_s > 0
        self._guess = 1.0 / bytes_per_s
        self._latest = deque[tuple[int, float]](maxlen=_LATEST)
        self._slope, self._latency_s = self._guess, 0.0

    def observe(self, size: int, seconds: float) -> None:
        """A fetch of `size` bytes took `seconds`, from asking to the last byte."""
        self._latest.append((size, seconds))
        latest = self._latest
        pairs = [(abs(n - m), (t - s) / (n - m)) for (m, s), (n, t) in combinations(latest, 2) if n != m]
        pairs.append((round(median(n for n, _ in latest)), self._guess))
        overall = median(t / n for n, t in latest)
        self._slope = min(max(_weighted_median(pairs), self._guess / _RATE_OVER), overall)
        self._latency_s = max(0.0, median(t - self._slope * n for n, t in latest))

    @property
    def bytes_per_s(self) -> float:
        return 1.0 / self._slope

    def expected_s(self, size: int) -> float:
        """Seconds that `size` bytes are expected to take."""
        return self._latency_s + self._slope * size


def _weighted_median(pairs: list[tuple[int, float]]) -> float:
    """The value below which half of the weight lies. Takes (weight, value)."""
    half = sum(weight for weight, _ in pairs) / 2
    for weight, value in sorted(pairs, key=lambda pair: pair[1]):
        half -= weight
        if half <= 0:
            return value
    raise AssertionError("there is a pair")
