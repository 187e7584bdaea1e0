"""How a split that follows the load compares with the best fixed one and with peers. Pure: results to checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite
from statistics import fmean
from typing import Final

from benchmarks.fleet.goodput import BUCKET_S, Bucket
from benchmarks.goodput_cells import STATIONARY, Cell
from benchmarks.goodput_plan import CELL_BAR, OVERLOAD_BAR, PEER_BAR, SEEDS_MIN, ratio_of, shifts
from benchmarks.goodput_runs import RunResult, SplitRow
from benchmarks.rounds import Check
from benchmarks.statistics import BySeed, Interval, over_cells
from tandem.core.errors import TandemError

MEAN_BAR: Final = 1.0
"""Of the best fixed splits' figures, in the geometric mean over cells; likewise of the best peers'."""
SETTLED_S: Final = 30.0
"""So long after a change of traffic"""
SHIFT_BAR: Final = 0.95
"""this share of what the best fixed split for the new one has is reached."""
MOVES_BAR: Final = 1.0
"""Workers that change kind per minute, in the mean over seeds, where traffic is stationary."""


@dataclass(frozen=True)
class Auto:
    """A split that follows the load, in one cell. `mine` is what it is compared by, by seed, `best` the same of the
    best fixed split and `peers` of every peer. `moves` are the workers that change kind per minute of the window,
    `held` the splits that there were. `shifted` and `best_shifted` are the shares in the objective, its own and the
    best fixed split's of each phase, of the requests that come `SETTLED_S` after a change of traffic or later and
    before the next: what is back within that time. Empty where nothing shifts."""

    cell: Cell
    attained: BySeed
    mine: BySeed
    best: BySeed
    moves: BySeed
    held: Mapping[int, Sequence[SplitRow]]
    peers: Mapping[tuple[str, int], BySeed]
    shifted: BySeed
    best_shifted: BySeed

    @property
    def over_best(self) -> Interval | None:
        """Over the seeds that both have."""
        return ratio_of(self.mine, self.best)

    @property
    def over_peers(self) -> dict[tuple[str, int], Interval]:
        """By peer, where it has met anything."""
        found = {name: ratio_of(self.mine, theirs) for name, theirs in self.peers.items()}
        return {name: ratio for name, ratio in found.items() if ratio is not None}

    @property
    def after_shifts(self) -> Interval | None:
        """Over the best fixed split of each phase."""
        return ratio_of(self.shifted, self.best_shifted)


def auto_of(
    cell: Cell,
    runs: Mapping[int, RunResult],
    best: BySeed,
    splits: Mapping[int, Mapping[int, RunResult]],
    peers: Mapping[tuple[str, int], BySeed],
) -> Auto | None:
    """From its runs by seed, those of all fixed splits, and figures of the best of them and of peers; None where it
    has not run."""
    if not runs:
        return None
    shifted: dict[int, tuple[float, float]] = {}
    for seed, run in runs.items() if shifts(cell) else ():
        fixed = [each[seed] for each in splits.values() if seed in each]
        found = after_shifts(run, fixed, cell.tpot_ms) if len(fixed) == len(splits) else None
        if found is not None:
            shifted[seed] = found
    return Auto(
        cell=cell,
        attained={seed: run.attainment(cell.tpot_ms) for seed, run in runs.items()},
        mine={seed: run.compared(cell.tpot_ms) for seed, run in runs.items()},
        best=best,
        moves={seed: moves_per_min(run, cell.tpot_ms) for seed, run in runs.items()},
        held={seed: run.held for seed, run in runs.items()},
        peers=peers,
        shifted={seed: own for seed, (own, _) in shifted.items()},
        best_shifted={seed: theirs for seed, (_, theirs) in shifted.items()},
    )


def moves_per_min(run: RunResult, tpot_ms: int) -> float:
    """Workers that changed kind within the window, per minute of it."""
    judged = run.judged[tpot_ms]
    window_s = judged["offered"] / judged["offered_per_s"] if judged["offered_per_s"] else 0.0
    before = max((moves for at_s, _, _, moves in run.held if at_s < run.begin_s), default=0)
    after = max((moves for _, _, _, moves in run.held), default=0)
    return 60.0 * (after - before) / window_s if window_s else 0.0


def after_shifts(run: RunResult, splits: Sequence[RunResult], tpot_ms: int) -> tuple[float, float] | None:
    """(share in the objective of its requests, that of the best of `splits` of each phase) of all that come from
    `SETTLED_S` after a change on and before the next, in buckets that lie between. The best split of a phase is that
    with the greatest share in the whole phase: it would be the one to have. None where no request comes then."""
    buckets = run.by_arrival(tpot_ms)
    if not buckets:
        return None
    edges = [*(at_s for at_s in run.changes_s if at_s >= run.begin_s), buckets[-1].begin_s + BUCKET_S]
    offered = mine = theirs = 0
    for begin_s, end_s in pairwise(edges):
        each = [split.by_arrival(tpot_ms) for split in splits]
        best = max(each, key=lambda known: share(known, begin_s, end_s))
        asked, own = counted(buckets, begin_s + SETTLED_S, end_s)
        offered, mine = offered + asked, mine + own
        theirs += counted(best, begin_s + SETTLED_S, end_s)[1]
    return (mine / offered, theirs / offered) if offered else None


def counted(buckets: Sequence[Bucket], begin_s: float, end_s: float) -> tuple[int, int]:
    """(offered, met) of the buckets that lie in that time."""
    inside = [bucket for bucket in buckets if begin_s <= bucket.begin_s and bucket.begin_s + BUCKET_S <= end_s]
    return sum(bucket.offered for bucket in inside), sum(bucket.met for bucket in inside)


def share(buckets: Sequence[Bucket], begin_s: float, end_s: float) -> float:
    """In the objective, of the requests of those buckets; 0 without one."""
    offered, met = counted(buckets, begin_s, end_s)
    return met / offered if offered else 0.0


def bounded(ratio: Interval | None) -> bool:
    """Whether enough seeds are known to judge by it."""
    return ratio is not None and ratio.seeds >= SEEDS_MIN and isfinite(ratio.high)


def checks(autos: Sequence[Auto]) -> list[Check]:
    """A split that follows the load against the best fixed one and against peers; after shifts of traffic; how often
    it moves. A ratio falls short only where its whole interval does."""
    found = []
    for bar, named, among in (
        (CELL_BAR, "up to the capacity", [each for each in autos if each.cell.load <= 1]),
        (OVERLOAD_BAR, "above the capacity", [each for each in autos if each.cell.load > 1]),
    ):
        found += _least(
            [(each.over_best, each.cell.name) for each in among], f"auto over the best split {named}", bar
        )
    found += _mean([(each.mine, each.best) for each in autos], "auto over the best split")
    over = [
        (ratio, f"{each.cell.name} over {name}") for each in autos for (name, _), ratio in each.over_peers.items()
    ]
    found += _least(over, "auto over a peer", PEER_BAR)
    pairs = [(each.mine, best) for each in autos if (best := _best_peer(each)) is not None]
    found += _mean(pairs, "auto over the best peer")
    after = [(each.after_shifts, each.cell.name) for each in autos]
    found += _least(after, f"auto {SETTLED_S:.0f} s after a shift over the best split for it", SHIFT_BAR)
    moves = [(fmean(each.moves.values()), each.cell) for each in autos if _stationary(each.cell)]
    if moves:
        most, cell = max(moves, key=lambda one: one[0])
        found.append(Check(f"workers that change kind a minute, {cell.name}, the most", most, MOVES_BAR, False))
    return found


def unjudged(autos: Sequence[Auto]) -> list[str]:
    """What too few seeds leave open."""
    if not autos:
        return ["a split that follows the load has not run in any cell"]
    told = []
    if unknown := [each for each in autos if not bounded(each.over_best)]:
        named = f"{unknown[0].cell.name} among them"
        told.append(f"auto over the best split has no bounds in {len(unknown)} of {len(autos)} cells ({named})")
    shifting = [each for each in autos if shifts(each.cell)]
    if unknown := [each for each in shifting if not bounded(each.after_shifts)]:
        told.append(f"auto after a shift has no bounds in {len(unknown)} of {len(shifting)} cells")
    return told


def _stationary(cell: Cell) -> bool:
    return cell.traffic in STATIONARY and cell.load <= 1


def _best_peer(auto: Auto) -> BySeed | None:
    """The one over which it has the least ratio."""
    ratios = auto.over_peers
    return auto.peers[min(ratios, key=lambda name: ratios[name].mean)] if ratios else None


def _least(ratios: Sequence[tuple[Interval | None, str]], named: str, bar: float) -> list[Check]:
    known = [(ratio, where) for ratio, where in ratios if ratio is not None and bounded(ratio)]
    if not known:
        return []
    ratio, where = min(known, key=lambda one: one[0].high)
    return [Check(f"{named}, {ratio.mean:.3f} in {where}, upper end, the least", ratio.high, bar, True)]


def _mean(pairs: Sequence[tuple[BySeed, BySeed]], named: str) -> list[Check]:
    try:
        over = over_cells(pairs)
    except TandemError:
        return []
    if not bounded(over):
        return []
    return [Check(f"{named}, geometric mean of the cells {over.mean:.3f}, upper end", over.high, MEAN_BAR, True)]


def line_of(auto: Auto) -> dict[str, object]:
    """For the JSON; bounds that are unknown are null."""
    return {
        "attainment": {str(seed): each for seed, each in sorted(auto.attained.items())},
        "over_best": _bounds(auto.over_best),
        "moves_per_min": {str(seed): each for seed, each in sorted(auto.moves.items())},
        "after_shifts": _bounds(auto.after_shifts),
        "over_peers": [
            {"contender": name, "prefills": prefills, "over": _bounds(ratio)}
            for (name, prefills), ratio in auto.over_peers.items()
        ],
        "held": {str(seed): [list(each) for each in held] for seed, held in sorted(auto.held.items())},
    }


def _bounds(interval: Interval | None) -> list[float | None] | None:
    if interval is None:
        return None
    return [each if abs(each) < inf else None for each in (interval.mean, interval.low, interval.high)]
