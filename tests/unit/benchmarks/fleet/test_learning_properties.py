"""What a router learns of noisy workers on traffic that nobody recorded: paces, and who gets prompts at all."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct

from benchmarks.fleet.fleet import Fleet
from benchmarks.fleet.ours import OursDecider
from benchmarks.fleet.router import Knowledge
from benchmarks.fleet.scenarios.generated import fleet, generated, ours_settings, traffic
from benchmarks.fleet.workload import Request
from router.placement import CostModel
from router.settings import CostPriors
from tandem.core.entropy import SeededEntropy, below, unit
from tandem.core.messages import Load, StepFit, StepSums
from tandem.core.spans import Attribute, Span
from tandem.engine.scheduler.step_model import StepLoad, StepTimeModel

NOISE = 0.05
LIGHT, HEAVY = {"bimodal": 2.2, "prompt_heavy": 1.0}, {"bimodal": 4.4, "prompt_heavy": 1.9}
"""Requests a second and worker, at about half of what they carry and a little less than all."""
IDLE = Load(0, 0, 0, 1000, 0, 0, 0.0, 0.0, 0.0, 0)


@dataclass(frozen=True)
class Look:
    """What was expected of a prompt and of a step, by worker, when one was placed on `worker`."""

    now: float
    worker: int
    tokens: int
    prompt_ms: tuple[float, ...]
    step_ms: tuple[float, ...]


class Watched(OursDecider):
    """Notes what is expected of workers at every placement."""

    def __init__(self, knowledge: Knowledge, seed: int, looks: list[Look]) -> None:
        super().__init__(knowledge, ours_settings(), seed)
        self._ids, self._looks = knowledge.ids, looks

    def place(self, request: Request, now: float) -> tuple[int, int] | None:
        placed = super().place(request, now)
        if placed is not None:
            prompts = tuple(self.costs.prefill_ms(name, 2_000) for name in self._ids)
            steps = tuple(self.costs.step_ms(name, 16, 32_000) for name in self._ids)
            self._looks.append(Look(now, placed[0], request.input_tokens, prompts, steps))
        return placed


def played(
    name: str,
    workers: int,
    rate: float,
    duration_s: float,
    paces: tuple[tuple[float, int, float], ...] = (),
    order: Callable[[list[Request]], list[Request]] = list,
) -> list[Look]:
    """Placements in order. Prompts are chunked, as in Tandem's workers."""
    fleet_settings = fleet(("unified",) * workers)
    worker = replace(fleet_settings.worker, step_noise=NOISE, max_batched_tokens=2_048, itl_target_s=0.05)
    looks: list[Look] = []
    work = generated(traffic(name), 1, rate * workers, duration_s).workload
    stage = work.stages[0]
    times = [request.arrival_s for request in stage.requests]
    asked = order(list(stage.requests))
    for number, (request, at_s) in enumerate(zip(asked, times, strict=True)):
        request.number, request.arrival_s = number, at_s
    work = replace(work, stages=(replace(stage, requests=tuple(asked)),))
    simulation = Fleet(
        replace(fleet_settings, worker=worker, paces=paces, seed=1), lambda known: Watched(known, 1, looks)
    )
    simulation.run(work)
    return looks


@pytest.mark.parametrize("name", sorted(HEAVY))
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("rates", [LIGHT, HEAVY])
def test_workers_that_are_alike_look_alike_after_thirty_prompts(
    name: str, workers: int, rates: dict[str, float]
) -> None:
    had, judged = [0] * workers, 0
    for look in played(name, workers, rates[name], 60 / rates[name]):
        had[look.worker] += 1
        if min(had) >= 30:
            judged += 1
            for expected in (look.prompt_ms, look.step_ms):
                middle = median(expected)
                assert max(abs(each / middle - 1.0) for each in expected) <= 0.1
    assert judged


def test_sixteen_workers_that_are_alike_look_alike() -> None:
    name, workers = "bimodal", 16
    last = played(name, workers, HEAVY[name], 30.0)[-1]
    for expected in (last.prompt_ms, last.step_ms):
        assert max(abs(each / median(expected) - 1.0) for each in expected) <= 0.1


@pytest.mark.parametrize(("workers", "rates"), [(2, LIGHT), (4, HEAVY)])
def test_a_slower_worker_is_told_and_forgotten_by_its_own_work(workers: int, rates: dict[str, float]) -> None:
    since_s, until_s = 20.0, 60.0
    name = "bimodal"
    looks = played(name, workers, rates[name], 85.0, ((since_s, 0, 1.3), (until_s, 0, 1.0)))

    def compared(look: Look) -> float:
        return look.prompt_ms[0] / median(look.prompt_ms[1:])

    phases: tuple[tuple[float, float, Callable[[Look], bool]], ...] = (
        (since_s, until_s, lambda look: compared(look) >= 1.2),
        (until_s, 85.0, lambda look: compared(look) <= 1.1),
    )
    for begin_s, end_s, found in phases:
        phase = [look for look in looks if begin_s <= look.now < end_s]
        first = next(place for place, look in enumerate(phase) if found(look))
        own = sum(look.worker == 0 for look in phase[: first + 1])
        assert own <= 40
    slow = [look for look in looks if since_s <= look.now < until_s]
    tokens = sorted(look.tokens for look in slow)
    edges = [0, *(tokens[len(tokens) * share // 4] for share in (1, 2, 3)), 1 << 20]
    for low, high in pairwise(edges):
        sized = [look.worker for look in slow if low <= look.tokens < high]
        assert sized.count(0) >= 0.01 * len(sized), (low, high)


@lru_cache(maxsize=2)
def last_in_order(name: str, workers: int) -> Look:
    """What is expected in the end of a stationary run."""
    return played(name, workers, LIGHT[name], 25.0)[-1]


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False))
def test_the_order_of_prompts_moves_no_pace(order: Random) -> None:
    """Any permutation of what was asked, at the same times."""
    name, workers = "bimodal", 4

    def shuffled(asked: list[Request]) -> list[Request]:
        order.shuffle(asked)
        return asked

    found = last_in_order(name, workers), played(name, workers, LIGHT[name], 25.0, order=shuffled)[-1]
    for one, other in zip(*[(look.prompt_ms, look.step_ms) for look in found], strict=True):
        for each, again in zip(one, other, strict=True):
            assert each / median(one) == pytest.approx(again / median(other), rel=0.05)


def told(
    costs: CostModel, worker: str, pace: float, lengths: tuple[int, int], kind: tuple[str, ...] = ("a",)
) -> None:
    """A worker tells of 200 steps, each with a prompt whose length lies in these bounds, and of as many without."""
    model, entropy = StepTimeModel(1e-4), SeededEntropy(7, worker)
    for _ in range(200):
        tokens = int(lengths[0] * (lengths[1] / lengths[0]) ** unit(entropy))
        cached, rows = float(below(entropy, 16_000)), 1 + below(entropy, 40)
        for load in (
            StepLoad(0, tokens, tokens * (cached + tokens / 2), 1),
            StepLoad(rows, 0, 0.0, 0, rows * (500.0 + below(entropy, 3_000))),
        ):
            seconds = 0.01 + 5e-5 * load.decode_rows + 3e-8 * load.decode_context
            seconds += 4e-5 * load.prefill_tokens + 1e-9 * load.prefill_context
            model.observe(load, pace * seconds)
    costs.observe_load(worker, replace_fit(IDLE, model), 0, kind)


def replace_fit(load: Load, model: StepTimeModel) -> Load:
    return Load(**{**{name: getattr(load, name) for name in load.__struct_fields__}, "fit": model.fit()})


def test_who_has_short_prompts_only_looks_like_the_others() -> None:
    costs = CostModel(CostPriors())
    for worker, lengths in (("short", (50, 200)), ("a", (900, 8_000)), ("b", (300, 2_000)), ("c", (128, 8_000))):
        told(costs, worker, 1.0, lengths)
    for tokens in (100, 2_000, 8_000):
        true_ms = 0.04 * tokens + 1e-6 * tokens * tokens / 2
        for worker in ("short", "a", "b", "c"):
            assert costs.prefill_ms(worker, tokens) == pytest.approx(true_ms, rel=0.08, abs=1.0)


def test_kinds_of_hardware_share_no_median_and_a_new_worker_begins_at_its_own_kinds() -> None:
    costs = CostModel(CostPriors())
    for turn in range(4):
        told(costs, f"fast{turn}", 1.0, (200, 3_000), ("fast",))
    told(costs, "slow0", 2.0, (200, 3_000), ("slow",))
    costs.observe_load("new", IDLE, 0, ("slow",))
    true_ms = 0.04 * 2_000 + 1e-6 * 2_000 * 1_000
    assert costs.prefill_ms("fast0", 2_000) == pytest.approx(true_ms, rel=0.08)
    for worker in ("slow0", "new"):
        assert costs.prefill_ms(worker, 2_000) == pytest.approx(2 * true_ms, rel=0.08)
    costs.forget("slow0")
    costs.forget("new")
    assert costs.prefill_ms("fast0", 2_000) == pytest.approx(true_ms, rel=0.08)


def test_a_worker_that_has_started_anew_is_judged_anew() -> None:
    costs = CostModel(CostPriors())
    for worker in ("a", "b", "c"):
        told(costs, worker, 1.0, (200, 3_000))
    told(costs, "slow", 1.5, (200, 3_000))
    before = costs.prefill_ms("slow", 2_000)
    costs.forget("slow")
    told(costs, "slow", 1.0, (200, 3_000))
    assert before > 1.3 * costs.prefill_ms("a", 2_000)
    assert costs.prefill_ms("slow", 2_000) == pytest.approx(costs.prefill_ms("a", 2_000), rel=0.05)


def batch(pace: float, rows: int) -> Load:
    """What a worker without a fit tells while `rows` sequences of 1,000 positions run."""
    step_s = pace * (0.01 + 5e-5 * rows + 3e-8 * 1_000 * rows)
    return Load(
        **{**{name: getattr(IDLE, name) for name in IDLE.__struct_fields__}, "running": rows, "step_s": step_s}
    )


def prompt_span(tokens: int, pace: float) -> Span:
    seconds = pace * (0.01 + 4e-5 * tokens + 1e-9 * tokens * tokens / 2)
    attributes: dict[str, Attribute] = {"tokens_computed": tokens, "tokens_reused": 0, "chunks": 1}
    return Span("", "", "", "prefill", "worker", 0.0, seconds, attributes)


@pytest.mark.parametrize("pace", [1.0, 1.5])
def test_a_worker_that_tells_nothing_is_judged_beside_its_kind(pace: float) -> None:
    costs = CostModel(CostPriors())
    for worker in ("a", "b", "c"):
        told(costs, worker, 1.0, (200, 3_000))
    costs.observe_load("old", IDLE, 0, ("a",))
    assert costs.prefill_ms("old", 2_000) == pytest.approx(costs.prefill_ms("a", 2_000), rel=0.02)
    for turn in range(160):
        costs.observe_load("old", batch(pace, 4 + turn % 8), 1_000 * (4 + turn % 8), ("a",))
        costs.observe_load("old", IDLE, 0, ("a",))
        costs.observe_spans("old", (prompt_span(300 + 15 * turn, pace),), alone=True)
    assert costs.prefill_ms("old", 2_000) == pytest.approx(pace * costs.prefill_ms("a", 2_000), rel=0.1)
    assert costs.step_ms("old", 8, 8_000) == pytest.approx(pace * costs.step_ms("a", 8, 8_000), rel=0.15)


def test_a_worker_that_tells_nothing_follows_its_kind_when_that_becomes_slower() -> None:
    """After an update of the engine, say: the worker is compared with what the others take now."""
    costs = CostModel(CostPriors())
    for pace in (1.0, 2.0):
        for worker in ("a", "b", "c"):
            costs.forget(worker)
            told(costs, worker, pace, (200, 3_000))
        costs.observe_load("old", IDLE, 0, ("a",))
        for turn in range(4):
            costs.observe_load("old", batch(pace, 4 + turn), 1_000 * (4 + turn), ("a",))
            costs.observe_spans("old", (prompt_span(300 + 500 * turn, pace),), alone=True)
        assert costs.step_ms("old", 8, 8_000) == pytest.approx(costs.step_ms("a", 8, 8_000), rel=0.02)
        assert costs.prefill_ms("old", 2_000) == pytest.approx(costs.prefill_ms("a", 2_000), rel=0.02)


def test_models_do_not_share_what_their_steps_take() -> None:
    costs = CostModel(CostPriors())
    for number in range(3):
        told(costs, f"small{number}", 1.0, (200, 3_000), ("gpu", "small", "r", "engine"))
    told(costs, "large", 4.0, (200, 3_000), ("gpu", "large", "r", "engine"))
    small, large = costs.steps.general("small").ms(8, 8_000), costs.steps.general("large").ms(8, 8_000)
    assert large == pytest.approx(4 * small, rel=0.1)
    costs.forget("large")
    assert costs.steps.general("small").ms(8, 8_000) == pytest.approx(small)
    assert costs.steps.general("large").ms(8, 8_000) == costs.steps.general("never seen").ms(8, 8_000)


def test_a_new_kind_begins_at_what_the_nearest_takes() -> None:
    costs = CostModel(CostPriors())
    told(costs, "here", 1.0, (200, 3_000), ("gpu", "model", "r1", "engine"))
    told(costs, "slower", 2.0, (200, 3_000), ("old gpu", "model", "r1", "engine"))
    told(costs, "other", 8.0, (200, 3_000), ("gpu", "other", "r1", "engine"))
    costs.observe_load("rolled", IDLE, 0, ("gpu", "model", "r2", "engine"))
    assert costs.prefill_ms("rolled", 2_000) == pytest.approx(costs.prefill_ms("here", 2_000), rel=0.02)
    told(costs, "rolled", 1.5, (200, 3_000), ("gpu", "model", "r2", "engine"))
    assert costs.prefill_ms("rolled", 2_000) == pytest.approx(1.5 * costs.prefill_ms("here", 2_000), rel=0.08)
    costs.observe_load("alien", IDLE, 0, ("gpu", "new", "r1", "engine"))
    assert costs.prefill_ms("alien", 2_000) == pytest.approx(
        CostModel(CostPriors()).prefill_ms("alien", 2_000), rel=0.02
    )


def test_fits_that_come_with_heartbeats_alone_teach_as_well() -> None:
    """Most figures go without a fit; they neither take back nor change what a fit has told."""
    costs = CostModel(CostPriors())
    for worker, pace in (("a", 1.0), ("b", 1.0), ("c", 1.0), ("slow", 1.5)):
        told(costs, worker, pace, (200, 3_000))
    names = ("a", "slow", "of another kind")
    before = [(costs.prefill_ms(name, 2_000), costs.step_ms(name, 8, 8_000)) for name in names]
    for turn in range(200):
        for worker, pace in (("a", 1.0), ("slow", 1.5)):
            costs.observe_load(worker, batch(pace * (1.0 + turn % 3), 8), 8_000, ("a",))
            costs.observe_spans(worker, (prompt_span(2_000, 3.0),), alone=True)
    after = [(costs.prefill_ms(name, 2_000), costs.step_ms(name, 8, 8_000)) for name in names]
    assert after == before
    assert before[1][0] == pytest.approx(1.5 * before[0][0], rel=0.1)


def test_a_new_engine_on_new_hardware_begins_at_what_the_model_takes_elsewhere() -> None:
    """Its first worker has had no prompt yet: the model is all that it has in common with others."""
    costs = CostModel(CostPriors())
    told(costs, "here", 1.0, (200, 3_000), ("gpu", "model", "r1", "engine"))
    told(costs, "other", 8.0, (200, 3_000), ("gpu", "other", "r1", "engine"))
    plain = StepSums(400, 400 * 0.0106, 400 * 8.0, 400 * 8_000.0)
    streams = StepFit(0.01, 5e-5, 3e-8, 0.0, 0.0, 0.0, plain)
    costs.observe_load("new", replace_struct(IDLE, fit=streams), 0, ("new gpu", "model", "r1", "new engine"))
    assert costs.prefill_ms("new", 2_000) == pytest.approx(costs.prefill_ms("here", 2_000), rel=0.05)
