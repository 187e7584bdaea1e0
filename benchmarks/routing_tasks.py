"""The runs of the routing bench: scenarios by name, and one simulation of one policy under one seed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from benchmarks.fleet.contenders import EQUAL_TERMS, OURS, chunked, decider_of
from benchmarks.fleet.fleet import FleetSettings, simulate
from benchmarks.fleet.goodput import Judged, Window, judge
from benchmarks.fleet.metrics import RunMetrics
from benchmarks.fleet.ours import OursSettings
from benchmarks.fleet.scenarios import conversation, decode_bound, ladder
from benchmarks.fleet.workload import Workload
from tandem.apps.bench.workload import Workload as Trace
from tandem.core.slo import Slo

_SLO: Final = Slo(ttft_s=2.0, tpot_s=0.05)
"""Of a chat that reads as it comes, with prompts of thousands of tokens."""
_SHORT_SLO: Final = Slo(ttft_s=1.0, tpot_s=0.05)
"""The same where prompts are short."""
_CONTENDERS: Final = ("sglang cache_aware", "vllm kv_aware", "dynamo kv", "llm-d precise 2:1", "hash 2nd block")
"""The peers' policies that go by prefixes, and hashing them."""
_BLIND: Final = ("random", "least loaded")
_TODAY: Final = ("llm-d default", "llm-d precise default", "vllm longest prefix")
"""Of routers that compete already, what their projects have come to since."""
_LLM_D: Final = ("llm-d precise 3:1:1", "llm-d precise 3:2:2", "llm-d approximate", "llm-d load")
_CONVERSATION_QUICK: Final = 2_000
_RATES_QUICK: Final = (15.0, 20.0, 40.0, 60.0)


@dataclass(frozen=True)
class Scenario:
    """A workload, its fleet, and who competes in it. `seconds` is what a run takes about, to order them. The `close`
    ones get three times as many seeds as the others: where they differ by a few percent so do their seeds. Requests
    that meet `slo` are goodput."""

    name: str
    policies: tuple[str, ...]
    seconds: float
    needs_data: bool = False
    close: tuple[str, ...] = ()
    slo: Slo = _SLO

    def seeds(self, policy: str, seeds: int) -> int:
        """How many seeds a policy is run with."""
        return 3 * seeds if policy in self.close else seeds


R1: Final = Scenario(
    ladder.R1.name,
    (OURS, EQUAL_TERMS, *_CONTENDERS, *_TODAY, *_BLIND, "round robin", *_LLM_D),
    4.0,
    close=(
        OURS,
        "sglang cache_aware",
        "vllm kv_aware",
        *(name for name in (*_CONTENDERS, *_LLM_D) if "precise" in name),
    ),
)
SIBLING: Final = Scenario(ladder.SIBLING.name, (OURS, *_CONTENDERS, *_BLIND, "llm-d precise 3:2:2"), 4.0)
DECODE_BOUND: Final = Scenario(decode_bound.NAME, (OURS, *_CONTENDERS, *_BLIND), 1.5, slo=_SHORT_SLO)
CONVERSATIONS: Final = tuple(
    Scenario(
        shape.name,
        (
            *(OURS, EQUAL_TERMS, *_CONTENDERS, *_TODAY),
            *(("dynamo kv conditional",) if shape.prefill else ()),
            *(("llm-d precise tiers",) if shape.tiers else ()),
            *_BLIND,
        ),
        8.0,
        needs_data=True,
    )
    for shape in conversation.SHAPES
)
SCENARIOS: Final = (R1, *CONVERSATIONS, DECODE_BOUND, SIBLING)


@dataclass(frozen=True)
class RoutingTask:
    """One run. `chunking` is how workers cut prompts, by `benchmarks.fleet.contenders.CHUNKING`; None as they are."""

    scenario: str
    policy: str
    seed: int
    data: Path
    quick: bool
    chunking: str | None = None


@dataclass(frozen=True)
class RunOutcome:
    """What a run came to, and the CPU seconds it took. `goodput` is of the figures' stages, in their order; `bound`
    the hit ratio of one pool, where that is asked."""

    task: RoutingTask
    figures: RunMetrics
    cpu_s: float
    goodput: tuple[Judged, ...]
    bound: float | None = None


def carry_out(task: RoutingTask) -> RunOutcome:
    """Simulate. Deterministic but for `cpu_s`."""
    settings, our_settings, build, bound = _prepared(task)
    if task.chunking is not None:
        settings = replace(settings, worker=chunked(settings.worker, task.chunking))
    decider = decider_of(task.policy, our_settings, task.seed)
    slo = next(scenario.slo for scenario in SCENARIOS if scenario.name == task.scenario)
    began = time.process_time()
    workload = build()
    figures = simulate(settings, decider, workload)
    cpu_s = time.process_time() - began
    goodput = tuple(
        judge(stage.requests, slo, Window.of(stage.requests)) for stage in workload.stages if not stage.warm_up
    )
    if lost := sum(each.offered - each.ended for each in goodput):
        # Figures of time and of tokens leave out what was refused: with it left out they compare nothing.
        raise RuntimeError(f"{task.policy} refused {lost} requests of {task.scenario}, seed {task.seed}")
    return RunOutcome(task, figures, cpu_s, goodput, bound)


Prepared = tuple[FleetSettings, OursSettings, Callable[[], Workload], float | None]


def _prepared(task: RoutingTask) -> Prepared:
    for shape in (ladder.R1, ladder.SIBLING):
        if task.scenario == shape.name:
            stages = tuple(stage for stage in shape.stages if not task.quick or stage[0] in _RATES_QUICK)
            return ladder.fleet(shape), ladder.ours_settings(shape), _ladder(shape, task.seed, stages), None
    if task.scenario == decode_bound.NAME:
        stage_s = decode_bound.STAGE_S / (4 if task.quick else 1)
        return (
            decode_bound.fleet(),
            decode_bound.ours_settings(),
            lambda: decode_bound.decode_bound(task.seed, stage_s=stage_s),
            None,
        )
    return _conversation(task)


def _ladder(shape: ladder.LadderShape, seed: int, stages: tuple[tuple[float, float], ...]) -> Callable[[], Workload]:
    return lambda: ladder.ladder(shape, seed, stages)


def _conversation(task: RoutingTask) -> Prepared:
    shape = next(shape for shape in conversation.SHAPES if shape.name == task.scenario)
    trace, limit = _trace(task.data), _CONVERSATION_QUICK if task.quick else None

    def build() -> Workload:
        return conversation.conversation(trace, shape, task.seed, limit)

    bound = None
    if task.policy == OURS:
        bound = conversation.one_pool_hit_ratio(build().requests, conversation.capacity_tokens(shape))
    return conversation.fleet(shape), conversation.ours_settings(), build, bound


@lru_cache(maxsize=1)
def _trace(data: Path) -> Trace:
    return conversation.load(data)
