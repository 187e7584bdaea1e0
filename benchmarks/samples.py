"""Curves over time: what a process uses while something runs, and how to tell a leak from noise."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil


@dataclass
class Curve:
    """Samples of one figure. Times are seconds from the beginning of the measurement."""

    times_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, time_s: float, value: float) -> None:
        self.times_s.append(time_s)
        self.values.append(value)

    def since(self, time_s: float) -> "Curve":
        """The samples from `time_s` on."""
        kept = [(at, value) for at, value in zip(self.times_s, self.values, strict=True) if at >= time_s]
        return Curve([at for at, _ in kept], [value for _, value in kept])

    @property
    def slope(self) -> float:
        """Units per second, by the median of the slopes between halves: a step or an outlier is no slope.

        Theil and Sen's estimator over pairs half the curve apart, which is as robust and takes linear time.
        """
        half = len(self.values) // 2
        if half == 0:
            return 0.0
        pairs = zip(self.times_s, self.times_s[half:], self.values, self.values[half:], strict=False)
        return statistics.median((later - early) / (end - begin) for begin, end, early, later in pairs)

    @property
    def growth(self) -> float:
        """The slope over the whole curve, in units."""
        return self.slope * (self.times_s[-1] - self.times_s[0]) if len(self.times_s) > 1 else 0.0


def rss_mb(process: psutil.Process) -> float:
    """Resident memory of a process and of those it has started, MB."""
    return float(sum(each.memory_info().rss for each in _family(process))) / 1e6


def descriptors(process: psutil.Process) -> int:
    """Open file descriptors of a process and of those it has started."""
    return sum(each.num_fds() for each in _family(process))


def _family(process: psutil.Process) -> Sequence[psutil.Process]:
    return [process, *process.children(recursive=True)]


def plot(path: Path, title: str, panels: Sequence[tuple[str, dict[str, Curve]]]) -> None:
    """One panel per figure, with a line per curve. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(panels), 3.6), layout="constrained")
    figure.suptitle(title)
    for axes, (label, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name, curve in curves.items():
            axes.plot(curve.times_s, curve.values, label=name, linewidth=1)
        axes.set(xlabel="time (s)", ylabel=label, ylim=(0, None))
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=7)
    figure.savefig(path)
