"""Which bars a calibration holds: simulated against published figures, rate by rate. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, fsum, log
from statistics import median
from typing import Final

from tandem.core.errors import TandemError

KNEE_S: Final = 5.0
"""The first rate whose 90th percentile of TTFT is above this is the knee."""
BELOW: Final = 0.15
"""By what share knees, and throughput below them, may be off."""
BEYOND: Final = 0.30
"""By what share TTFT may be off beyond the knee; at the knee queues are the small difference of two rates."""


@dataclass(frozen=True)
class Point:
    """One rate (requests/s) of one policy."""

    rate: float
    tokens_per_s: float
    ttft_p90_s: float
    ttft_mean_s: float


@dataclass(frozen=True)
class Bar:
    """Simulated over published: `ratio` at its worst place, which `where` names, and over all places in the geometric
    mean. It holds when every ratio lies between 1 - `margin` and 1 + `margin`."""

    name: str
    ratio: float
    mean: float
    margin: float
    where: str = ""

    @property
    def holds(self) -> bool:
        return abs(self.ratio - 1.0) <= self.margin


def medians(runs: Sequence[Sequence[Point]]) -> list[Point]:
    """Of the same rates under several seeds. Raises `bad_setting` when there is no run, or rates differ."""
    if not runs or len({tuple(point.rate for point in run) for run in runs}) != 1:
        raise TandemError("bad_setting", "medians over seeds need runs of the same rates")
    return [
        Point(
            points[0].rate,
            median(point.tokens_per_s for point in points),
            median(point.ttft_p90_s for point in points),
            median(point.ttft_mean_s for point in points),
        )
        for points in zip(*runs, strict=True)
    ]


def knee(points: Sequence[Point]) -> float | None:
    """The first rate beyond which requests queue; None when they do at none."""
    return next((point.rate for point in points if point.ttft_p90_s > KNEE_S), None)


def judged(simulated: Sequence[Point], published: Sequence[Point]) -> list[Bar]:
    """The bars of one policy on one ladder: its knee, throughput at every rate below the published knee, mean and
    90th percentile of TTFT beyond it. Without a published knee every rate is below it."""
    theirs, mine = knee(published), knee(simulated)
    pairs = list(zip(simulated, published, strict=True))
    bars = [Bar("knee", _knees(mine, theirs), _knees(mine, theirs), BELOW, f"{_told(mine)} for {_told(theirs)}")]
    below = [pair for pair in pairs if theirs is None or pair[1].rate < theirs]
    beyond = [pair for pair in pairs if theirs is not None and pair[1].rate > theirs]
    if below:
        tokens = {a.rate: a.tokens_per_s / b.tokens_per_s for a, b in below}
        bars.append(_worst("tokens/s below the knee", tokens, BELOW))
    if beyond:
        means = {a.rate: a.ttft_mean_s / b.ttft_mean_s for a, b in beyond}
        bars.append(_worst("mean TTFT beyond the knee", means, BEYOND))
        bars.append(
            _worst("TTFT p90 beyond the knee", {a.rate: a.ttft_p90_s / b.ttft_p90_s for a, b in beyond}, BEYOND)
        )
    return bars


def judged_ratios(simulated: Mapping[str, float], published: Mapping[str, float], first: str) -> list[Bar]:
    """Every other figure in ratio to that of `first`, which is queueing beyond a knee."""
    return [
        Bar(f"{name} : {first}", ratio, ratio, BEYOND)
        for name in published
        if name != first
        for ratio in [simulated[name] / simulated[first] / (published[name] / published[first])]
    ]


def _knees(mine: float | None, theirs: float | None) -> float:
    if mine is None or theirs is None:
        return 1.0 if mine is theirs else 0.0 if mine is not None else float("inf")
    return mine / theirs


def _told(rate: float | None) -> str:
    return "none" if rate is None else f"{rate:g}/s"


def _worst(name: str, ratios: Mapping[float, float], margin: float) -> Bar:
    rate = max(ratios, key=lambda rate: abs(ratios[rate] - 1.0))
    mean = exp(fsum(log(ratio) for ratio in ratios.values()) / len(ratios))
    return Bar(name, ratios[rate], mean, margin, f"at {rate:g}/s")
