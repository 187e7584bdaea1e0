"""Ratios of two policies that saw the same traffic, with the interval that seeds leave open. Pure.

A ratio is that of the means over seeds, not the mean of ratios: a seed in which the other met nothing has no ratio of
its own. Its interval comes from what each seed adds to it, so that traffic which is hard for both cancels out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log, prod, sqrt
from statistics import fmean
from typing import Final

from tandem.core.errors import TandemError

BySeed = Mapping[int, float]
"""A figure of one policy in one cell, by seed."""

_T_975: Final = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
"""Student's t, 0.975 quantile, for 1 to 30 degrees of freedom."""
_Z_975: Final = 1.959964


@dataclass(frozen=True)
class Interval:
    """An estimate, and between what the truth lies with 95 %. Of a single seed the interval is unbounded; above an
    estimate of 0 it is, too: that nothing was met in so many seeds bounds nothing."""

    mean: float
    low: float
    high: float
    seeds: int


def t_975(freedom: int) -> float:
    """Student's t for a two-sided interval of 95 %, to three decimals; infinite without a degree of freedom."""
    if freedom < 1:
        return inf
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    # The first terms of the expansion around the normal quantile.
    z = _Z_975
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def paired(ours: BySeed, theirs: BySeed) -> Interval:
    """Ours over theirs, over the seeds that both have. Raises `bad_setting` without one, or when theirs are all 0."""
    ratio, seeds, added = _ratio(ours, theirs)
    if ratio == 0:
        return Interval(0.0, 0.0, inf, len(seeds))
    half = _half_width([ratio * each for each in added])
    return Interval(ratio, ratio - half, ratio + half, len(seeds))


def over_cells(cells: Sequence[tuple[BySeed, BySeed]]) -> Interval:
    """The geometric mean over cells of ours over theirs, over the seeds that all cells share: one seed's cells are
    not independent of each other. 0 when ours is 0 in a cell. Raises `bad_setting` as `paired` does, and without
    cells."""
    if not cells:
        raise TandemError("bad_setting", "a mean over cells needs one cell at least")
    common = set.intersection(*(set(ours) & set(theirs) for ours, theirs in cells))
    found = [_ratio(_only(ours, common), _only(theirs, common)) for ours, theirs in cells]
    mean = prod(ratio ** (1 / len(cells)) for ratio, _, _ in found)
    half = _half_width([fmean(each) for each in zip(*(added for _, _, added in found), strict=True)])
    if mean == 0:
        return Interval(0.0, 0.0, inf, len(common))
    return Interval(mean, exp(log(mean) - half), exp(log(mean) + half) if half < inf else inf, len(common))


def _only(figures: BySeed, seeds: set[int]) -> BySeed:
    return {seed: figure for seed, figure in figures.items() if seed in seeds}


def _ratio(ours: BySeed, theirs: BySeed) -> tuple[float, list[int], list[float]]:
    """(ratio of means, seeds in order, by how much of the ratio each seed is off)."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        raise TandemError("bad_setting", f"no seed in common: {sorted(ours)} and {sorted(theirs)}")
    mean, other = fmean(ours[seed] for seed in seeds), fmean(theirs[seed] for seed in seeds)
    if other == 0:
        raise TandemError("bad_setting", f"the figures to compare with are 0 in all {len(seeds)} seeds: no ratio")
    added = [ours[seed] / mean - theirs[seed] / other if mean else 0.0 for seed in seeds]
    return mean / other, seeds, added


def _half_width(added: Sequence[float]) -> float:
    """Half a 95 % interval around the mean of values whose mean is 0."""
    count = len(added)
    if count < 2:
        return inf
    return t_975(count - 1) * sqrt(sum(each * each for each in added) / (count - 1) / count)
