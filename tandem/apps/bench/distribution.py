"""Mean and percentiles of a set of figures."""

import math
from collections.abc import Sequence

import msgspec


class Distribution(msgspec.Struct, frozen=True):
    """All in the unit of the values, which is seconds everywhere in a report."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between closest ranks, as numpy's default. `values` may be in any order, not empty."""
    return _interpolated(sorted(values), percent)


def distribution(values: Sequence[float]) -> Distribution | None:
    """None when there are no values."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p90, p99 = (_interpolated(ordered, percent) for percent in (50, 90, 99))
    return Distribution(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def _interpolated(ordered: Sequence[float], percent: float) -> float:
    rank = (len(ordered) - 1) * percent / 100
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
