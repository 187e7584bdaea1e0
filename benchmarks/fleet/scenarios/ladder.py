"""The llm-d ladders: many users of many companies, each company with a long system prompt, at rising rates.

Published as benchmarking/73-capacity and 37-capacity of llm-d-kv-cache: pods of vLLM, prompts that share the system
prompt of their group, a warm-up and stages, each of which waits for the one before to end. Rates, durations, groups
and pods are the published ones. What the client does is read from its source as it was then (inference-perf of
September 2025): it draws all prompts once, shuffles them, and every stage sends the first so many of that list,
beginning anew when it is through; gaps between requests are exponential and fill the stage exactly; each of its
processes has at most 100 requests under way, and it has as many processes as its machine has cores. Of the larger
ladder the published queues show 8 processes, of its sibling no bound.

Prompts are random tokens that are written out as text and read again: with Qwen's tokenizer 6,000 and 1,200 tokens
become 6,315 and 1,263, and 1,000 generated ones are counted as 944 (both by the client's reports of a later run). For
Llama's nobody has published it.
"""

from dataclasses import dataclass, replace
from math import log
from typing import Final

from benchmarks.fleet.fleet import FleetSettings, roles
from benchmarks.fleet.ours import OursSettings
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request, Stage, Workload
from tandem.core.entropy import Entropy, SeededEntropy, below, unit
from tandem.engine.simulated.presets import preset

Stages = tuple[tuple[float, float], ...]
"""(requests/s, seconds)."""
STAGES: Final[Stages] = (
    *((3.0, 20.0), (10.0, 20.0), (15.0, 20.0), (20.0, 38.0), (22.0, 34.0), (25.0, 30.0), (30.0, 25.0), (35.0, 21.0)),
    *((40.0, 38.0), (43.0, 36.0), (46.0, 33.0), (49.0, 30.0), (52.0, 29.0), (55.0, 27.0), (57.0, 26.0), (60.0, 25.0)),
)
_SIBLING_STAGES: Final[Stages] = (
    *((3.0, 210.0), (4.0, 180.0), (5.0, 120.0), (6.0, 120.0), (8.0, 90.0)),
    *((10.0, 70.0), (12.0, 60.0), (15.0, 50.0), (20.0, 50.0)),
)
_NETWORK_BYTES_PER_S: Final = 50e9
_SEQUENCES_MAX: Final = 1024
"""vLLM's default on these GPUs."""


@dataclass(frozen=True)
class Stack:
    """What the software of the published runs (vLLM 0.10, gateway, endpoint picker) adds to its GPUs' step times.

    `front_s` passes between a request's routing and its arrival at the engine. A step takes `step_s` longer: vLLM
    scheduled between steps then. Prompt tokens take `prompt` times as long as in steps that are measured by
    themselves. `reread` is `StepTime.reread`. Each is one value for both ladders, read from their random and precise
    runs: `step_s` and `reread` came out alike from either; `prompt` is 1.1 by R1 alone and 1.3 by its sibling alone,
    `front_s` 0.27 and 0.12. The other policies had no part in it (`benchmarks.calibration`).
    """

    front_s: float = 0.2
    step_s: float = 0.005
    prompt: float = 1.2
    reread: float = 0.54

    def slowed(self, step_time: StepTime) -> StepTime:
        """Those GPUs under this software."""
        return replace(
            step_time,
            base_s=step_time.base_s + self.step_s,
            token_s=step_time.token_s * self.prompt,
            context_s=step_time.context_s * self.prompt,
            reread=self.reread,
        )


PUBLISHED: Final = Stack()


@dataclass(frozen=True)
class LadderShape:
    """Lengths in tokens; those of prompts are multiples of `block_tokens`. `counted` is the client's count of a
    generated token."""

    name: str
    model: str
    pods: int
    kv_tokens: int
    groups: int
    prompts_per_group: int
    shared_tokens: int
    own_tokens: int
    output_tokens: int
    block_tokens: int
    warm_up: tuple[float, float]
    stages: Stages
    in_flight_max: int = 1 << 30
    counted: float = 1.0

    @property
    def input_tokens(self) -> int:
        return self.shared_tokens + self.own_tokens


R1: Final = LadderShape(
    name="R1",
    model="h100-qwen3-32b-tp2",
    pods=8,
    kv_tokens=307_328,
    groups=150,
    prompts_per_group=5,
    shared_tokens=6_315,
    own_tokens=1_263,
    output_tokens=1_000,
    block_tokens=421,
    warm_up=(15.0, 50.0),
    stages=STAGES,
    in_flight_max=800,
    counted=0.944,
)
SIBLING: Final = LadderShape(
    name="37 % capacity",
    model="h100-llama-3.1-70b-bf16-tp4",
    pods=4,
    kv_tokens=461_376,
    groups=83,
    prompts_per_group=3,
    shared_tokens=8_000,
    own_tokens=1_000,
    output_tokens=1_000,
    block_tokens=500,
    warm_up=(9.0, 30.0),
    stages=_SIBLING_STAGES,
)
"""Its sibling with a third of the caches used: Llama-3.1-70B on four H100 each. 461,376 tokens are what is
left of 90 % of the memory beside BF16 weights and activations; FP8 weights would leave half as much again."""


def fleet(shape: LadderShape, stack: Stack = PUBLISHED) -> FleetSettings:
    """The pods."""
    chosen = preset(shape.model)
    step_time = stack.slowed(StepTime.of(chosen.model))
    worker = WorkerSettings(shape.kv_tokens, shape.block_tokens, step_time, max_sequences=_SEQUENCES_MAX)
    rate = _NETWORK_BYTES_PER_S / chosen.kv_token_bytes
    return FleetSettings(roles(unified=shape.pods), worker, rate, front_s=stack.front_s)


def ours_settings(shape: LadderShape) -> OursSettings:
    """Our router for it."""
    return OursSettings(preset(shape.model).kv_token_bytes)


def ladder(shape: LadderShape, seed: int, stages: Stages | None = None) -> Workload:
    """The whole ladder, or its warm-up and other `stages`. Prompts have their order by the seed too."""
    entropy = SeededEntropy(seed, shape.name)
    prompts = _shuffled(_prompts(shape), entropy)
    built: list[Stage] = []
    for place, timing in enumerate((shape.warm_up, *(shape.stages if stages is None else stages))):
        first = sum(len(stage.requests) for stage in built)
        built.append(_stage(shape, prompts, entropy, first, timing, warm_up=place == 0))
    return Workload(shape.name, tuple(built), in_flight_max=shape.in_flight_max)


def _prompts(shape: LadderShape) -> list[tuple[int, ...]]:
    shared, own = shape.shared_tokens // shape.block_tokens, shape.own_tokens // shape.block_tokens
    prompts = []
    for group in range(shape.groups):
        head = tuple(group << 20 | place for place in range(shared))
        for user in range(shape.prompts_per_group):
            tail = tuple(group << 20 | (user + 1) << 10 | shared + place for place in range(own))
            prompts.append(head + tail)
    return prompts


def _shuffled(prompts: list[tuple[int, ...]], entropy: Entropy) -> list[tuple[int, ...]]:
    left, shuffled = list(prompts), []
    while left:
        chosen = below(entropy, len(left))
        left[chosen], left[-1] = left[-1], left[chosen]
        shuffled.append(left.pop())
    return shuffled


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
    gaps = [-log(1 - unit(entropy)) for _ in range(round(rate * duration_s))]
    stretch_s = duration_s / sum(gaps)
    at_s, requests = 0.0, []
    for number, gap in enumerate(gaps):
        at_s += gap * stretch_s
        blocks = prompts[number % len(prompts)]
        output = shape.output_tokens
        requests.append(Request(first + number, at_s, blocks, shape.block_tokens, shape.input_tokens, output, output))
    return Stage(rate, duration_s, tuple(requests), warm_up)
