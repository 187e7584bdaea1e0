"""Hedging of a late prefill: when it is due, who wins, what it costs, and that it is off unless asked for."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from router.dispatch.attempt import Attempt
from router.dispatch.hedging import HedgeDecision, decide_hedge
from router.placement import Placement
from router.placement.decision import Breakdown, Candidate
from router.settings import PlacementSettings, RetrySettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.errors import TandemError
from tandem.core.messages import Cancel
from tests.worlds.router_world import Client, World

PAIRED = PlacementSettings(prefer="disaggregated")
COST = Breakdown(100.0, 400.0, 50.0, 1000.0, 10.0)


def attempt(number: int = 1, prefill: bool = True) -> Attempt:
    placement = Placement(
        "disaggregated", "d1", "p1" if prefill else None, 100, 0, ((Candidate("d1", "p1"), COST),), ()
    )
    leg = object()
    return Attempt(number, placement, leg, leg if prefill else None, {0: 1}, 0, "s", 10.0, 10.0)  # type: ignore[arg-type]


def decide(settings: RetrySettings, now: float, moved: bool = False, **shape: object) -> HedgeDecision:
    return decide_hedge(attempt(**shape), moved, settings, now)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        (RetrySettings(hedge_after=3.0), 11.5),
        (RetrySettings(hedge_after=1.0), 10.5),
        (RetrySettings(hedge_after_s=0.8), 10.8),
        (RetrySettings(hedge_after=3.0, hedge_after_s=0.8), 11.5),
        (RetrySettings(hedge_after=0.5, hedge_after_s=0.8), 10.8),
    ],
)
def test_it_is_due_after_a_multiple_of_what_was_expected_or_a_time(settings: RetrySettings, due: float) -> None:
    early = decide(settings, due - 0.001)
    assert not early.hedge
    assert early.look_at == pytest.approx(due)
    found = decide(settings, due)
    assert found.hedge
    assert found.reason == f"no first token after {due - 10.0:.3f} s, 0.500 s were expected"


def test_it_is_never_due_when_off_or_when_there_is_nothing_to_gain() -> None:
    on = RetrySettings(hedge_after=1.0, attempts_max=4)
    assert decide(RetrySettings(), 1e9) == HedgeDecision(False, "hedging is off")
    assert not decide(on, 1e9, moved=True).hedge
    assert not decide(on, 1e9, prefill=False).hedge
    assert not decide(on, 1e9, number=4).hedge
    assert decide(on, 1e9, number=3).hedge


@pytest.mark.parametrize("name", ["hedge_after", "hedge_after_s"])
def test_settings_that_mean_nothing_are_refused(name: str) -> None:
    with pytest.raises(TandemError, match=name):
        RetrySettings(**{name: 0.0})  # type: ignore[arg-type]


# ---- on workers ----


def race(
    body: Callable[[World], Awaitable[None]], workers: str = "p1 p2 d1 d2", retry: RetrySettings | None = None
) -> World:
    async def main(loop: VirtualLoop) -> World:
        settings = RouterSettings(placement=PAIRED, retry=retry or RetrySettings(hedge_after_s=0.5))
        world = World(loop, settings)
        for name in workers.split():
            world.worker(name, {"p": "prefill", "d": "decode"}[name[0]])
        await world.start()
        await body(world)
        await world.stop()
        assert all(not worker.jobs for worker in world.workers.values())
        return world

    return run(main, limit_s=3000.0)


async def ended(client: Client) -> Client:
    await client.ended.wait()
    client.check_whole()
    return client


def notes(world: World, request_id: str = "req-1") -> dict[int, str]:
    spans = [span for span in world.recorder.kept[request_id] if span.name == "attempt"]
    return {int(span.attributes["number"]): str(span.attributes.get("notes", "")) for span in spans}


def outcomes(world: World, request_id: str = "req-1") -> dict[int, str]:
    spans = [span for span in world.recorder.kept[request_id] if span.name == "attempt"]
    return {int(span.attributes["number"]): str(span.attributes["outcome"]) for span in spans}


@pytest.mark.parametrize("n", [1, 3])
def test_another_prefill_worker_brings_the_first_token_of_a_late_one(n: int) -> None:
    async def body(world: World) -> None:
        world.workers["p1"].prefill_s = 20.0
        began = world.clock.now()
        client = world.ask(tokens=100, n=n)
        seen: list[float] = []
        client.on_output = lambda: seen.append(world.clock.now() - began)
        await ended(client)
        assert 0.5 < seen[0] < 0.7
        (late_submit,) = world.workers["p1"].submits
        assert Cancel(late_submit.handle) in world.workers["p1"].commands
        assert len(world.workers["p2"].submits) == 1
        assert sum(len(world.workers[name].submits) for name in ("d1", "d2")) == 2

    world = race(body)
    assert outcomes(world) == {1: "outrun", 2: "done"}
    assert "no first token after" in notes(world)[1]
    assert "raced by another attempt" in notes(world)[1]
    assert "before attempt 1" in notes(world)[2]


def test_a_late_prefill_is_raced_once_however_late_both_are() -> None:
    """Each further attempt would compute the prompt again, on a fleet that is late already."""

    async def body(world: World) -> None:
        for name in ("p1", "p2", "p3"):
            world.workers[name].prefill_s, world.workers[name].gets_on = 25.0, True
        await ended(world.ask(tokens=100))
        assert sum(len(world.workers[name].submits) for name in ("p1", "p2", "p3")) == 2

    assert outcomes(race(body, "p1 p2 p3 d1 d2", RetrySettings(hedge_after_s=0.5, share=1.0, burst=100))).keys() == {
        1,
        2,
    }


def test_a_late_one_that_comes_first_after_all_goes_on() -> None:
    async def body(world: World) -> None:
        world.workers["p1"].prefill_s = 0.6
        world.workers["p2"].prefill_s = 5.0
        await ended(world.ask(tokens=100))
        assert any(isinstance(command, Cancel) for command in world.workers["p2"].commands)

    assert outcomes(race(body)) == {1: "done", 2: "outrun"}


def test_decode_alone_races_when_there_is_no_other_prefill_worker() -> None:
    async def body(world: World) -> None:
        world.workers["p1"].prefill_s = 20.0
        await ended(world.ask(tokens=100))
        modes = [submit.mode for name in ("d1", "d2") for submit in world.workers[name].submits]
        assert sorted(modes) == ["decode", "local"]

    assert outcomes(race(body, "p1 d1 d2")) == {1: "outrun", 2: "done"}


def test_off_by_default_a_late_prefill_is_waited_for() -> None:
    async def body(world: World) -> None:
        world.workers["p1"].prefill_s = 20.0
        await ended(world.ask(tokens=100))
        assert not world.workers["p2"].submits

    assert outcomes(race(body, retry=RetrySettings())) == {1: "done"}


def test_a_request_is_raced_once_and_only_within_the_budget_of_retries() -> None:
    async def body(world: World) -> None:
        for name in ("p1", "p2"):
            world.workers[name].prefill_s = 3.0
        clients = [world.ask(tokens=100) for _ in range(20)]
        for client in clients:
            await ended(client)
        assert sum(len(world.workers[name].submits) for name in ("p1", "p2")) == 20 + 2

    world = race(body, retry=RetrySettings(hedge_after_s=0.5, share=0.2, burst=2))
    raced = [number for number in range(1, 21) if len(outcomes(world, f"req-{number}")) == 2]
    assert len(raced) == 2, "what the first attempts earned while the budget was full is not kept"
    assert any("nobody may race it" in notes(world, f"req-{number}")[1] for number in range(1, 21))


def test_when_one_of_two_attempts_is_lost_the_other_goes_on_without_a_retry() -> None:
    async def body(world: World) -> None:
        for name in ("p1", "p2"):
            world.workers[name].prefill_s = 2.0
        client = world.ask(tokens=100)
        first = next(name for name in ("d1", "d2") if _waits(world, name))
        world.loop.call_later(1.0, world.workers[first].die)
        await ended(client)

    found = outcomes(race(body))
    assert set(found) == {1, 2}
    assert found[2] == "done"


def _waits(world: World, name: str) -> bool:
    peer = world.fleet.peer(name)
    return peer is not None and bool(peer.targets())


def test_a_second_attempt_that_fails_is_nobodys_loss() -> None:
    async def body(world: World) -> None:
        world.workers["p1"].prefill_s = 1.0
        client = world.ask(tokens=100)
        for name in ("p2", "d1", "d2"):
            world.loop.call_later(0.3, setattr, world.workers[name], "fail_with", ("engine_failed", "drawn"))
        await ended(client)

    found = outcomes(race(body))
    assert found == {1: "done", 2: "engine_failed"}


def test_a_cancel_reaches_both_attempts() -> None:
    async def body(world: World) -> None:
        for name in ("p1", "p2"):
            world.workers[name].prefill_s = 5.0
        client = Client(world, world.generation(tokens=100))
        running = world.dispatcher.start(client.generation, client)
        world.loop.call_later(1.0, running.cancel, "gone")
        await asyncio.sleep(1.1)
        assert all(not worker.jobs for worker in world.workers.values())

    found = outcomes(race(body))
    assert found == {1: "cancelled", 2: "cancelled"}


def test_the_total_deadline_ends_both_attempts() -> None:
    async def body(world: World) -> None:
        for name in ("p1", "p2"):
            world.workers[name].prefill_s = 50.0
        client = world.ask(tokens=100, timeout_s=2.0)
        await client.ended.wait()
        assert client.error is not None
        assert client.error.code == "deadline_exceeded"
        await asyncio.sleep(0.1)
        assert all(not worker.jobs for worker in world.workers.values())

    race(body)


def test_settings_are_where_the_other_retry_settings_are() -> None:
    assert replace(RouterSettings(), retry=RetrySettings(hedge_after=2.0)).retry.hedge_after == 2.0
