"""What the goodput bench finds and what it holds the router to. Pure: results in, comparisons and checks out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from statistics import fmean, median
from typing import Final

from benchmarks.goodput_capacity import Capacity, Key
from benchmarks.goodput_cells import Cell, Options
from benchmarks.goodput_plan import Results, attained, best_split, split_runs
from benchmarks.goodput_runs import ABLATIONS, Result
from benchmarks.rounds import Check
from benchmarks.statistics import BySeed, Interval, over_cells, paired
from tandem.core.errors import TandemError
from tandem.fleetsim.contenders import OURS
from tandem.fleetsim.goodput import BUCKET_S, Bucket, recovery_s

PEER_BAR: Final = 0.98
"""Of the best peer's attainment, in a cell whose interval does not reach it."""
PEERS_BAR: Final = 1.0
"""The same in the geometric mean over cells."""


@dataclass(frozen=True)
class Contest:
    """A contender beside ours in one cell: attainments by seed, and ours over theirs where theirs is not 0."""

    contender: str
    prefills: int
    theirs: BySeed
    ratio: Interval | None


@dataclass(frozen=True)
class Found:
    """One cell. `splits` has the attainment by seed of each, by its number of prefill workers; `best` is the best of
    them in the mean, `over_unified` its ratio to all unified workers over the seeds that both have. `figures` are
    medians over the seeds of the best split. `recovery_s` is by seed how long after a surge the best split needed
    to be back, None where it never was; empty without one. `shifts_s` is the same after each change of traffic, with
    the first seed: until it was back at what the best split for that phase has there."""

    cell: Cell
    rate: float
    splits: Mapping[int, BySeed]
    best: int
    over_unified: Interval | None
    figures: Mapping[str, float]
    recovery_s: Mapping[int, float | None]
    shifts_s: tuple[float | None, ...]
    peers: tuple[Contest, ...]
    ablated: tuple[Contest, ...]

    @property
    def attainment(self) -> float:
        """Of the best split, its mean over seeds."""
        return fmean(self.splits[self.best].values())


def found_in(
    options: Options, cells: Sequence[Cell], capacities: Mapping[Key, Capacity], results: Results
) -> list[Found]:
    """Every cell of which all splits have run once; those that an interruption left without are left out."""
    found = []
    for cell in cells:
        capacity = capacities.get((cell.traffic, cell.workers, cell.tpot_ms))
        if capacity is None:
            continue
        by_split = split_runs(options, cell, capacity.scale, results)
        if all(by_split.values()):
            found.append(_found(options, cell, capacity.scale, by_split, results))
    return found


def _found(options: Options, cell: Cell, capacity: float, by_split: Mapping[int, BySeed], results: Results) -> Found:
    best = best_split(options, by_split)
    ours = by_split[best]
    mine = options.run(cell, capacity, best, OURS, 0)
    runs = [results[replace(mine, seed=seed)] for seed in sorted(ours)]
    contests = [
        Contest(contender, split, theirs, ratio_of(ours, theirs))
        for contender in (*options.peers, *ABLATIONS)
        for split in sorted({0, best})
        if (
            theirs := attained(results, options.run(cell, capacity, split, contender, 0), cell.tpot_ms, options.seeds)
        )
    ]
    return Found(
        cell=cell,
        rate=fmean(result.judged[cell.tpot_ms]["offered_per_s"] for result in runs),
        splits=by_split,
        best=best,
        over_unified=ratio_of(ours, by_split[0]) if best and 0 in by_split else None,
        figures={
            name: median(result.judged[cell.tpot_ms][name] for result in runs)
            for name in runs[0].judged[cell.tpot_ms]
        },
        recovery_s={result.run.seed: _recovery_s(result, cell) for result in runs} if cell.load > 1 else {},
        shifts_s=shifts_s(results[mine], [results[replace(mine, prefills=split)] for split in by_split], cell.tpot_ms)
        if cell.load <= 1
        else (),
        peers=tuple(each for each in contests if each.contender in options.peers),
        ablated=tuple(each for each in contests if each.contender in ABLATIONS),
    )


def _recovery_s(result: Result, cell: Cell) -> float | None:
    """After its surge, until the objective is met as it has to be."""
    return recovery_s(result.by_arrival(cell.tpot_ms), result.changes_s[0], 1.0)


def shifts_s(run: Result, splits: Sequence[Result], tpot_ms: int) -> tuple[float | None, ...]:
    """After each change of traffic within what is counted: how long until attainment was back at 95 % of what the
    best of `splits` has between this change and the next."""
    buckets = run.by_arrival(tpot_ms)
    if not buckets:
        return ()
    edges = [*(at_s for at_s in run.changes_s if at_s >= run.begin_s), buckets[-1].begin_s + BUCKET_S]
    found = []
    for begin_s, end_s in pairwise(edges):
        best = max(_within(each.by_arrival(tpot_ms), begin_s, end_s) for each in splits)
        phase = [bucket for bucket in buckets if bucket.begin_s < end_s]
        found.append(recovery_s(phase, begin_s, best))
    return tuple(found)


def _within(buckets: Sequence[Bucket], begin_s: float, end_s: float) -> float:
    """Attainment of the buckets that begin in that time; 0 without a request."""
    inside = [bucket for bucket in buckets if begin_s <= bucket.begin_s < end_s]
    offered = sum(bucket.offered for bucket in inside)
    return sum(bucket.met for bucket in inside) / offered if offered else 0.0


def ratio_of(ours: BySeed, theirs: BySeed) -> Interval | None:
    """Over the seeds that both have; None where theirs is 0 in all of them, or none is common."""
    common = {seed: theirs[seed] for seed in theirs if seed in ours}
    return paired(ours, common) if any(common.values()) else None


def best_peer(found: Found) -> Contest | None:
    """The peer whose mean over the seeds in common with ours is best, in whichever split it was."""
    ours = found.splits[found.best]
    known = [each for each in found.peers if each.theirs.keys() & ours.keys()]
    return max(
        known, key=lambda each: fmean(share for seed, share in each.theirs.items() if seed in ours), default=None
    )


def checks(found: Sequence[Found]) -> list[Check]:
    """Ours at the best split against the best peer, in every cell where peers ran and over all of them. A cell falls
    short only where its whole interval does."""
    contests = [(each, peer) for each in found if (peer := best_peer(each)) is not None and peer.ratio is not None]
    if not contests:
        return []
    high, cell = min((peer.ratio.high, each.cell.name) for each, peer in contests if peer.ratio is not None)
    named = f"goodput over the best peer's, upper end of the interval, least in {cell}"
    verdicts = [Check(named, high, PEER_BAR, True)]
    over = over_all([(each.splits[each.best], peer.theirs) for each, peer in contests])
    if over is not None:
        verdicts.append(
            Check(f"goodput over the best peer's, {len(contests)} cells, upper end", over.high, PEERS_BAR, True)
        )
    return verdicts


def over_all(pairs: Sequence[tuple[BySeed, BySeed]]) -> Interval | None:
    """The geometric mean over cells, over the seeds of all; None without a common one or where nothing was met."""
    try:
        return over_cells(pairs)
    except TandemError:
        return None


def line_of(found: Found) -> dict[str, object]:
    """For the JSON; bounds that are unknown are null."""
    return {
        "traffic": found.cell.traffic,
        "workers": found.cell.workers,
        "load": found.cell.load,
        "tpot_ms": found.cell.tpot_ms,
        "offered_per_s": found.rate,
        "best": found.best,
        "attainment": found.attainment,
        "over_unified": _bounds(found.over_unified),
        "splits": {str(split): _by_seed(each) for split, each in found.splits.items()},
        "figures": dict(found.figures),
        "recovery_s": {str(seed): each for seed, each in found.recovery_s.items()},
        "shifts_s": list(found.shifts_s),
        "peers": [_contest(each) for each in found.peers],
        "ablated": [_contest(each) for each in found.ablated],
    }


def _contest(each: Contest) -> dict[str, object]:
    return {
        "contender": each.contender,
        "prefills": each.prefills,
        "attainment": _by_seed(each.theirs),
        "ours_over_it": _bounds(each.ratio),
    }


def _by_seed(figures: BySeed) -> dict[str, float]:
    return {str(seed): figure for seed, figure in sorted(figures.items())}


def _bounds(interval: Interval | None) -> list[float | None] | None:
    if interval is None:
        return None
    return [each if isfinite(each) else None for each in (interval.mean, interval.low, interval.high)]
