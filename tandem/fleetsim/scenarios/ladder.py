"""The llm-d ladder: many users of many companies, each company with a long system prompt, at rising rates.

Published as benchmarking/73-capacity of llm-d-kv-cache: 8 vLLM pods of Qwen3-32B on two H100 each, 307,328 KV tokens
per pod, 150 groups of 5 prompts, 6,000 shared and 1,200 own tokens in, 1,000 out; Poisson arrivals, a warm-up of 750
requests and 16 stages, each of which waits for the one before to end. Rates and durations are the published ones.

Two things are inferred. The client holds at most 800 requests: the published queues (63 waiting at the 90th
percentile beside the 37 that fit) are those of 100 per pod, while without a bound 150 would wait. And prompts compute
at 15,928 tokens/s, llm-d's own figure for this pod under load; the fit of single requests says 20,400.
"""

from dataclasses import dataclass, replace
from math import log
from typing import Final

from tandem.core.entropy import Entropy, SeededEntropy, below, unit
from tandem.engine.simulated.presets import preset
from tandem.fleetsim.fleet import FleetSettings, roles
from tandem.fleetsim.ours import OursSettings
from tandem.fleetsim.step_time import StepTime
from tandem.fleetsim.worker_settings import WorkerSettings
from tandem.fleetsim.workload import Request, Stage, Workload

BLOCK_TOKENS: Final = 400
WARM_UP: Final = (15.0, 50.0)
STAGES: Final = (
    *((3.0, 20.0), (10.0, 20.0), (15.0, 20.0), (20.0, 38.0), (22.0, 34.0), (25.0, 30.0), (30.0, 25.0), (35.0, 21.0)),
    *((40.0, 38.0), (43.0, 36.0), (46.0, 33.0), (49.0, 30.0), (52.0, 29.0), (55.0, 27.0), (57.0, 26.0), (60.0, 25.0)),
)
"""(requests/s, seconds)."""


@dataclass(frozen=True)
class LadderShape:
    """Lengths in tokens; all of them multiples of `BLOCK_TOKENS`."""

    name: str
    model: str
    pods: int
    kv_tokens: int
    groups: int
    prompts_per_group: int
    shared_tokens: int
    own_tokens: int
    output_tokens: int
    in_flight_max: int
    prefill_tokens_per_s: float | None = None
    """Of one prompt of this shape, computed alone; None for the preset's own."""


R1: Final = LadderShape("R1", "h100-qwen3-32b-tp2", 8, 307_328, 150, 5, 6_000, 1_200, 1_000, 800, 15_928.0)
SIBLING: Final = LadderShape("37 % capacity", "h100-llama-3.1-70b-tp4", 4, 461_376, 83, 3, 8_000, 1_000, 1_000, 400)
"""Its sibling with a third of the caches used: Llama-3.1-70B on four H100 each. The preset's weights are FP8."""


def fleet(shape: LadderShape) -> FleetSettings:
    """The pods."""
    chosen = preset(shape.model)
    step_time = StepTime.of(chosen.model)
    if shape.prefill_tokens_per_s is not None:
        tokens = shape.shared_tokens + shape.own_tokens
        attention_s = step_time.context_s * tokens / 2
        step_time = replace(step_time, token_s=1 / shape.prefill_tokens_per_s - attention_s)
    worker = WorkerSettings(shape.kv_tokens, BLOCK_TOKENS, step_time)
    return FleetSettings(roles(unified=shape.pods), worker, 50e9 / chosen.kv_token_bytes)


def ours_settings(shape: LadderShape) -> OursSettings:
    """Our router for it."""
    return OursSettings(preset(shape.model).kv_token_bytes)


def ladder(shape: LadderShape, seed: int, stages: tuple[tuple[float, float], ...] = STAGES) -> Workload:
    """The whole ladder. In the warm-up every prompt comes once, in order; later ones are drawn."""
    entropy = SeededEntropy(seed, shape.name)
    prompts = _prompts(shape)
    rate, _ = WARM_UP
    built = [_stage(shape, prompts, entropy, 0, (rate, len(prompts) / rate), warm_up=True)]
    for each in stages:
        first = sum(len(stage.requests) for stage in built)
        built.append(_stage(shape, prompts, entropy, first, each, warm_up=False))
    return Workload(shape.name, tuple(built), in_flight_max=shape.in_flight_max)


def _prompts(shape: LadderShape) -> list[tuple[int, ...]]:
    shared, own = shape.shared_tokens // BLOCK_TOKENS, shape.own_tokens // BLOCK_TOKENS
    prompts = []
    for group in range(shape.groups):
        head = tuple(group << 20 | place for place in range(shared))
        for user in range(shape.prompts_per_group):
            tail = tuple(group << 20 | (user + 1) << 10 | shared + place for place in range(own))
            prompts.append(head + tail)
    return prompts


def _stage(
    shape: LadderShape,
    prompts: list[tuple[int, ...]],
    entropy: Entropy,
    first: int,
    timing: tuple[float, float],
    *,
    warm_up: bool,
) -> Stage:
    rate, duration_s = timing
    at_s, requests = 0.0, []
    for number in range(round(rate * duration_s)):
        at_s += -log(1 - unit(entropy)) / rate
        blocks = prompts[number if warm_up else below(entropy, len(prompts))]
        tokens = shape.shared_tokens + shape.own_tokens
        output = shape.output_tokens
        requests.append(Request(first + number, at_s, blocks, BLOCK_TOKENS, tokens, output, output))
    return Stage(rate, duration_s, tuple(requests), warm_up)
