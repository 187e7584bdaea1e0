"""Whether separate prefill and decode workers carry more than unified ones whose ITL target is tuned, and where.

    python -m benchmarks.goodput_why                     six kinds of traffic, TPOT 25, 50, 100 ms, 8 workers
    python -m benchmarks.goodput_why --tpot 25 --traffic bimodal --workers 16

Of every kind of traffic and bound on TPOT, the goodput knee (the load up to which 90 % of the offered requests meet
TTFT and TPOT) of unified workers under their best ITL target, and that of the best split under its own. Then both run
at shares of the greater knee, with seeds that chose nothing. Runs are kept: an interrupted search goes on.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from benchmarks.fleet.contenders import OURS
from benchmarks.fleet.goodput import knee
from benchmarks.goodput import GoodputBench
from benchmarks.goodput_capacity import LADDER, SEEDS, SHARE, Points, length_of, next_probe
from benchmarks.goodput_cells import CALM, SHARES, TRAFFICS, Run, prefills
from benchmarks.goodput_code import codes
from benchmarks.goodput_plan import Results
from benchmarks.goodput_results import ResultsFile

TPOTS_MS: Final = (25, 50, 100)
ITL_SHARES: Final = (0.6, 0.8, 1.0, 1.5, 3.0)
"""Of TPOT: the ITL targets that workers are tried with."""
LOADS: Final = (0.5, 0.8, 0.95, 1.1)
HELD_OUT: Final = (2, 3, 4)
"""Seeds of the runs at shares of the knee."""
_ROOT: Final = Path(__file__).parent.parent


@dataclass(frozen=True)
class TrafficCase:
    """A kind of traffic on so many workers under a bound on TPOT."""

    traffic: str
    workers: int
    tpot_ms: int

    def splits(self, unified: bool) -> tuple[int, ...]:
        """Numbers of prefill workers."""
        every = tuple(dict.fromkeys(prefills(share, self.workers) for share in SHARES))
        return tuple(split for split in every if (split == 0) == unified)

    def ways(self, unified: bool) -> list[tuple[int, float]]:
        """(prefill workers, ITL target in ms); the TPOT itself first."""
        shares = sorted(ITL_SHARES, key=lambda share: abs(share - 1.0))
        return [(split, round(share * self.tpot_ms, 3)) for split in self.splits(unified) for share in shares]

    def run(self, way: tuple[int, float], scale: float, seed: int, length: float, surge: float = 1.0) -> Run:
        """One simulation of it."""
        return Run(
            self.traffic, self.workers, way[0], OURS, round(scale, 4), surge, self.tpot_ms, way[1], seed, length
        )


@dataclass(frozen=True)
class Best:
    """The way that carries most, (prefill workers, ITL target in ms), and its knee in units of the guess."""

    way: tuple[int, float]
    knee: float


def points_of(case: TrafficCase, ways: Sequence[tuple[int, float]], results: Results) -> Points:
    """By (place of the way, rung), the mean attainment of rungs that ran with all seeds of the search."""
    found: dict[tuple[int, int], float] = {}
    for place, way in enumerate(ways):
        for rung, scale in enumerate(LADDER):
            each = [results.get(case.run(way, scale, seed, length_of(case.traffic))) for seed in SEEDS]
            known = [result.attainment(case.tpot_ms) for result in each if result is not None]
            if len(known) == len(SEEDS):
                found[place, rung] = fmean(known)
    return found


def probes(case: TrafficCase, unified: bool, results: Results) -> Iterator[Run]:
    """What the search of the best way still needs."""
    ways = case.ways(unified)
    following = next_probe(points_of(case, ways, results), range(len(ways)))
    if following is not None:
        place, rung = following
        yield from (case.run(ways[place], LADDER[rung], seed, length_of(case.traffic)) for seed in SEEDS)


def best_of(case: TrafficCase, unified: bool, results: Results) -> Best:
    """Once the search is over."""
    ways = case.ways(unified)
    points = points_of(case, ways, results)
    knees = {
        place: knee([(LADDER[rung], share) for (each, rung), share in points.items() if each == place], SHARE)
        for place in range(len(ways))
    }
    place = max(knees, key=lambda each: (knees[each], -each))
    return Best(ways[place], knees[place])


def at_load(case: TrafficCase, way: tuple[int, float], capacity: float, load: float, seed: int) -> Run:
    """A run at a share of a capacity; above 1 it is the share in a surge."""
    over = load > 1
    return case.run(way, capacity * (CALM if over else load), seed, 1.0, round(load / CALM, 4) if over else 1.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, run, print the table; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--traffic", nargs="*", default=TRAFFICS)
    parser.add_argument("--tpot", type=int, nargs="*", default=TPOTS_MS, help="bounds in ms")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--results", type=Path, default=_ROOT / "build" / "goodput_why.jsonl")
    options = parser.parse_args(arguments)
    cases = [
        TrafficCase(traffic, options.workers, tpot_ms) for traffic in options.traffic for tpot_ms in options.tpot
    ]
    options.results.parent.mkdir(exist_ok=True)
    file = ResultsFile(options.results, codes())
    bench = GoodputBench(file, options.jobs)
    bench.carry_out(
        lambda: (run for case in cases for unified in (True, False) for run in probes(case, unified, file.results)),
        "knees",
    )
    found = {case: (best_of(case, True, file.results), best_of(case, False, file.results)) for case in cases}
    bench.carry_out(lambda: iter(_checks(found)), "shares of the knee")
    rows = [_row(case, *found[case], file.results) for case in cases]
    print("\n".join(json.dumps(row) for row in rows))
    better = sum(split.knee > 1.05 * unified.knee for unified, split in found.values())
    print(f"a split carries over 5 % more than unified in {better} of {len(rows)} cases", file=sys.stderr)
    return 0


def _checks(found: dict[TrafficCase, tuple[Best, Best]]) -> list[Run]:
    return [
        at_load(case, best.way, max(each.knee for each in bests), load, seed)
        for case, bests in found.items()
        for best in bests
        for load in LOADS
        for seed in HELD_OUT
    ]


def _row(case: TrafficCase, unified: Best, split: Best, results: Results) -> dict[str, object]:
    capacity = max(unified.knee, split.knee)

    def shares(best: Best) -> list[float]:
        return [
            round(
                fmean(
                    results[at_load(case, best.way, capacity, load, seed)].compared(case.tpot_ms) for seed in HELD_OUT
                ),
                3,
            )
            for load in LOADS
        ]

    return {
        "traffic": case.traffic,
        "tpot_ms": case.tpot_ms,
        "unified": [unified.way, round(unified.knee, 3), shares(unified)],
        "split": [split.way, round(split.knee, 3), shares(split)],
        "gain": round(split.knee / unified.knee, 3) if unified.knee else None,
    }


if __name__ == "__main__":
    sys.exit(main())
