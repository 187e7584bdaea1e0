"""The bench of a split with real processes: both sides play the same requests on one model, and are judged alike."""

from dataclasses import replace

import pytest

from benchmarks.auto_split import Played, checks_of, report, service
from benchmarks.auto_split_cells import (
    CHOSEN,
    SLO,
    SLOW,
    UNIFIED,
    WAYS,
    LoadCell,
    PoolLayout,
    SplitMetrics,
    environment,
    measured,
    model,
    predicted,
    requests_of,
    workload_of,
)
from benchmarks.fleet.scenarios.generated import MODEL
from tandem.apps.bench.outcome import Outcome
from tandem.engine.simulated.presets import preset
from tandem.process.settings import load_settings
from tandem.spec.reading import service_of
from tandem.worker.process_settings import WorkerSettings

CELL = LoadCell("bimodal", 0.6, 1, 4.0, 12.0)
FIGURES = SplitMetrics(100, 0.9, 1.0, 0.08, 0.1)


def test_worker_processes_are_told_of_the_model_that_is_simulated() -> None:
    told = load_settings(WorkerSettings, ["--worker_id", "w", "--role", "unified"], environment())
    assert told.simulated.resolved == model()
    assert model().base_s == pytest.approx(SLOW * preset(MODEL).model.base_s)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_every_way_is_a_service_of_four_workers_with_the_objective(way: PoolLayout) -> None:
    found = service_of(service(way))
    assert sum(pool.first_replicas for pool in found.spec.pools) == 4
    assert found.spec.slo.bounds == SLO


def test_both_sides_play_the_same_requests() -> None:
    simulated, real = requests_of(CELL), workload_of(CELL).items
    assert simulated
    for one, other in zip(simulated, real, strict=True):
        assert (one.arrival_s, one.input_tokens) == (other.arrival_s, other.input_tokens)
        assert one.output_tokens == one.max_tokens == other.output_tokens
    assert requests_of(CELL)[0] is not simulated[0], "a run leaves its marks on requests"


def test_what_is_expected_depends_on_nothing_but_the_load() -> None:
    assert predicted(CELL, UNIFIED) == predicted(CELL, UNIFIED)
    assert 0 < predicted(CELL, CHOSEN).offered < len(requests_of(CELL))


def test_refused_late_and_warm_up_requests_are_judged_as_they_should_be() -> None:
    good = Outcome(5.0, 5.0, 8.0, first_s=6.0, gaps_s=(0.05, 0.07), output_tokens=3)
    late = replace(good, first_s=5.0 + 2 * (SLO.ttft_s or 0.0))
    refused = Outcome(6.0, 6.0, 6.1, error="http_503:queue_full")
    early = replace(refused, scheduled_s=1.0)
    found = measured(CELL, [good, late, refused, early])
    assert found.offered == 3
    assert found.attainment == pytest.approx(1 / 3)
    assert found.itl_p99_s == pytest.approx(0.07)
    assert measured(CELL, [early]).attainment == 0.0


def played(attainment: float, expected: float, itl_s: float, expected_itl_s: float) -> Played:
    real = replace(FIGURES, attainment=attainment, itl_p99_s=itl_s)
    return Played((real,), replace(FIGURES, attainment=expected, itl_p99_s=expected_itl_s))


def test_bars_are_the_best_split_unified_gaps_and_the_simulator() -> None:
    ways = {way.name: played(0.8, 0.8, 0.1, 0.1) for way in WAYS}
    ways["3P1D"] = played(1.0, 0.9, 0.06, 0.06)
    ways[CHOSEN.name] = played(0.98, 0.9, 0.06, 0.06)
    found = checks_of(CELL, ways)
    assert [each.met for each in found] == [True, True, True]
    ways[CHOSEN.name] = played(0.9, 0.9, 0.08, 0.06)
    ways["1P3D"] = played(0.6, 0.8, 0.1, 0.1)
    assert [each.met for each in checks_of(CELL, ways)] == [False, False, False]
    # Without shorter gaps expected nothing is said about them.
    ways[CHOSEN.name] = played(0.98, 0.9, 0.1, 0.1)
    assert len(checks_of(CELL, ways)) == 2
    assert "98.0%" in report(CELL, ways)
