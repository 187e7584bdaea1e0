"""The bench of splits against unified workers: what it searches, and that it finds which carries more."""

import pytest

from benchmarks.goodput_capacity import LADDER, SEEDS
from benchmarks.goodput_cells import CALM, Run
from benchmarks.goodput_runs import RunResult
from benchmarks.goodput_why import HELD_OUT, TrafficCase, at_load, best_of, probes

CASE = TrafficCase("bimodal", 8, 25)
KNEES = {(0, 25.0): 0.5, (0, 20.0): 0.3, (4, 75.0): 0.9, (4, 25.0): 0.7, (6, 25.0): 0.75}
"""Of (prefill workers, ITL target in ms); of all others it is 0.2."""


def result(run: Run) -> RunResult:
    knee = KNEES.get((run.prefills, run.itl_ms), 0.2)
    attainment = min(1.0, max(0.0, 0.9 - 5 * (run.scale - knee)))
    return RunResult(run, 1500, 1.0, {25: {"attainment": attainment}}, {}, 30.0, (), "a")


@pytest.mark.parametrize(("unified", "way", "knee"), [(True, (0, 25.0), 0.5), (False, (4, 75.0), 0.9)])
def test_the_way_that_carries_most_is_found(unified: bool, way: tuple[int, float], knee: float) -> None:
    results: dict[Run, RunResult] = {}
    while runs := list(probes(CASE, unified, results)):
        assert not set(runs) & set(results), "a run that is known is wanted again"
        results |= {run: result(run) for run in runs}
    best = best_of(CASE, unified, results)
    assert best.way == way
    assert best.knee == pytest.approx(knee, abs=0.02)
    assert {run.prefills == 0 for run in results} == {unified}
    assert {run.seed for run in results} == set(SEEDS)


def test_targets_of_unified_workers_are_tried_from_that_of_the_bound_on() -> None:
    ways = CASE.ways(unified=True)
    assert ways[0] == (0, 25.0)
    assert sorted(itl_ms for _, itl_ms in ways) == [15.0, 20.0, 25.0, 37.5, 75.0]


def test_both_run_at_shares_of_one_capacity_with_seeds_that_chose_nothing() -> None:
    assert not set(HELD_OUT) & set(SEEDS)
    calm, over = at_load(CASE, (4, 75.0), 0.8, 0.5, 2), at_load(CASE, (4, 75.0), 0.8, 1.1, 2)
    assert (calm.scale, calm.surge) == (0.4, 1.0)
    assert over.scale == pytest.approx(0.8 * CALM)
    assert over.scale * over.surge == pytest.approx(0.88)
    assert min(LADDER) < calm.scale
