"""What a worker with vLLM tells of its steps, from the messages that vLLM sends as steps begin and end."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from router.placement import CostModel
from router.settings import CostPriors
from tandem.core.entropy import SeededEntropy, below
from tandem.core.messages import Load
from tandem.engine.vllm.load import LoadStats
from tandem.engine.vllm.notices import Notice
from tandem.engine.vllm.tracked_request import TrackedRequest

KIND = ("gpu", "model", "r1", "vllm")


def ended(now: float, rows: int) -> Any:
    """A step has ended at `now`; each of `rows` running sequences has a token by it."""
    stats = SimpleNamespace(
        num_running_reqs=max(1, rows),
        num_waiting_reqs=0,
        num_skipped_waiting_reqs=0,
        kv_cache_usage=0.1,
        spec_decoding_stats=None,
    )
    token = SimpleNamespace(new_token_ids=[1], prefill_stats=None, kv_transfer_params=None, events=())
    return SimpleNamespace(scheduler_stats=stats, timestamp=now, outputs=[token] * rows)


def begins(now: float, start: int, tokens: int) -> Any:
    """A step begins that computes `tokens` tokens of a prompt from `start` on."""
    told = Notice("computes", start, tokens).as_params()
    output = SimpleNamespace(new_token_ids=[], prefill_stats=None, kv_transfer_params=told, events=())
    return SimpleNamespace(scheduler_stats=None, timestamp=now, outputs=[output])


def seconds(rows: int, context: int, tokens: int = 0, start: int = 0) -> float:
    """What a step of this engine takes whose `rows` sequences attend to `context` positions each."""
    prompt_s = 4e-5 * tokens + 1e-9 * tokens * (start + tokens / 2)
    return 0.008 + 6e-5 * rows + 3e-8 * rows * context + prompt_s


def told(pace: float, seed: int, steps: int = 600) -> Load:
    """The figures of an engine that is `pace` times slower, after many steps of all sorts."""
    figures, entropy, now = LoadStats(1_000, 1e-4), SeededEntropy(seed, "steps"), 0.0
    for number in range(steps):
        rows, context = 1 + below(entropy, 60), 300 + below(entropy, 4_000)
        runs = [SimpleNamespace(prefilled=0.0, attended=context, expanding=False) for _ in range(rows)]
        figures.load(cast("list[TrackedRequest]", runs), 0, 0, 0.0)
        tokens = 64 + below(entropy, 2_000) if number % 3 == 0 else 0
        start = below(entropy, 8_000)
        if tokens:
            figures.step(begins(now, start, tokens))
        now += pace * seconds(rows, context, tokens, start)
        figures.step(ended(now, rows))
    return figures.load((), 0, 0, 0.0)


def test_nothing_is_told_before_there_have_been_steps() -> None:
    assert LoadStats(1_000, 1e-4).load((), 0, 0, 0.0).fit is None


@pytest.mark.parametrize("pace", [1.0, 1.6])
def test_routers_learn_from_vllm_what_its_steps_and_prompts_take(pace: float) -> None:
    """Also that a sequence costs the more the more positions it attends to."""
    costs = CostModel(CostPriors())
    for number in range(3):
        costs.observe_load(f"usual{number}", told(1.0, number), 0, KIND)
    load = told(pace, 7)
    assert load.fit is not None
    costs.observe_load("judged", load, 0, KIND)
    for rows, context in ((4, 1_000), (40, 1_000), (40, 4_000)):
        expected_ms = 1e3 * pace * seconds(rows, context)
        assert costs.step_ms("judged", rows, rows * context) == pytest.approx(expected_ms, rel=0.12)
    for tokens, start in ((500, 0), (1_500, 4_000)):
        prompt_ms = 1e3 * pace * (4e-5 * tokens + 1e-9 * tokens * (start + tokens / 2))
        assert costs.prefill_ms("judged", tokens, start) == pytest.approx(prompt_ms, rel=0.12)
