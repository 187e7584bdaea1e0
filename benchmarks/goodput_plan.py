"""Which runs the goodput bench still needs. Pure: results so far in, runs out.

Every split runs with one seed, the best of them with more; one that is far behind with the first or decided by the
paired interval gets no further seed, nor do those that are all alike. Where peers run, ours at its best split and the
leading peers have all seeds; another peer gets no further one when its interval lies on one side of the bar that it
is judged by.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final, TypeVar

from benchmarks.fleet.contenders import AUTO, OURS
from benchmarks.goodput_capacity import LADDER, SEEDS, Key, Points, length_of, next_probe
from benchmarks.goodput_cells import SHIFTING, Cell, Options, Run
from benchmarks.goodput_runs import ABLATIONS, RunResult
from benchmarks.statistics import BySeed, Interval, paired

T = TypeVar("T")
Results = Mapping[Run, RunResult]
SEEDS_MIN: Final = 3
"""Fewer decide nothing."""
PEER_BAR: Final = 0.98
"""Of every peer's figure, in a cell whose interval does not reach it."""
CELL_BAR: Final = 0.97
"""What a split that follows the load has of the best fixed one's figure, in a cell up to its capacity,"""
OVERLOAD_BAR: Final = 0.95
"""and above it."""
_ALIKE: Final = 0.01
"""An interval that is narrower than twice this around 1 tells that two are alike."""
_FAR: Final = 0.8
"""A split that reaches less than this of another under the first seed is not the better one: both see the same
traffic, and their ratio scatters by some hundredths over seeds."""


def by_seed(results: Results, run: Run, seeds: int) -> dict[int, RunResult]:
    """What a run came to under each seed, as far as it is known."""
    each = ((seed, results.get(replace(run, seed=seed))) for seed in range(seeds))
    return {seed: result for seed, result in each if result is not None}


def compared(results: Results, run: Run, tpot_ms: int, seeds: int) -> dict[int, float]:
    """By seed, the figure by which contenders are compared."""
    return {seed: result.compared(tpot_ms) for seed, result in by_seed(results, run, seeds).items()}


def decided(ours: BySeed, theirs: BySeed) -> bool:
    """Whether more seeds would not change which is better: the interval of the ratio lies on one side of 1, or so
    close around it that both are alike."""
    ratio = ratio_of(ours, theirs)
    if ratio is None:
        common = ours.keys() & theirs.keys()
        return len(common) >= SEEDS_MIN and not any(ours[seed] for seed in common)
    return ratio.seeds >= SEEDS_MIN and (
        ratio.low > 1.0 or ratio.high < 1.0 or (ratio.low > 1 - _ALIKE and ratio.high < 1 + _ALIKE)
    )


def unsettled(ours: BySeed, peers: Mapping[T, BySeed]) -> list[T]:
    """The peers that get another seed, `ours` being known for all. Whoever may still be the best of them, because
    his interval reaches below the least ratio of ours over theirs, gets all seeds; others until it is told on which
    side of the bar they lie."""
    ratios = {peer: ratio_of(ours, theirs) for peer, theirs in peers.items()}
    least = min((ratio.mean for ratio in ratios.values() if ratio is not None), default=0.0)
    return [
        peer
        for peer, ratio in ratios.items()
        if len(ours.keys() & peers[peer].keys()) < len(ours)
        and (ratio is None or ratio.seeds < SEEDS_MIN or ratio.low <= least or ratio.low <= PEER_BAR <= ratio.high)
    ]


def peer_rounds(ours: BySeed, peers: Mapping[T, BySeed]) -> list[tuple[T, int]]:
    """(peer, seed) of those that have to run next; nothing when they are done. Goes through the decisions from the
    first on, so an interruption changes none."""
    counts = dict.fromkeys(peers, 0)
    while True:
        so_far = {peer: {seed: each[seed] for seed in range(counts[peer])} for peer, each in peers.items()}
        going = unsettled(ours, so_far)
        missing = [(peer, counts[peer]) for peer in going if counts[peer] not in peers[peer]]
        if missing or not going:
            return missing
        for peer in going:
            counts[peer] += 1


def ratio_of(ours: BySeed, theirs: BySeed) -> Interval | None:
    """Over the seeds that both have; None where theirs is 0 in all of them, or none is common."""
    common = {seed: theirs[seed] for seed in theirs if seed in ours}
    return paired(ours, common) if any(common.values()) else None


def split_runs(options: Options, cell: Cell, capacity: float, results: Results) -> dict[int, dict[int, float]]:
    """Of every split of ours, the figure by which it is compared, by seed so far."""
    return {
        split: compared(results, options.run(cell, capacity, split, OURS, 0), cell.tpot_ms, options.seeds)
        for split in options.splits(cell.workers)
    }


def best_splits(options: Options, by_split: Mapping[int, Mapping[int, float]]) -> list[int]:
    """Those that run with all seeds: the best by the first one, of equals the one with fewer prefill workers."""
    ordered = sorted(by_split, key=lambda split: (-by_split[split].get(0, 0.0), split))
    return ordered[: options.splits_kept]


def best_split(options: Options, by_split: Mapping[int, Mapping[int, float]]) -> int:
    """The best in the mean over seeds, of those that ran with more than one; one that was given up early is behind
    by its interval."""
    kept = best_splits(options, by_split)
    most = max(len(by_split[split]) for split in kept)
    whole = [split for split in kept if len(by_split[split]) == most]
    return max(whole, key=lambda split: (fmean(by_split[split].values()), -split))


def wanted(options: Options, cell: Cell, capacity: float, results: Results) -> Iterator[Run]:
    """Runs of a cell that can begin now; none when the cell is done or waits for those under way."""
    by_split = split_runs(options, cell, capacity, results)
    missing = [split for split, each in by_split.items() if 0 not in each]
    if missing:
        yield from (options.run(cell, capacity, split, OURS, 0) for split in missing)
        return
    rounds = _split_rounds(options, by_split)
    if rounds:
        yield from (options.run(cell, capacity, split, OURS, seed) for split, seed in rounds)
        return
    best = best_split(options, by_split)
    mine = by_split[best]
    compared_here = cell in options.compared()
    if options.peers and compared_here and (lacking := [seed for seed in range(options.seeds) if seed not in mine]):
        yield from (options.run(cell, capacity, best, OURS, seed) for seed in lacking)
        return
    if options.auto and (
        runs := [run for run in _auto_runs(options, cell, capacity, best, results) if run not in results]
    ):
        yield from runs
        return
    if not compared_here:
        return
    peers = {
        (split, contender): compared(
            results, options.run(cell, capacity, split, contender, 0), cell.tpot_ms, options.seeds
        )
        for split in sorted({0, best} & set(by_split))
        for contender in options.peers_of(split, cell.workers)
    }
    for (split, contender), seed in peer_rounds(mine, peers):
        yield options.run(cell, capacity, split, contender, seed)
    if options.ablations:
        for contender in ABLATIONS:
            for seed in range(min(options.seeds, options.seeds_ablated)):
                run = options.run(cell, capacity, best, contender, seed)
                if run not in results:
                    yield run


def _auto_runs(options: Options, cell: Cell, capacity: float, best: int, results: Results) -> Iterator[Run]:
    """A split that follows the load and the best fixed one, seed by seed, until it is told on which side of its bar
    the first lies, with all seeds where peers run; and the fixed ones that may be the best after a shift."""
    first, other = (
        options.run(cell, capacity, prefills, contender, 0) for prefills, contender in ((0, AUTO), (best, OURS))
    )
    auto, fixed = (compared(results, run, cell.tpot_ms, options.seeds) for run in (first, other))
    bar = CELL_BAR if cell.load <= 1 else OVERLOAD_BAR
    for seed in range(options.seeds):
        ratio = ratio_of(*({each: one[each] for each in range(seed) if each in one} for one in (auto, fixed)))
        told = ratio is not None and ratio.seeds >= SEEDS_MIN and not ratio.low <= bar <= ratio.high
        if told and not (options.peers and cell in options.compared()):
            break
        yield from (replace(run, seed=seed) for run in (first, other))
        if seed + 1 >= SEEDS_MIN and (seed not in auto or seed not in fixed):
            break
    if shifts(cell):
        for split in options.splits(cell.workers):
            for seed in range(min(options.seeds, options.seeds_shifted)):
                yield options.run(cell, capacity, split, OURS, seed)


def shifts(cell: Cell) -> bool:
    """Whether its traffic changes its kind, without a surge that would hide it."""
    return cell.traffic in SHIFTING and cell.load <= 1


def _split_rounds(options: Options, by_split: Mapping[int, BySeed]) -> list[tuple[int, int]]:
    """(split, seed) of the seed that those of the best which are still in play have to run with; nothing when they
    are done. Goes through the seeds from the first on, so an interruption changes no decision."""
    playing = best_splits(options, by_split)
    for seed in range(options.seeds):
        missing = [split for split in playing if seed not in by_split[split]]
        if missing:
            return [(split, seed) for split in missing]
        so_far = {split: {each: by_split[split][each] for each in range(seed + 1)} for split in playing}
        leader = max(playing, key=lambda split: (fmean(so_far[split].values()), -split))
        playing = [
            split
            for split in playing
            if split == leader
            or not (decided(so_far[split], so_far[leader]) or so_far[split][0] < _FAR * so_far[leader][0])
        ]
        if len(playing) == 1 and seed + 1 >= SEEDS_MIN:
            break
    return []


# ---- capacities ----


def probe(options: Options, key: Key, split: int, rung: int, seed: int) -> Run:
    """A run of the search for a capacity: the traffic of its cells without an overload."""
    cell = Cell(key[0], key[1], 1.0, key[2])
    return replace(options.run(cell, LADDER[rung], split, OURS, seed), length=length_of(key[0]))


def points_of(options: Options, key: Key, results: Results) -> Points:
    """What is known of a capacity: the mean attainment of rungs that have all seeds."""
    found: dict[tuple[int, int], float] = {}
    for split in options.splits(key[1]):
        for rung in range(len(LADDER)):
            each = [results.get(probe(options, key, split, rung, seed)) for seed in SEEDS]
            known = [result.attainment(key[2]) for result in each if result is not None]
            if len(known) == len(SEEDS):
                found[split, rung] = fmean(known)
    return found


def probes_wanted(options: Options, key: Key, results: Results) -> list[Run]:
    """The runs that the search for a capacity needs next; none when it is over."""
    following = next_probe(points_of(options, key, results), options.splits(key[1]))
    if following is None:
        return []
    runs = [probe(options, key, *following, seed) for seed in SEEDS]
    return [run for run in runs if run not in results]


def keys_of(cells: Sequence[Cell]) -> list[Key]:
    """Of which capacities cells take shares."""
    return list(dict.fromkeys((cell.traffic, cell.workers, cell.tpot_ms) for cell in cells))
