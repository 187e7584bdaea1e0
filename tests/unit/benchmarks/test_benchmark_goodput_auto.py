"""A split that follows the load in the goodput bench: which runs it adds, what it is held to, what is kept."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import goodput_auto, goodput_judge, goodput_plan, goodput_report
from benchmarks.fleet.contenders import AUTO, OURS
from benchmarks.fleet.goodput import Bucket
from benchmarks.goodput_auto import Auto, after_shifts, checks, counted, moves_per_min, unjudged
from benchmarks.goodput_capacity import Capacity
from benchmarks.goodput_cells import SHIFTING, STATIONARY, TRAFFICS, Cell, Options, Run
from benchmarks.goodput_code import codes
from benchmarks.goodput_results import ResultsFile
from benchmarks.goodput_runs import RunResult, SplitRow, carry_out, fleet_of
from benchmarks.statistics import BySeed

CELL = Cell("bimodal", 8, 0.95, 50)
SHIFTS = Cell("shifting", 8, 0.8, 25)
ALONE = Options(peers=(), ablations=False)
EVEN = {0: 0.8, 1: 0.81, 2: 0.79, 3: 0.8, 4: 0.8}


def result(run: Run, attainment: float, held: tuple[SplitRow, ...] = ()) -> RunResult:
    figures = {"attainment": attainment, "goodput_per_s": 10 * attainment, "offered": 1200.0, "offered_per_s": 10.0}
    figures |= {"ttft_p90_s": 1.0, "tpot_p90_s": 0.02, "itl_p99_s": 0.03, "tokens_per_s": 1000.0}
    return RunResult(run, 1500, 2.0, {25: figures, 50: figures}, {}, 30.0, (), "a", held)


def falling(run: Run) -> float:
    return 0.9 - 0.1 * run.prefills + 0.01 * run.seed


def played(options: Options, cell: Cell, of: Callable[[Run], float] = falling) -> dict[Run, RunResult]:
    results: dict[Run, RunResult] = {}
    while runs := list(goodput_plan.wanted(options, cell, 0.6, results)):
        assert not set(runs) & set(results), "a run that is known is wanted again"
        results |= {run: result(run, of(run)) for run in runs}
    return results


def auto(cell: Cell = CELL, times: float = 1.0, moves: float = 0.0, after: float | None = None) -> Auto:
    mine = {seed: times * each for seed, each in EVEN.items()}
    shifted: BySeed = {} if after is None else {seed: after * each for seed, each in EVEN.items()}
    return Auto(
        cell=cell,
        attained=mine,
        mine=mine,
        best=EVEN,
        moves=dict.fromkeys(EVEN, moves),
        held=dict.fromkeys(EVEN, ((0.0, 0, None, 0), (40.0, 2, 50.0, 2))),
        peers={("a", 0): {seed: 0.99 * each for seed, each in EVEN.items()}, ("b", 2): dict.fromkeys(EVEN, 0.0)},
        shifted=shifted,
        best_shifted={} if after is None else EVEN,
    )


def missed(*autos: Auto) -> list[str]:
    return [check.name for check in checks(autos) if not check.met]


def seeds(results: dict[Run, RunResult], contender: str) -> list[int]:
    return sorted(run.seed for run in results if (run.contender, run.prefills) == (contender, 0))


def test_it_runs_in_every_cell_beside_the_best_split_until_it_is_told_on_which_side_of_the_bar() -> None:
    results = played(ALONE, CELL)
    assert seeds(results, AUTO) == seeds(results, OURS) == [0, 1, 2], "alike in all seeds"
    assert {run.prefills for run in results if run.contender == AUTO} == {0}
    close = played(ALONE, CELL, lambda run: 0.8 + 0.1 * (run.seed % 2 if run.contender == AUTO else run.seed % 3))
    assert seeds(close, AUTO) == seeds(close, OURS) == [0, 1, 2, 3, 4]
    assert not any(run.contender == AUTO for run in played(replace(ALONE, auto=False), CELL))


def test_where_traffic_shifts_every_split_has_some_seeds_and_nowhere_else() -> None:
    def least(cell: Cell) -> int:
        results = played(ALONE, cell)
        return min(sum((run.contender, run.prefills) == (OURS, k) for run in results) for k in ALONE.splits(8))

    assert least(SHIFTS) == ALONE.seeds_shifted
    assert least(replace(SHIFTS, load=1.1)) == least(CELL) == 1
    assert not set(SHIFTING) & set(STATIONARY)
    assert {"bursts"} == set(TRAFFICS) - set(SHIFTING) - set(STATIONARY)


def test_its_workers_are_of_role_auto_and_its_name_says_so() -> None:
    run = ALONE.run(CELL, 0.6, 0, AUTO, 0)
    assert fleet_of(run).roles == ("auto",) * 8
    assert fleet_of(run).worker.itl_target_s == pytest.approx(0.05)
    assert run.split == "8 auto"


def test_bars_are_those_of_the_load_and_a_ratio_falls_short_with_its_whole_interval() -> None:
    over = replace(CELL, load=1.1)
    assert missed(auto(), auto(over)) == []
    assert any("up to the capacity" in name for name in missed(auto(times=0.96), auto(over)))
    assert not any("above the capacity" in name for name in missed(auto(), auto(over, times=0.96)))
    assert any("above the capacity" in name for name in missed(auto(), auto(over, times=0.94)))
    assert any("geometric mean" in name and "best split" in name for name in missed(auto(times=0.98)))
    wide = replace(auto(), mine={0: 0.3, 1: 1.0, 2: 0.9, 3: 0.5, 4: 0.8})
    assert missed(wide) == [], "the interval reaches above every bar"


def test_peers_are_judged_in_each_cell_and_over_all() -> None:
    named = [check.name for check in checks([auto()])]
    assert sum("peer" in name for name in named) == 2
    assert [name for name in missed(auto(times=0.96)) if "auto over a peer" in name]
    assert not [name for name in missed(auto(times=0.985)) if "peer" in name and "mean" not in name]
    assert auto().over_peers.keys() == {("a", 0)}, "there is no ratio to a peer that met nothing"


def test_moves_are_judged_where_traffic_is_stationary() -> None:
    assert missed(auto(moves=1.2))
    assert missed(auto(moves=0.9)) == []
    assert missed(auto(Cell("bursts", 8, 0.8, 50), moves=3.0), auto(SHIFTS, moves=3.0, after=1.0)) == []
    assert missed(auto(replace(CELL, load=1.1), moves=3.0)) == []


def test_moves_are_counted_within_the_window() -> None:
    run = ALONE.run(CELL, 0.6, 0, AUTO, 0)
    held: tuple[SplitRow, ...] = ((0.0, 0, None, 0), (5.0, 4, 50.0, 4), (60.0, 5, 50.0, 5), (90.0, 3, 50.0, 7))
    assert moves_per_min(result(run, 0.9, held), 50) == pytest.approx(3 / 2.0)
    assert moves_per_min(result(run, 0.9), 50) == 0.0


def test_after_a_shift_it_is_held_to_the_best_split_of_that_phase_from_thirty_seconds_on() -> None:
    """Changes at 40 and 90 s, buckets of 5 s from 30 s on. The first 30 s after a change say nothing."""
    run = Run("shifting", 8, 0, AUTO, 0.5, 1.0, 25, 25.0, 0)

    def of(*met: int) -> RunResult:
        return replace(result(run, 0.8), buckets={25: [(10, each) for each in met]}, changes_s=(10.0, 40.0, 90.0))

    # In front: two buckets; the first phase has ten, the second eight.
    prompts = of(9, 9, *[10] * 10, *[2] * 8)
    answers = of(9, 9, *[1] * 10, *[8] * 8)
    mine = of(9, 9, *[0] * 6, 9, 9, 9, 9, *[0] * 6, 8, 7)
    found = after_shifts(mine, [prompts, answers], 25)
    assert found == pytest.approx((51 / 60, 56 / 60))
    assert after_shifts(result(run, 0.8), [prompts], 25) is None
    assert after_shifts(replace(mine, changes_s=(10.0,)), [prompts], 25) is None, "no change is counted"
    assert checks([auto(SHIFTS, after=0.96)])
    assert missed(auto(SHIFTS, after=0.96)) == []
    assert any("after a shift" in name for name in missed(auto(SHIFTS, after=0.9)))


def test_buckets_count_where_they_lie_wholly_within() -> None:
    buckets = [Bucket(0.0, 4, 1), Bucket(5.0, 4, 2), Bucket(10.0, 4, 4)]
    assert counted(buckets, 1.0, 15.0) == (8, 6)
    assert counted(buckets, 0.0, 14.0) == (8, 3)


def test_what_could_not_be_judged_is_said() -> None:
    assert "has not run" in unjudged([])[0]
    one_seed = replace(auto(), mine={0: 0.8})
    assert "1 of 2 cells" in unjudged([auto(), one_seed])[0]
    assert any("after a shift" in said for said in unjudged([auto(SHIFTS)]))
    assert unjudged([auto(), auto(SHIFTS, after=1.0)]) == []


def test_cells_are_found_with_it_and_told(tmp_path: Path) -> None:
    results = played(ALONE, CELL)
    key = (CELL.traffic, CELL.workers, CELL.tpot_ms)
    (found,) = goodput_judge.found_in(ALONE, [CELL], {key: Capacity(0.6, 0)}, results)
    (one,) = goodput_judge.autos([found])
    assert found.best == 0
    assert one.over_best is not None
    assert one.over_best.mean == pytest.approx(1.0)
    assert "1.000 [1.000, 1.000]" in goodput_report.autos([one])
    assert goodput_report.autos([auto(SHIFTS, after=0.9)]).splitlines()[-1].endswith("0.900 [0.900, 0.900]")
    goodput_report.write_json(tmp_path / "found.json", {}, {}, [found], [])
    assert '"over_best": [1.0, ' in (tmp_path / "found.json").read_text()
    assert goodput_auto.line_of(auto())["held"]


def test_a_run_is_written_down_with_its_splits_and_read_again(tmp_path: Path) -> None:
    run = replace(ALONE.run(CELL, 0.4, 0, AUTO, 0), length=0.1)
    first = carry_out(run)
    assert first.held
    assert first.held[0][1] == 0
    path = tmp_path / "results.jsonl"
    ResultsFile(path, codes()).add(first)
    assert ResultsFile(path, codes()).results == {run: first}
