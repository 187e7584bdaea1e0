"""How long tokens came after one another: a histogram whose bins are 2 % wide, so quantiles are right to 1 %."""

from collections.abc import Iterable, Mapping
from math import exp, log
from typing import Final

_WIDTH: Final = log(1.02)


def bin_of(seconds: float) -> int:
    """The bin of a gap of more than 0 s."""
    return int(log(seconds) / _WIDTH + 4096)


class Gaps:
    """Gaps between tokens, by bin. A gap stands for the middle of its bin."""

    __slots__ = ("bins",)

    def __init__(self) -> None:
        self.bins: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """One gap of more than 0 s."""
        number = bin_of(seconds)
        self.bins[number] = self.bins.get(number, 0) + 1

    def add_steps(self, first_s: float, last_s: float, steps: int) -> None:
        """Gaps that grow evenly from `first_s` to `last_s`, both above 0 and included."""
        bins, low = self.bins, bin_of(first_s)
        high = bin_of(last_s) if steps > 1 else low
        if low >= high:
            bins[low] = bins.get(low, 0) + steps
            return
        growth_s, done = (last_s - first_s) / (steps - 1), 0
        for number in range(low, high):
            # As many as lie below the upper edge of the bin.
            below = min(steps, int((exp((number + 1 - 4096) * _WIDTH) - first_s) / growth_s) + 1)
            if below > done:
                bins[number] = bins.get(number, 0) + below - done
                done = below
        if steps > done:
            bins[high] = bins.get(high, 0) + steps - done

    def add_since(self, now: Mapping[int, int], before: Mapping[int, int]) -> None:
        """What a histogram holds `now` beyond what it held `before`."""
        bins = self.bins
        for number, count in now.items():
            more = count - before.get(number, 0)
            if more:
                bins[number] = bins.get(number, 0) + more

    @property
    def count(self) -> int:
        return sum(self.bins.values())

    @property
    def longest_s(self) -> float:
        """0 for no gap."""
        return _middle_s(max(self.bins)) if self.bins else 0.0

    def quantile(self, share: float) -> float:
        """Seconds that `share` of the gaps do not exceed; 0 for no gap."""
        left = share * (self.count - 1)
        for number in sorted(self.bins):
            left -= self.bins[number]
            if left < 0:
                return _middle_s(number)
        return self.longest_s


def all_gaps(each: Iterable[Gaps]) -> Gaps:
    """Those of many requests together."""
    together = Gaps()
    for gaps in each:
        together.add_since(gaps.bins, {})
    return together


def _middle_s(number: int) -> float:
    return exp((number + 0.5 - 4096) * _WIDTH)
