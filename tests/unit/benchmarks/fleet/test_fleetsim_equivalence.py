"""A fleet of simulated workers gives its clients the times that the same fleet of real schedulers gives them.

Placement is fixed, so that each request meets the same neighbours in both. The schedulers learn the times of their
steps as they do in production; the simulated workers know them.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import pytest

from benchmarks.fleet.fleet import Fleet, FleetSettings, roles
from benchmarks.fleet.gaps import all_gaps
from benchmarks.fleet.router import Knowledge
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker import Worker
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request, Stage, Workload
from tandem.engine.scheduler.step_model import PromptCost
from tandem.engine.scheduler.step_rules import Allowance, Order, StepBounds, Way, may_enter, open_allowance, order_of
from tandem.engine.simulated.presets import preset
from tests.worlds.fleet_real_worker import RealWorker

MODEL = preset("h100-llama-3.1-70b-tp4")
BLOCK = MODEL.model.block_tokens


class Drawn(NamedTuple):
    """A request: `group` says with which others it stays together, `local` that its prompt is computed where it
    decodes, whatever workers there are."""

    at_s: float
    blocks: tuple[int, ...]
    prompt: int
    answer: int
    group: int
    priority: int = 0
    local: bool = False


def bimodal(seed: int = 1) -> list[Drawn]:
    """Short prompts and long ones, nothing shared; one in eight may overtake."""
    draw, at, drawn = random.Random(seed), 0.0, list[Drawn]()
    for number in range(400):
        at += draw.expovariate(4.5)
        short = draw.random() < 0.65
        prompt = int(draw.lognormvariate(6, 0.6)) if short else draw.randint(3000, 10_000)
        blocks = tuple(number << 20 | place for place in range(-(-prompt // BLOCK)))
        answer, priority = 2 + int(draw.lognormvariate(4.4, 0.6)), int(draw.random() < 0.125)
        drawn.append(Drawn(at, blocks, prompt, answer, number, priority))
    return drawn


def split(seed: int = 1) -> list[Drawn]:
    """Hand-overs to workers that are busy with long prompts of their own, mostly without anything that decodes."""
    draw, at, drawn = random.Random(seed), 0.0, list[Drawn]()
    for number in range(400):
        at += draw.expovariate(9.0)
        local = draw.random() < 0.25
        prompt = draw.randint(6000, 16_000) if local else int(draw.lognormvariate(6.5, 0.8))
        answer = 1 if local else draw.randint(2, 12)
        blocks = tuple(number << 20 | place for place in range(-(-prompt // BLOCK)))
        drawn.append(Drawn(at, blocks, prompt, answer, number, local=local))
    return drawn


def conversation(seed: int = 3) -> list[Drawn]:
    """Sessions of some turns, each with all that was said before and one of three common beginnings; one in eight may
    overtake."""
    draw, drawn, name = random.Random(seed), list[Drawn](), 1 << 40
    for session in range(60):
        at, prompt, common = draw.uniform(0, 60), 1600, draw.randrange(3) << 30
        blocks = [common | place for place in range(prompt // BLOCK)]
        while prompt < 9000 and len(drawn) < 400:
            whole = prompt // BLOCK
            prompt += 1 + int(draw.lognormvariate(6.3, 0.7))
            blocks = [*blocks[:whole], *range(name, name + -(-prompt // BLOCK) - whole)]
            name += len(blocks)
            answer, priority = 2 + int(draw.lognormvariate(4.9, 0.6)), int(session % 8 == 0)
            drawn.append(Drawn(at, tuple(blocks), prompt, answer, session, priority))
            at += draw.uniform(6, 20)
    return sorted(drawn)


@dataclass(frozen=True)
class Case:
    """One fleet and what it is asked."""

    drawn: Callable[[], list[Drawn]]
    roles: tuple[str, ...]
    kv_tokens: int = MODEL.model.blocks * BLOCK


CASES = {
    "unified": Case(bimodal, roles(unified=2)),
    "split": Case(split, roles(prefill=2, decode=2)),
    # The pool is small: prefixes are evicted, requests wait for blocks.
    "conversation": Case(conversation, roles(unified=2), 24_000),
}


class Placed:
    """Every request's group has its workers."""

    def __init__(self, knowledge: Knowledge, drawn: Sequence[Drawn]) -> None:
        self._prefill = [worker.index for worker in knowledge.workers if worker.role == "prefill"]
        self._rest = [worker.index for worker in knowledge.workers if worker.role != "prefill"]
        self._drawn = drawn

    def place(self, request: Request, now: float) -> tuple[int, int]:
        each, rest = self._drawn[request.number], self._rest
        if each.local or not self._prefill:
            return rest[each.group % len(rest)], -1
        turn, prefill = divmod(each.group, len(self._prefill))
        return rest[turn % len(rest)], self._prefill[prefill]

    def first_token(self, request: Request, now: float) -> None: ...

    def finished(self, request: Request, now: float) -> None: ...

    def transferred(self, request: Request, tokens: int, seconds: float) -> None: ...


def played(case: Case, worker_of: Callable[..., Any]) -> dict[str, float]:
    """Seconds by quantile."""
    drawn = case.drawn()
    requests = tuple(
        Request(number, each.at_s, each.blocks, BLOCK, each.prompt, each.answer, 4096, priority=each.priority)
        for number, each in enumerate(drawn)
    )
    of_worker = WorkerSettings(case.kv_tokens, BLOCK, StepTime.of(MODEL.model)).as_in_production()
    fleet = Fleet(
        FleetSettings(case.roles, of_worker, 50e9 / MODEL.kv_token_bytes),
        partial(Placed, drawn=drawn),
        worker_of,
    )
    fleet.run(Workload("equivalence", (Stage(1.0, drawn[-1].at_s, requests),)))
    fleet.check()
    firsts = sorted(request.ttft_s for request in requests)
    gaps = all_gaps(request.gaps for request in requests)
    assert gaps.count == sum(request.output_tokens - 1 for request in requests)
    urgent = sorted(request.ttft_s for request in requests if request.priority)
    found = {f"TTFT p{share}": firsts[len(firsts) * share // 100] for share in (50, 90, 99)}
    found |= {f"ITL p{share}": gaps.quantile(share / 100) for share in (50, 99)}
    return found | ({"urgent TTFT p90": urgent[len(urgent) * 9 // 10]} if urgent else {})


@cache
def real(name: str) -> dict[str, float]:
    """The schedulers' seconds."""
    return played(CASES[name], RealWorker)


@pytest.mark.parametrize("name", CASES)
def test_simulated_workers_take_as_long_as_schedulers(name: str) -> None:
    assert played(CASES[name], Worker) == pytest.approx(real(name), rel=0.05)


def forgetful(bounds: StepBounds, rows: int, running_s: float, margin: float, cost: PromptCost) -> Allowance:
    return open_allowance(bounds, rows, 0.0, margin, cost)


def by_arrival(priority: int, arrival: int) -> Order:
    return order_of(0, arrival)


def by_budget(way: Way, budget_left: bool, brought_ahead: int, fetch_ahead: int) -> bool:
    return may_enter("compute" if way == "fetch" else way, budget_left, brought_ahead, fetch_ahead)


@pytest.mark.parametrize(
    ("rule", "fault", "name", "figure"),
    [
        ("prompts.open_allowance", forgetful, "unified", "ITL p99"),
        ("places.order_of", by_arrival, "conversation", "urgent TTFT p90"),
        ("queueing.may_enter", by_budget, "split", "ITL p99"),
    ],
)
def test_a_worker_with_a_wrong_rule_is_told_apart(
    rule: str, fault: Callable[..., Any], name: str, figure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"benchmarks.fleet.{rule}", fault)
    assert played(CASES[name], Worker)[figure] > 1.1 * real(name)[figure]
