"""What the steps of a scheduler had to do, as it adds them up: routers and the autoscaler learn from these sums."""

from collections.abc import Sequence

import pytest

from tandem.core.messages import StepFit
from tandem.core.request import ChildRequest, Sampling
from tandem.engine.scheduler.plan import Row, Step
from tests.unit.tandem.engine.scheduler.test_scheduler import engine, prompt
from tests.worlds.scheduler_harness import Harness

WARM = 16
"""First steps that are not added up."""


def decodes(row: Row) -> bool:
    """Whether a running sequence goes on with it: a prompt's last chunk draws the first position."""
    return row.count == 1 and bool(row.draws) and row.draws[0].position > 1


def prompt_rows(step: Step) -> list[Row]:
    return [row for row in step.rows if not decodes(row)]


def fit_of(h: Harness) -> StepFit:
    fit = h.scheduler.load().fit
    assert fit is not None
    return fit


def check_sums(h: Harness) -> None:
    """What is told must be what the steps' rows had in them, a millisecond each."""
    taken, fit = h.steps[WARM:], fit_of(h)
    plain = [step for step in taken if not prompt_rows(step)]
    prompts = [step for step in taken if prompt_rows(step)]
    for sums, steps in ((fit.plain, plain), (fit.prompts, prompts)):
        assert (sums.steps, sums.rows, sums.reads) == (len(steps), *running(steps))
        chunks = [row for step in steps for row in prompt_rows(step)]
        positions = sum(row.count * (row.start + row.count / 2) for row in chunks)
        assert (sums.pieces, sums.tokens, sums.positions) == (
            len(chunks),
            sum(row.count for row in chunks),
            positions,
        )
        assert sums.seconds == pytest.approx(0.001 * len(steps))


def running(steps: Sequence[Step]) -> tuple[int, int]:
    """Sequences that decoded, and the positions that they attended to."""
    rows = [row for step in steps for row in step.rows if decodes(row)]
    return len(rows), sum(row.start for row in rows)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(frequency_penalty=1.0)], ids=["columns", "rows"])
def test_steps_are_told_with_what_they_had_to_do(sampling: Sampling) -> None:
    """A token too many would make every step one with a prompt: nothing would be known of those that only decode."""
    h = engine(max_batched_tokens=24)
    first = h.submit(prompt(10), max_tokens=60, sampling=sampling)
    for _ in range(20):
        h.step()
    h.submit(prompt(50, 100), max_tokens=6, sampling=sampling)
    h.submit(prompt(10), max_tokens=4, sampling=sampling)
    h.run()
    assert len(h.tokens(first)) == 60
    fit = fit_of(h)
    assert fit.plain.steps > 30
    assert fit.prompts.steps >= 3
    assert fit.prompts.tokens == 50 + 2, "the third finds two of its blocks here"
    check_sums(h)
    h.drain()


def test_steps_that_only_decode_leave_the_rate_of_prompts_alone() -> None:
    """They would drag it down to nothing otherwise, and routers keep away from a worker that is slow with prompts."""
    h = engine()
    h.submit(prompt(40), max_tokens=100)
    h.step()
    rate = h.scheduler.load().prefill_tokens_per_s
    assert rate == pytest.approx(40 / 0.001)
    h.run()
    assert h.scheduler.load().prefill_tokens_per_s == rate


@pytest.mark.parametrize("private", [(True, False), (False, True)])
def test_a_step_with_a_private_prompt_says_nothing_of_how_fast_prompts_are(private: tuple[bool, bool]) -> None:
    """It is small, and as often as not the first step ever: routers would take a new worker to be slow."""
    h = engine()
    for number, hidden in enumerate(private):
        h.submit(prompt(12, 50 * number), max_tokens=1, private=hidden)
    h.run()
    assert len(h.steps) == 1
    assert (h.scheduler.load().prefill_tokens_per_s, h.scheduler.load().prefill_token_s) == (0.0, 0.0)
    h.submit(prompt(12, 200), max_tokens=1)
    h.run()
    assert h.scheduler.load().prefill_tokens_per_s == pytest.approx(12 / 0.001)


@pytest.mark.parametrize("penalty", [0.0, 1.0], ids=["columns", "rows"])
def test_who_is_preempted_for_a_running_sequence_is_no_part_of_the_step(penalty: float) -> None:
    """It would be learned as one that costs nothing, and steps would be planned too large."""
    h = engine(blocks=12)
    sampling = Sampling(frequency_penalty=penalty)
    h.submit(prompt(8), max_tokens=40, sampling=sampling)
    h.step()
    h.submit(prompt(9, 50), max_tokens=40, sampling=sampling, priority=1)
    while not h.scheduler.state.preemptions:
        assert h.step()
    assert len(h.steps) > WARM
    assert running(h.steps[-1:])[0] == 1, "the other one goes on"
    h.run()
    check_sums(h)
    h.drain()


@pytest.mark.parametrize("penalty", [0.0, 1.0], ids=["columns", "rows"])
def test_who_is_preempted_for_a_prompt_is_no_part_of_the_step(penalty: float) -> None:
    """Its row was there already: branches that are resumed ask for blocks of their own once they have forked."""
    h = engine(blocks=9)
    h.submit(prompt(4), max_tokens=26, sampling=Sampling(frequency_penalty=penalty))
    while len(h.steps) < 23:
        assert h.step()
    branches = (ChildRequest(0, 1, (300, 301, 302)), ChildRequest(1, 2, (400, 401, 402)))
    h.submit(prompt(8, 50), max_tokens=6, branches=branches, priority=1)
    while not h.scheduler.state.preemptions:
        assert h.step()
    assert running(h.steps[-1:]) == (0, 0), "nobody decodes in the step that preempts"
    assert len(h.steps[-1].rows) == 2
    check_sums(h)
    h.run()
    h.drain()
