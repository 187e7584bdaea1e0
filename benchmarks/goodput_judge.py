"""What the goodput bench finds and what it holds the router to. Pure: results in, comparisons and checks out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isfinite
from statistics import fmean, median
from typing import Final

from benchmarks import goodput_auto
from benchmarks.fleet.contenders import AUTO, OURS
from benchmarks.fleet.goodput import BUCKET_S, recovery_s
from benchmarks.goodput_auto import Auto, bounded
from benchmarks.goodput_capacity import Capacity, Key
from benchmarks.goodput_cells import CLOSED, Cell, Options
from benchmarks.goodput_plan import PEER_BAR, Results, best_split, by_seed, ratio_of, split_runs
from benchmarks.goodput_runs import ABLATIONS, RunResult
from benchmarks.rounds import Check
from benchmarks.statistics import BySeed, Interval, over_cells
from tandem.core.errors import TandemError

PEERS_BAR: Final = 1.0
"""Of the best peers' figures, in the geometric mean over cells."""


@dataclass(frozen=True)
class Contest:
    """A contender beside ours in one cell: attainments and requests in the objective per second by seed, and ours
    over theirs, in whichever of both the cell is compared by, where theirs is not 0."""

    contender: str
    prefills: int
    theirs: BySeed
    per_s: BySeed
    ratio: Interval | None


@dataclass(frozen=True)
class Found:
    """One cell. `splits` has the attainment by seed of each, by its number of prefill workers, `per_s` its requests
    in the objective per second; `best` is the best of them in the mean, by what the cell is compared by,
    `over_unified` its ratio to all unified workers over the seeds that both have. `figures` are medians over the
    seeds of the best split. `recovery_s` is by seed how long after a surge the best split needed to be back, None
    where it never was; empty without one. `shifts_s` is the same after each change of traffic, with the first seed:
    until it was back at what the best split for that phase has there."""

    cell: Cell
    rate: float
    splits: Mapping[int, BySeed]
    per_s: Mapping[int, BySeed]
    best: int
    over_unified: Interval | None
    figures: Mapping[str, float]
    recovery_s: Mapping[int, float | None]
    shifts_s: tuple[float | None, ...]
    peers: tuple[Contest, ...]
    ablated: tuple[Contest, ...]
    auto: Auto | None = None

    @property
    def attainment(self) -> float:
        """Of the best split, its mean over seeds."""
        return fmean(self.splits[self.best].values())

    @property
    def ours(self) -> BySeed:
        """What the best split is compared by."""
        return (self.per_s if self.cell.traffic in CLOSED else self.splits)[self.best]

    def theirs(self, contest: Contest) -> BySeed:
        """What another is compared by."""
        return contest.per_s if self.cell.traffic in CLOSED else contest.theirs


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

    def runs_of(split: int, contender: str) -> dict[int, RunResult]:
        return by_seed(results, options.run(cell, capacity, split, contender, 0), options.seeds)

    def contest(split: int, contender: str, theirs: Mapping[int, RunResult]) -> Contest:
        figures = {seed: result.compared(cell.tpot_ms) for seed, result in theirs.items()}
        ratio = ratio_of(by_split[best], figures)
        return Contest(contender, split, _attained(theirs, cell), _per_s(theirs, cell), ratio)

    splits = {split: runs_of(split, OURS) for split in by_split}
    mine = options.run(cell, capacity, best, OURS, 0)
    runs = list(splits[best].values())
    contests = [
        contest(split, contender, theirs)
        for contender in (*options.peers, *ABLATIONS)
        for split in sorted({0, best})
        if (theirs := runs_of(split, contender))
    ]
    peers = {
        (each.contender, each.prefills): each.per_s if cell.traffic in CLOSED else each.theirs
        for each in contests
        if each.contender in options.peers
    }
    return Found(
        cell=cell,
        rate=fmean(result.judged[cell.tpot_ms]["offered_per_s"] for result in runs),
        splits={split: _attained(each, cell) for split, each in splits.items()},
        per_s={split: _per_s(each, cell) for split, each in splits.items()},
        best=best,
        over_unified=ratio_of(by_split[best], by_split[0]) if best and 0 in by_split else None,
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
        auto=goodput_auto.auto_of(cell, runs_of(0, AUTO), by_split[best], splits, peers),
    )


def _attained(runs: Mapping[int, RunResult], cell: Cell) -> BySeed:
    return {seed: result.attainment(cell.tpot_ms) for seed, result in runs.items()}


def _per_s(runs: Mapping[int, RunResult], cell: Cell) -> BySeed:
    return {seed: result.judged[cell.tpot_ms]["goodput_per_s"] for seed, result in runs.items()}


def _recovery_s(result: RunResult, cell: Cell) -> float | None:
    """After its surge, until the objective is met as it has to be."""
    return recovery_s(result.by_arrival(cell.tpot_ms), result.changes_s[0], 1.0)


def shifts_s(run: RunResult, splits: Sequence[RunResult], tpot_ms: int) -> tuple[float | None, ...]:
    """After each change of traffic within what is counted: how long until attainment was back at 95 % of what the
    best of `splits` has between this change and the next."""
    buckets = run.by_arrival(tpot_ms)
    if not buckets:
        return ()
    edges = [*(at_s for at_s in run.changes_s if at_s >= run.begin_s), buckets[-1].begin_s + BUCKET_S]
    found = []
    for begin_s, end_s in pairwise(edges):
        best = max(goodput_auto.share(each.by_arrival(tpot_ms), begin_s, end_s) for each in splits)
        phase = [bucket for bucket in buckets if bucket.begin_s < end_s]
        found.append(recovery_s(phase, begin_s, best))
    return tuple(found)


def best_peer(found: Found) -> Contest | None:
    """The peer over which ours has the least ratio, in whichever split it was: each is compared with ours over the
    seeds that both have. None without one."""
    known = [(each.ratio.mean, place) for place, each in enumerate(found.peers) if each.ratio is not None]
    return found.peers[min(known)[1]] if known else None


def checks(found: Sequence[Found]) -> list[Check]:
    """Ours at the best split against every peer in every cell where peers ran, and against the best peers over all
    cells. Either falls short only where its whole interval does. What `unjudged` names is left out."""
    known = [(ratio, each, peer) for each in found for peer in each.peers if bounded(ratio := peer.ratio)]
    verdicts = []
    if known:
        ratio, each, peer = min(known, key=lambda one: one[0].high if one[0] else inf)
        assert ratio is not None
        named = (
            f"goodput over a peer's, {ratio.mean:.3f} in {each.cell.name} over {peer.contender}, upper end, the least"
        )
        verdicts.append(Check(named, ratio.high, PEER_BAR, True))
    over = over_best(found)
    if over is not None and bounded(over):
        named = f"goodput over the best peer's, geometric mean of the cells {over.mean:.3f}, upper end"
        verdicts.append(Check(named, over.high, PEERS_BAR, True))
    return verdicts + goodput_auto.checks(autos(found))


def autos(found: Sequence[Found]) -> list[Auto]:
    """The cells in which a split that follows the load has run."""
    return [each.auto for each in found if each.auto is not None]


def unjudged(found: Sequence[Found]) -> list[str]:
    """What could not be judged: everything where no peer ran, and intervals that too few seeds leave open."""
    contests = [(each, peer) for each in found for peer in each.peers if peer.ratio is not None]
    if not contests:
        return ["there is no peer to compare with in any cell"]
    told = []
    if open_ones := [(each, peer) for each, peer in contests if not bounded(peer.ratio)]:
        each, peer = open_ones[0]
        assert peer.ratio is not None
        told.append(
            f"{len(open_ones)} of {len(contests)} comparisons with peers have no bounds ({peer.contender} in "
            f"{each.cell.name} among them, {peer.ratio.seeds} seeds)"
        )
    if not bounded(over_best(found)):
        told.append("the geometric mean over cells has no bounds")
    return told


def over_best(found: Sequence[Found]) -> Interval | None:
    """Ours over the best peer of each cell, in the geometric mean over the cells that have one."""
    return over_all([(each.ours, each.theirs(peer)) for each in found if (peer := best_peer(each)) is not None])


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
        "goodput_per_s": {str(split): _by_seed(each) for split, each in found.per_s.items()},
        "figures": dict(found.figures),
        "recovery_s": {str(seed): each for seed, each in found.recovery_s.items()},
        "shifts_s": list(found.shifts_s),
        "peers": [_contest(each) for each in found.peers],
        "ablated": [_contest(each) for each in found.ablated],
        "auto": None if found.auto is None else goodput_auto.line_of(found.auto),
    }


def _contest(each: Contest) -> dict[str, object]:
    return {
        "contender": each.contender,
        "prefills": each.prefills,
        "attainment": _by_seed(each.theirs),
        "goodput_per_s": _by_seed(each.per_s),
        "ours_over_it": _bounds(each.ratio),
    }


def _by_seed(figures: BySeed) -> dict[str, float]:
    return {str(seed): figure for seed, figure in sorted(figures.items())}


def _bounds(interval: Interval | None) -> list[float | None] | None:
    if interval is None:
        return None
    return [each if isfinite(each) else None for each in (interval.mean, interval.low, interval.high)]
