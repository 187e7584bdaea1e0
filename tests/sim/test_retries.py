"""Hedging and retries in whole platforms: a race breaks no promise, and a fault of every worker is no storm."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import pytest

from router.dispatch.hedging import Hedging
from router.dispatch.request_state import RequestState
from router.placement import Placement
from router.settings import PlacementSettings, RetrySettings, RouterSettings
from tandem.apps.simulation.faults.drawing import FaultProfile
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.apps.simulation.traffic import TrafficProfile
from tandem.apps.simulation.world import WorldSettings, simulate
from tandem.core.errors import TandemError
from tandem.core.messages import Submit
from tests.worlds.router_world import Client, ScriptedWorker, World

HEDGED: Final = WorldSettings(
    router=RouterSettings(retry=RetrySettings(hedge_after_s=0.06)),
    traffic=TrafficProfile(requests=40, branches_share=0.3),
    faults=FaultProfile(kills=1, corrupt_share=0.5, others=6, kinds=("slow", "freeze", "partition")),
    stall_s=12.0,
)


@contextmanager
def races(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts second attempts, and those that brought the first token."""
    counted: Counter[str] = Counter()
    begin, decide = RequestState.begin_beside, Hedging.decide

    def counting(request: RequestState, placement: Placement, *peers: object) -> None:
        counted["raced"] += 1
        begin(request, placement, *peers)  # type: ignore[arg-type]

    def deciding(hedging: Hedging, first: object, leg: object) -> object:
        left = decide(hedging, first, leg)  # type: ignore[arg-type]
        counted["won"] += left is not first
        return left

    with monkeypatch.context() as patch:
        patch.setattr(RequestState, "begin_beside", counting)
        patch.setattr(Hedging, "decide", deciding)
        yield counted


def test_races_for_the_first_token_break_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    with races(monkeypatch) as counted:
        for seed in range(5):
            ends = Counter(outcome.end for outcome in simulate(HEDGED, seed).outcomes)
            assert ends["done"] + ends["cancelled"] == 40
    assert counted["raced"] >= 10
    assert 2 <= counted["won"] < counted["raced"]


def test_nothing_is_raced_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with races(monkeypatch) as counted:
        simulate(replace(HEDGED, router=RouterSettings()), 0)
    assert counted["raced"] == 0


# ---- a fault that every worker has ----

OUTAGE_S: Final = 5.0
REQUESTS: Final = 1000
SPAN_S: Final = 10.0


@dataclass
class Storm:
    """How many attempts there were, per kind of worker, and how the requests ended."""

    prefills: int
    decodes: int
    ends: Counter[str]
    answered_after_s: float


def storm(retry: RetrySettings, broken: Callable[[ScriptedWorker], bool]) -> Storm:
    """1,000 requests over 10 s, while for 5 s every worker for which `broken` holds fails whatever it is given."""

    async def main(loop: VirtualLoop) -> Storm:
        world = World(loop, RouterSettings(placement=PlacementSettings(prefer="disaggregated"), retry=retry))
        for name in ("p1", "p2", "p3", "d1", "d2", "d3"):
            worker = world.worker(name, {"p": "prefill", "d": "decode"}[name[0]])
            worker.prefill_s, worker.step_s = 0.02, 0.005
        await world.start()
        loop.after_step = None
        began = world.clock.now()
        loop.call_later(2.0, fail, world, ("engine_failed", "it broke"))
        loop.call_later(2.0 + OUTAGE_S, fail, world, None)
        clients: list[Client] = []
        for number in range(REQUESTS):
            await asyncio.sleep(began + number * SPAN_S / REQUESTS - world.clock.now())
            clients.append(world.ask(tokens=100, max_tokens=4))
        for client in clients:
            await client.ended.wait()
        ends = Counter(client.error.code if client.error else "done" for client in clients)
        return Storm(attempts(world, "prefill"), attempts(world, "decode"), ends, world.clock.now() - began - SPAN_S)

    def fail(world: World, failure: tuple[str, str] | None) -> None:
        for worker in world.workers.values():
            if broken(worker):
                worker.fail_with = failure

    return run(main, limit_s=600.0)


def attempts(world: World, role: str) -> int:
    submits: list[Submit] = [
        submit for worker in world.workers.values() if worker.role == role for submit in worker.submits
    ]
    return len(submits)


def test_a_fault_that_every_decode_worker_has_adds_no_more_attempts_than_the_budget() -> None:
    retry = RetrySettings(share=0.2, burst=32)
    found = storm(retry, lambda worker: worker.role == "decode")
    assert found.decodes <= REQUESTS * (1 + retry.share) + retry.burst
    assert found.prefills <= REQUESTS * (1 + retry.share) + retry.burst
    assert set(found.ends) == {"done", "engine_failed"}
    assert found.ends["done"] >= 0.45 * REQUESTS, "what did not meet the fault was answered"
    assert found.answered_after_s < 2.0, "and nothing is left of it afterwards"


def test_without_a_budget_the_same_fault_would_be_a_storm() -> None:
    found = storm(RetrySettings(share=10.0, burst=10_000), lambda worker: worker.role == "decode")
    assert found.decodes > REQUESTS * 2


def test_a_fault_that_every_prefill_worker_has_is_computed_around_and_adds_no_attempt() -> None:
    found = storm(RetrySettings(), lambda worker: worker.role == "prefill")
    assert found.ends == Counter({"done": REQUESTS})
    assert found.prefills == found.decodes == REQUESTS


def test_hedging_shares_the_budget_with_retries() -> None:
    retry = RetrySettings(share=0.1, burst=8, hedge_after_s=0.001)
    found = storm(retry, lambda worker: worker.role == "decode")
    assert found.decodes <= REQUESTS * (1 + retry.share) + retry.burst
    assert set(found.ends) <= {"done", "engine_failed"}


def test_failures_are_typed_and_carry_the_reason_why_nothing_more_was_tried() -> None:
    async def main(loop: VirtualLoop) -> TandemError | None:
        retry = RetrySettings(share=0.0, burst=0)
        world = World(loop, RouterSettings(retry=retry))
        world.worker("d1", "decode").fail_with = ("engine_failed", "it broke")
        await world.start()
        client = world.ask()
        await client.ended.wait()
        return client.error

    error = run(main, limit_s=60.0)
    assert error is not None
    assert error.code == "engine_failed"
    assert "too many requests are being retried" in error.message
