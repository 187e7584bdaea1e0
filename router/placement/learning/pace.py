"""Learns how fast each worker is compared to all of its kind, from how long its work took and was expected to
take."""

from math import exp, log
from statistics import median
from typing import Final, Generic, TypeVar

_GRID: Final = 64
"""Paces are rounded to steps of 1 over this: workers that are alike have equal costs, which are computed once."""
_LEAST: Final = 0.5
"""Units of work below which a worker's pace is forgotten: a worker that has long been idle does not influence what is
usual."""
_SETTLED: Final = 8
"""The median is found anew with every measurement of the first, and after so many measurements from then on."""

Terms = TypeVar("Terms")


class Faded:
    """Sums that fade with a worker's own work: those of its last `window` units of work, about."""

    __slots__ = ("expected", "measured", "work")

    def __init__(self) -> None:
        self.measured = self.expected = self.work = 0.0

    def add(self, measured: float, expected: float, window: float) -> None:
        """One unit of work."""
        keep = exp(-1.0 / window)
        self.measured = keep * self.measured + measured
        self.expected = keep * self.expected + expected
        self.work = keep * self.work + 1.0


class Paces:
    """By worker, a factor on the times given by a shape that all workers share. The pace of a worker with little
    evidence is drawn to the median of all; a worker without any has the median."""

    def __init__(self, doubt: float) -> None:
        """`doubt` is the units of evidence at which half of what was measured is believed."""
        self._doubt = doubt
        self._told: dict[str, tuple[float, float]] = {}
        self._since = 0
        self.median = 1.0
        self.version = 0
        """Changes with the median."""

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._told

    def tell(self, worker_id: str, ratio: float, evidence: float) -> None:
        """Record that a worker's work took `ratio` times as long as the shape says."""
        if ratio <= 0.0 or evidence < _LEAST:
            self.forget(worker_id)
            return
        first = worker_id not in self._told
        self._told[worker_id] = ratio, evidence
        self._since += 1
        if first or self._since >= min(_SETTLED, len(self._told)):
            self._settle()

    def of(self, worker_id: str) -> float:
        """The worker's pace; the median where nothing is known of it."""
        told = self._told.get(worker_id)
        if told is None:
            return self.median
        ratio, evidence = told
        believed = evidence / (evidence + self._doubt)
        pace = self.median * exp(believed * log(ratio / self.median))
        return max(1, round(_GRID * pace)) / _GRID

    def beside(self, worker_id: str) -> float:
        """The worker's pace over the median."""
        return self.of(worker_id) / self.median

    def forget(self, worker_id: str) -> None:
        """Forget a worker: its successor may be another machine."""
        if self._told.pop(worker_id, None) is not None:
            self._settle()

    def _settle(self) -> None:
        self._since = 0
        found = median(ratio for ratio, _ in self._told.values()) if self._told else 1.0
        if found != self.median:
            self.median = found
            self.version += 1


class Judged(Generic[Terms]):
    """The pace of a worker that reports nothing, of a kind whose other workers do: `told` is what those take. The
    pace is how long the worker's own work took over that, drawn to theirs by evidence. It is theirs until there has
    been a window's worth of work, because most workers that have reported nothing will report soon, and better."""

    __slots__ = ("_doubt", "_faded", "_left", "_window", "pace", "told")

    def __init__(self, told: Terms, window: float, doubt: float) -> None:
        """`window` and `doubt` count units of work, as in `Faded` and `Paces`."""
        self.told = told
        self.pace = 1.0
        self._window, self._doubt, self._left = window, doubt, window
        self._faded = Faded()

    def observe(self, measured: float, expected: float, outlier: float) -> None:
        """One unit of work; it counts as at most `outlier` times slower than is known of this worker."""
        if measured <= 0.0 or expected <= 0.0:
            return
        faded = self._faded
        faded.add(min(measured, outlier * self.pace * expected), expected, self._window)
        self._left -= 1.0
        if self._left <= 0.0:
            believed = faded.work / (faded.work + self._doubt)
            self.pace = exp(believed * log(faded.measured / faded.expected))
