"""Which runs the goodput bench still needs. Pure: results so far in, runs out.

Every split runs with one seed, the best of them with more; a contender that is decided by the paired interval gets no
further seed, nor do those that are all alike.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from benchmarks.goodput_capacity import LADDER, SEEDS, Key, Points, next_probe
from benchmarks.goodput_cells import Cell, Options, Run
from benchmarks.goodput_runs import ABLATIONS, Result
from benchmarks.statistics import BySeed, paired
from tandem.fleetsim.contenders import OURS

Results = Mapping[Run, Result]
SEEDS_MIN: Final = 3
"""Fewer decide nothing."""
_ALIKE: Final = 0.01
"""An interval that is narrower than twice this around 1 tells that two are alike."""


def attained(results: Results, run: Run, tpot_ms: int, seeds: int) -> dict[int, float]:
    """By seed, what a run came to, as far as it is known."""
    each = ((seed, results.get(replace(run, seed=seed))) for seed in range(seeds))
    return {seed: result.attainment(tpot_ms) for seed, result in each if result is not None}


def decided(ours: BySeed, theirs: BySeed, bar: float = 1.0) -> bool:
    """Whether more seeds would change nothing: the interval of the ratio lies on one side of the bar, or so close
    around 1 that both are alike."""
    common = ours.keys() & theirs.keys()
    if len(common) < SEEDS_MIN:
        return False
    if not any(theirs[seed] for seed in common):
        return not any(ours[seed] for seed in common)
    ratio = paired({seed: ours[seed] for seed in common}, {seed: theirs[seed] for seed in common})
    alike = ratio.low > 1 - _ALIKE and ratio.high < 1 + _ALIKE
    return alike or ratio.low > bar or ratio.high < bar


def split_runs(options: Options, cell: Cell, capacity: float, results: Results) -> dict[int, dict[int, float]]:
    """Of every split of ours, the attainment by seed so far."""
    return {
        split: attained(results, options.run(cell, capacity, split, OURS, 0), cell.tpot_ms, options.seeds)
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
    if cell not in options.compared():
        return
    best = best_split(options, by_split)
    for split in sorted({0, best} & set(by_split)):
        for contender in options.peers_of(split, cell.workers):
            theirs = attained(results, options.run(cell, capacity, split, contender, 0), cell.tpot_ms, options.seeds)
            seeds = [seed for seed in sorted(by_split[best]) if seed not in theirs]
            if seeds and not decided(by_split[best], theirs):
                yield options.run(cell, capacity, split, contender, seeds[0])
    if options.ablations:
        for contender in ABLATIONS:
            for seed in range(min(options.seeds, options.seeds_ablated)):
                run = options.run(cell, capacity, best, contender, seed)
                if run not in results:
                    yield run


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
        playing = [split for split in playing if split == leader or not decided(so_far[split], so_far[leader])]
        if len(playing) == 1 and seed + 1 >= SEEDS_MIN:
            break
    return []


# ---- capacities ----


def probe(options: Options, key: Key, split: int, rung: int, seed: int) -> Run:
    """A run of the search for a capacity: the traffic of its cells without an overload."""
    cell = Cell(key[0], key[1], 1.0, key[2])
    return options.run(cell, LADDER[rung], split, OURS, seed)


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
