"""What an engine tells of how long its steps take."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.scheduler.step_budget import StepLoad
from tandem.engine.scheduler.throughput import Throughput

PROMPT = StepLoad(0, 512, 512 * 256, 1)


@given(steps=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=30), stall_s=st.floats(3.0, 1e4))
def test_one_stall_is_not_how_long_steps_with_prompts_take(steps: list[float], stall_s: float) -> None:
    figures = Throughput()
    for seconds in steps:
        figures.observe(PROMPT, seconds)
    before = figures.prompt_step_s
    figures.observe(PROMPT, stall_s)
    assert before < figures.prompt_step_s <= 3.0 * before


@given(short_s=st.floats(0.001, 0.1), times=st.floats(1.0, 200.0))
def test_steps_that_stay_longer_are_known_soon(short_s: float, times: float) -> None:
    figures = Throughput()
    figures.observe(PROMPT, short_s)
    for _ in range(5):
        figures.observe(PROMPT, short_s * times)
    assert figures.prompt_step_s >= 0.99 * short_s * times
