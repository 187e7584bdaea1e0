"""A fleet of simulated workers gives its clients the times that the same fleet of real schedulers gives them.

Placement is fixed, so that each request meets the same neighbours in both. The schedulers learn the times of their
steps as they do in production; the simulated workers know them.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from tandem.engine.simulated.presets import preset
from tandem.engine.step_model import PromptCost
from tandem.engine.step_rules import Allowance, StepBounds, open_allowance
from tandem.fleetsim.fleet import Fleet, FleetSettings, roles
from tandem.fleetsim.gaps import all_gaps
from tandem.fleetsim.router import Knowledge
from tandem.fleetsim.step_time import StepTime
from tandem.fleetsim.worker import Worker
from tandem.fleetsim.worker_settings import WorkerSettings
from tandem.fleetsim.workload import Request, Stage, Workload
from tests.unit.fleet_real_worker import RealWorker

MODEL = preset("h100-llama-3.1-70b-tp4")
BLOCK = MODEL.model.block_tokens
Drawn = tuple[float, tuple[int, ...], int, int, int]
"""(arrival, blocks of the prompt, its tokens, the answer's, group of requests that stay together)."""


def unified() -> list[Drawn]:
    """Short prompts and long ones, nothing shared."""
    draw, at, drawn = random.Random(1), 0.0, list[Drawn]()
    for number in range(400):
        at += draw.expovariate(4.5)
        short = draw.random() < 0.65
        prompt = int(draw.lognormvariate(6, 0.6)) if short else draw.randint(3000, 10_000)
        blocks = tuple(number << 20 | place for place in range(-(-prompt // BLOCK)))
        drawn.append((at, blocks, prompt, 2 + int(draw.lognormvariate(4.4, 0.6)), number))
    return drawn


def conversation() -> list[Drawn]:
    """Sessions of up to five turns, each with all that was said before and one of three common beginnings."""
    draw, drawn, name = random.Random(3), list[Drawn](), 1 << 40
    for session in range(60):
        at, prompt, common = draw.uniform(0, 60), 1600, draw.randrange(3) << 30
        blocks = [common | place for place in range(prompt // BLOCK)]
        while prompt < 9000 and len(drawn) < 400:
            whole = prompt // BLOCK
            prompt += 1 + int(draw.lognormvariate(6.3, 0.7))
            blocks = [*blocks[:whole], *range(name, name + -(-prompt // BLOCK) - whole)]
            name += len(blocks)
            drawn.append((at, tuple(blocks), prompt, 2 + int(draw.lognormvariate(4.9, 0.6)), session))
            at += draw.uniform(6, 20)
    return sorted(drawn)


@dataclass(frozen=True)
class Case:
    """One fleet and what it is asked."""

    drawn: Callable[[], list[Drawn]]
    roles: tuple[str, ...]
    kv_tokens: int


CASES = {
    "unified": Case(unified, roles(unified=2), MODEL.model.blocks * BLOCK),
    "conversation": Case(conversation, roles(unified=2), 40_000),
}


class Placed:
    """Every request's group has its worker."""

    def __init__(self, knowledge: Knowledge, groups: dict[int, int]) -> None:
        self._prefill = [worker.index for worker in knowledge.workers if worker.role == "prefill"]
        self._rest = [worker.index for worker in knowledge.workers if worker.role != "prefill"]
        self._groups = groups

    def place(self, request: Request, now: float) -> tuple[int, int]:
        group, prefills = self._groups[request.number], len(self._prefill)
        prefill = self._prefill[group % prefills] if prefills else -1
        return self._rest[group // max(1, prefills) % len(self._rest)], prefill

    def first_token(self, request: Request, now: float) -> None: ...

    def finished(self, request: Request, now: float) -> None: ...

    def transferred(self, request: Request, tokens: int, seconds: float) -> None: ...


def played(name: str, worker_of: Callable[..., Any]) -> dict[str, float]:
    """Seconds by quantile."""
    case = CASES[name]
    drawn = case.drawn()
    requests = tuple(
        Request(number, at, blocks, BLOCK, prompt, answer, 4096)
        for number, (at, blocks, prompt, answer, _) in enumerate(drawn)
    )
    groups = {number: group for number, (*_, group) in enumerate(drawn)}
    of_worker = WorkerSettings(
        case.kv_tokens, BLOCK, StepTime.of(MODEL.model), 2048, itl_target_s=0.05, engine_block_tokens=BLOCK
    )
    fleet = Fleet(
        FleetSettings(case.roles, of_worker, 50e9 / MODEL.kv_token_bytes),
        lambda knowledge: Placed(knowledge, groups),
        worker_of,
    )
    fleet.run(Workload(name, (Stage(1.0, drawn[-1][0], requests),)))
    fleet.check()
    firsts = sorted(request.ttft_s for request in requests)
    gaps = all_gaps(request.gaps for request in requests)
    assert gaps.count == sum(request.output_tokens - 1 for request in requests)
    ttft = {f"TTFT p{share}": firsts[len(firsts) * share // 100] for share in (50, 90, 99)}
    return ttft | {f"ITL p{share}": gaps.quantile(share / 100) for share in (50, 99)}


@cache
def real(name: str) -> dict[str, float]:
    """The schedulers' seconds."""
    return played(name, RealWorker)


@pytest.mark.parametrize("name", CASES)
def test_simulated_workers_take_as_long_as_schedulers(name: str) -> None:
    assert played(name, Worker) == pytest.approx(real(name), rel=0.05)


def test_a_worker_that_forgets_what_decodes_beside_its_prompts_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(bounds: StepBounds, rows: int, running_s: float, margin: float, cost: PromptCost) -> Allowance:
        return open_allowance(bounds, rows, 0.0, margin, cost)

    monkeypatch.setattr("tandem.fleetsim.prompts.open_allowance", forgetful)
    wrong = played("unified", Worker)
    assert wrong["ITL p99"] > 1.1 * real("unified")["ITL p99"]
    assert wrong["TTFT p50"] < 0.9 * real("unified")["TTFT p50"]
