"""Step time as it is learned, and the room that several prompts share."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.core.entropy import SeededEntropy, below, unit
from tandem.engine.scheduler.step_budget import StepBudget
from tandem.engine.scheduler.step_model import PromptCost, Quantile, StepLoad, StepTimeModel
from tandem.engine.settings import SchedulerSettings


def machine(load: StepLoad) -> float:
    """3 ms, 80 µs per running sequence, 1 ms per prompt, 20 µs per prompt token, attention on both sides."""
    own = 0.003 + 8e-5 * load.decode_rows + 1e-3 * load.pieces + 2e-5 * load.prefill_tokens
    return own + 4e-8 * load.prefill_context + 5e-7 * load.decode_context


def draw(entropy: SeededEntropy) -> StepLoad:
    rows = 1 + below(entropy, 32)
    pieces = below(entropy, 4)
    sizes = [16 + below(entropy, 300) for _ in range(pieces)]
    context = float(sum(size * (below(entropy, 2000) + size / 2) for size in sizes))
    return StepLoad(rows, sum(sizes), context, pieces, rows * float(below(entropy, 1500)))


def taught(steps: int, noise: float = 0.0) -> StepTimeModel:
    model, entropy = StepTimeModel(1e-4), SeededEntropy(5)
    for _ in range(steps):
        load = draw(entropy)
        model.observe(load, machine(load) * (1 + noise * (unit(entropy) - 0.5)))
    return model


def test_a_fit_tells_what_steps_take_and_what_they_had_to_do() -> None:
    model, entropy, loads = StepTimeModel(1e-4), SeededEntropy(5), list[StepLoad]()
    assert model.fit() is None
    for _ in range(416):
        loads.append(draw(entropy))
        model.observe(loads[-1], machine(loads[-1]))
    fit, taken = model.fit(), loads[16:]
    assert fit is not None
    for sums, mine in (
        (fit.plain, [load for load in taken if not load.prefill_tokens]),
        (fit.prompts, [load for load in taken if load.prefill_tokens]),
    ):
        assert sums.steps == len(mine)
        assert sums.seconds == pytest.approx(sum(machine(load) for load in mine))
        assert sums.rows == sum(load.decode_rows for load in mine)
        assert sums.positions == pytest.approx(sum(load.prefill_context for load in mine))
        expected = fit.base_s * sums.steps + fit.sequence_s * sums.rows + fit.read_s * sums.reads
        expected += fit.piece_s * sums.pieces + fit.token_s * sums.tokens + fit.position_s * sums.positions
        assert expected == pytest.approx(sums.seconds, rel=0.03)


def test_a_stall_is_not_added_up_whole_and_alike_steps_count_each() -> None:
    model, load = StepTimeModel(1e-4), StepLoad(4, 0, 0.0, 0, 400.0)
    for _ in range(40):
        model.observe(load, 0.01)
    model.observe(load, 5.0)
    model.observe(load, 0.01, steps=10)
    fit = model.fit()
    assert fit is not None
    assert fit.plain.steps == 24 + 1 + 10
    assert fit.plain.seconds == pytest.approx(0.34 + 3 * 0.01), "the stall counts as three of them"


def test_it_learns_every_part_of_a_step() -> None:
    model, entropy = taught(400), SeededEntropy(6)
    for _ in range(50):
        load = draw(entropy)
        assert model.predict(load) == pytest.approx(machine(load), rel=0.05)
    cost = model.prompt_cost()
    assert cost.piece == pytest.approx(1e-3, rel=0.2)
    assert cost.seconds(1000, 200) == pytest.approx(1e-3 + 200 * 2e-5 + 4e-8 * 200 * 1100, rel=0.1)


def test_the_pace_follows_within_a_few_steps_what_the_shape_need_not_learn_again() -> None:
    model, entropy = taught(400), SeededEntropy(7)
    for _ in range(30):
        load = draw(entropy)
        model.observe(load, 2 * machine(load))
    load = draw(entropy)
    assert model.predict(load) == pytest.approx(2 * machine(load), rel=0.15)


def test_alike_steps_that_are_told_at_once_move_the_pace_as_far_as_one_by_one() -> None:
    """An engine that tells of its steps now and then would else be taken for as fast as it was for minutes."""
    each, once, load = taught(400), taught(400), StepLoad(16, 0, 0.0, 0, 8_000.0)
    for _ in range(10):
        each.observe(load, 2 * machine(load))
    once.observe(load, 2 * machine(load), steps=10)
    assert once.predict(load) > 1.5 * machine(load)
    assert once.predict(load) == pytest.approx(each.predict(load), rel=0.15)


def test_slow_first_steps_are_forgotten() -> None:
    model, entropy = StepTimeModel(1e-4), SeededEntropy(5)
    for step in range(150):
        load = draw(entropy)
        model.observe(load, machine(load) * (40 if step < 5 else 1))
    load = draw(entropy)
    assert model.predict(load) == pytest.approx(machine(load), rel=0.15)
    assert model.prompt_cost().seconds(1000, 200) == pytest.approx(1e-3 + 200 * 2e-5 + 4e-8 * 200 * 1100, rel=0.25)


def test_noise_widens_the_margin_and_quiet_narrows_it() -> None:
    assert taught(1000).margin == pytest.approx(1.0, abs=0.06)
    assert 1.2 < taught(1000, noise=0.8).margin < 1.6


def test_however_slow_steps_are_prompts_keep_half_of_the_target() -> None:
    """With a margin beyond two, a machine that stalls now and then would compute prompts at their floor alone."""
    model, load = StepTimeModel(1e-4), StepLoad(8, 100, 5000.0, 1)
    for step in range(600):
        model.observe(load, 0.01 * (10 if step % 5 == 0 else 1))
    assert model.margin == 2.0
    for _ in range(400):
        model.observe(load, 0.01)
    assert model.margin < 1.2, "some hundred steps as expected bring it back"


def test_it_stays_sound_over_very_many_steps() -> None:
    model, entropy = taught(20_000, noise=0.5), SeededEntropy(8)
    for _ in range(20_000):
        model.observe(StepLoad(16, 0, 0.0, 0, 4000.0), 0.006)
    for _ in range(200):
        load = draw(entropy)
        model.observe(load, machine(load))
    load = draw(entropy)
    assert model.predict(load) == pytest.approx(machine(load), rel=0.2)


def test_a_quantile_is_exceeded_by_its_share() -> None:
    quantile, entropy, above = Quantile(0.1, 0.05), SeededEntropy(9), 0
    for step in range(4000):
        value = 1 + unit(entropy)
        above += step >= 1000 and value > quantile.value
        quantile.observe(value)
    assert above / 3000 == pytest.approx(0.1, abs=0.02)


def test_a_quantile_does_not_run_away_with_what_never_ends() -> None:
    """It would take as long to come back once steps are as expected again."""
    quantile = Quantile(0.1, 0.05)
    for _ in range(1000):
        quantile.observe(50.0)
    assert quantile.value == 3.0


@settings(max_examples=200)
@given(st.floats(0, 1e-2), st.floats(1e-7, 1e-3), st.floats(0, 1e-6), st.floats(1e-3, 1.0), st.integers(0, 100_000))
def test_what_fits_is_the_largest_count_that_fits(
    piece: float, token: float, position: float, room: float, start: int
) -> None:
    cost = PromptCost(piece, token, position)
    fits = int(cost.tokens_within(room, start))
    assert fits == 0 or cost.seconds(start, fits) <= room * (1 + 1e-6)
    assert cost.seconds(start, fits + 1) >= room * (1 - 1e-6)


def budget_of(**changes: float) -> StepBudget:
    budget = StepBudget(SchedulerSettings(itl_target_s=0.02, **changes))  # type: ignore[arg-type]
    entropy = SeededEntropy(5)
    for _ in range(400):
        load = draw(entropy)
        budget.observe(load, machine(load))
    return budget


def test_prompts_of_one_step_share_its_room() -> None:
    running = StepLoad(16, 0, 0.0, 0, 4000.0)
    allowance = budget_of(min_prefill_tokens=1).open(running)
    whole = allowance.offer(0).tokens
    half = whole // 2
    allowance.take(0, half)
    assert allowance.offer(half).tokens < whole - half, "a second piece costs something for itself"
    rest = allowance.offer(0).tokens
    assert rest > 0
    allowance.take(0, rest)
    assert allowance.offer(0).tokens == 0
    both = StepLoad(16, half + rest, half**2 / 2 + rest**2 / 2, 2, 4000.0)
    assert machine(both) == pytest.approx(0.02, rel=0.1)


def test_long_running_contexts_leave_less_room() -> None:
    budget = budget_of()
    short = budget.open(StepLoad(16, 0, 0.0, 0, 16 * 100.0)).offer(0).tokens
    long = budget.open(StepLoad(16, 0, 0.0, 0, 16 * 1000.0)).offer(0).tokens
    assert long < 0.8 * short


def test_the_floor_is_for_the_step_and_not_for_each_prompt() -> None:
    allowance = budget_of(min_prefill_tokens=48).open(StepLoad(64, 0, 0.0, 0, 64 * 4000.0))
    offer = allowance.offer(0)
    assert offer.tokens == 48
    assert "floor" in offer.reason
    allowance.take(0, 40)
    assert allowance.offer(0).tokens == 8
    allowance.take(0, 8)
    assert allowance.offer(0).tokens == 0


def test_the_batch_bound_is_shared_too() -> None:
    allowance = budget_of(max_batched_tokens=100).open(StepLoad(0, 0, 0.0))
    allowance.take(0, 60)
    assert allowance.offer(0).tokens == 40
    allowance.take(0, 40)
    assert allowance.spent
