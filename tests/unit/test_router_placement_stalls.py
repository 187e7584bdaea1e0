"""Prompts that hold streams up: where it was so of late, answers are expected to take longer, and go elsewhere."""

import pytest

from router.placement import CostModel, Placement, WorkerView
from router.settings import CostPriors
from tests.unit.test_router_placement import ask, decide, load, view

STEP_MS, SEQUENCE_MS = 20.0, 0.5
RUNNING = 10
ALONE_S = (STEP_MS + SEQUENCE_MS * RUNNING) / 1e3
"""What a step of that batch takes with no prompt in it."""


def model() -> CostModel:
    return CostModel(CostPriors(step_ms=STEP_MS, step_ms_per_sequence=SEQUENCE_MS, step_ms_per_1k_context=0.0))


def held_up(costs: CostModel, worker_id: str, times: float, reports: int = 2000) -> None:
    """A worker tells that its steps take so many times as long as its batch alone would make them."""
    told = load(running=RUNNING, step_s=times * ALONE_S, queued_prompt_tokens=1)
    for _ in range(reports):
        costs.observe_load(worker_id, told)


def unified(worker_id: str) -> WorkerView:
    return view(worker_id, "unified", load=load(running=RUNNING))


def test_where_prompts_hold_streams_up_answers_take_longer() -> None:
    costs = model()
    held_up(costs, "w", 4.0)
    assert 2.0 < costs.stalls.stretch("w") < 4.0
    assert costs.stalls.stretch("other") == 1.0


def test_the_speed_is_the_mean_over_time_not_over_steps() -> None:
    costs = model()
    for _ in range(2000):
        held_up(costs, "w", 1.0, reports=1)
        held_up(costs, "w", 100.0, reports=1)
    assert 1.5 < costs.stalls.stretch("w") < 2.0, "half of the time streams advance"


def test_differences_within_noise_and_faster_steps_say_nothing() -> None:
    costs = model()
    held_up(costs, "slower", 1.08)
    held_up(costs, "faster", 0.5)
    assert costs.stalls.stretch("slower") == costs.stalls.stretch("faster") == 1.0


def test_one_long_step_says_little_and_a_worker_without_work_holds_nothing_up() -> None:
    costs = model()
    held_up(costs, "w", 100.0, reports=10)
    assert costs.stalls.stretch("w") == 1.0
    held_up(costs, "w", 4.0)
    for _ in range(2000):
        costs.observe_load("w", load(step_s=4.0 * ALONE_S))
    assert costs.stalls.stretch("w") == 1.0
    held_up(costs, "w", 4.0)
    costs.forget("w")
    assert costs.stalls.stretch("w") == 1.0


@pytest.mark.parametrize(("stalled", "chosen"), [("a", "b"), ("b", "a")])
def test_an_answer_goes_where_it_is_held_up_less(stalled: str, chosen: str) -> None:
    costs = model()
    held_up(costs, stalled, 4.0)
    found = decide(ask(100, max_tokens=1000), [unified("a"), unified("b")], costs)
    assert isinstance(found, Placement)
    assert found.decode == chosen
    best, other = (cost for _, cost in found.costs)
    assert best.decode_ms < other.decode_ms
    assert best.interference_ms == other.interference_ms
