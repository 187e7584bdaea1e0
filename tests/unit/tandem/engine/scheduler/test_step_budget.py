"""The chunk beside running sequences follows measured step time."""

import pytest

from tandem.core.entropy import SeededEntropy, unit
from tandem.engine.scheduler.step_budget import Budget, StepBudget, StepLoad, StepTimeModel
from tandem.engine.settings import SchedulerSettings

SETTINGS = SchedulerSettings(max_batched_tokens=2048, min_prefill_tokens=32, itl_target_s=0.05)


def seconds(load: StepLoad) -> float:
    """A machine: 4 ms, 50 µs per running sequence, 60 µs per prompt token, 5 ns per attended position."""
    return 0.004 + 5e-5 * load.decode_rows + 6e-5 * load.prefill_tokens + 5e-9 * load.prefill_context


def offer(budget: StepBudget, decode_rows: int, context: float) -> Budget:
    """What a single prompt that has computed `context` tokens is offered."""
    return budget.open(StepLoad(decode_rows, 0, 0.0)).offer(context)


def drive(budget: StepBudget, steps: int, noise: float = 0.0, factor: float = 1.0) -> list[float]:
    """Run steps with the chunk the budget chose; gives their times."""
    entropy, times = SeededEntropy(3), []
    for step in range(steps):
        rows, context = 8 + step % 48, float(step * 131 % 4096)
        tokens = offer(budget, rows, context).tokens if step % 3 else 0
        load = StepLoad(rows, tokens, tokens * (context + tokens / 2))
        times.append(seconds(load) * factor * (1 + noise * (unit(entropy) - 0.5)))
        budget.observe(load, times[-1])
    return times


def test_with_nothing_running_the_whole_batch_is_prompt() -> None:
    budget = offer(StepBudget(SETTINGS), 0, 0.0)
    assert budget.tokens == 2048
    assert "max_batched_tokens" in budget.reason


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_steps_come_close_to_the_target_and_stay_below_one_and_a_half_of_it(noise: float) -> None:
    budget = StepBudget(SETTINGS)
    drive(budget, 100, noise)
    times = drive(budget, 300, noise)
    chunked = sorted(time for step, time in enumerate(times) if step % 3)
    assert chunked[-1] <= 1.5 * SETTINGS.itl_target_s
    assert chunked[len(chunked) // 2] >= 0.8 * SETTINGS.itl_target_s


def test_it_follows_a_machine_that_becomes_slower() -> None:
    budget = StepBudget(SETTINGS)
    drive(budget, 200)
    before = offer(budget, 32, 1000.0).tokens
    drive(budget, 200, factor=2.0)
    after = offer(budget, 32, 1000.0).tokens
    assert after < 0.6 * before


def test_a_target_that_is_told_holds_until_it_is_taken_back() -> None:
    budget = StepBudget(SETTINGS)
    drive(budget, 200)
    own = offer(budget, 32, 1000.0).tokens
    budget.set_itl_target(0.02)
    steps = sorted(drive(budget, 300))
    assert max(steps) <= 1.5 * 0.02, "steps follow the target that was told"
    assert offer(budget, 32, 1000.0).tokens < 0.5 * own
    for nothing in (None, 0.0, -1.0, float("nan"), float("inf")):
        budget.set_itl_target(0.02)
        budget.set_itl_target(nothing)
    assert offer(budget, 32, 1000.0).tokens == pytest.approx(own, rel=0.05)


def test_a_full_target_leaves_the_floor_and_says_so() -> None:
    budget = StepBudget(SchedulerSettings(itl_target_s=0.005, min_prefill_tokens=32))
    drive(budget, 100)
    chosen = offer(budget, 40, 0.0)
    assert chosen.tokens == 32
    assert "floor" in chosen.reason


def test_one_stall_does_not_throw_the_model_off() -> None:
    budget = StepBudget(SETTINGS)
    drive(budget, 200)
    before = offer(budget, 32, 1000.0).tokens
    budget.observe(StepLoad(32, 500, 500 * 1000.0), 5.0)
    drive(budget, 40)
    assert offer(budget, 32, 1000.0).tokens == pytest.approx(before, rel=0.15)


def test_the_batch_bound_counts_running_sequences() -> None:
    budget = StepBudget(SchedulerSettings(max_batched_tokens=64, min_prefill_tokens=8, itl_target_s=10.0))
    assert offer(budget, 60, 0.0).tokens == 4
    assert offer(budget, 64, 0.0).tokens == 1


def test_long_idle_phases_do_not_wind_the_model_up() -> None:
    model = StepTimeModel(1e-4)
    for _ in range(5000):
        model.observe(StepLoad(16, 0, 0.0), 0.006)
    assert model.predict(StepLoad(16, 0, 0.0)) == pytest.approx(0.006, rel=0.01)
    model.observe(StepLoad(16, 400, 0.0), 0.030)
    assert 0.0 < model.predict(StepLoad(16, 200, 0.0)) < 0.1


def test_where_steps_vary_one_in_ten_may_miss_the_target_and_not_half_of_them() -> None:
    budget = StepBudget(SETTINGS)
    drive(budget, 300, noise=0.8)
    times = drive(budget, 600, noise=0.8)
    chunked = [time for step, time in enumerate(times) if step % 3]
    assert sum(time > SETTINGS.itl_target_s for time in chunked) < 0.2 * len(chunked)
