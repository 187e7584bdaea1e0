"""Prompts of which nothing has been computed leave a starved prefill worker: when, where to, and at what cost."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from router.dispatch import prefill_rebalance as relief
from router.dispatch.attempt import WorkerStream
from router.dispatch.recovery import RecoveryStream
from router.dispatch.request_state import RequestState
from router.dispatch.starvation import AlternativeWorker, PrefillRate
from router.fleet.peer import Peer
from router.placement import Breakdown
from router.settings import AdmissionSettings, RetrySettings, RouterSettings
from tandem.apps.simulation.counting import CountingMeter
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.messages import Cancel, Load
from tests.unit.router.dispatch.test_prefill_given_up import PAIRED, ended, told
from tests.worlds.router_world import Client, ScriptedWorker, World


def starved(
    body: Callable[[World, CountingMeter], Awaitable[None]],
    workers: str,
    settings: RouterSettings = PAIRED,
    *,
    paces: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Prefill worker `p1` and decode worker `d1`, and more, compute ten tokens of prompts a second, but for `p2` and
    those in `paces`, and say so once a heartbeat."""

    async def main(loop: VirtualLoop) -> None:
        meter = CountingMeter()
        world = World(loop, settings, meter=meter)
        for name in workers.split():
            worker = world.worker(name, {"p": "prefill", "d": "decode"}[name[0]])
            worker.gets_on, worker.prefill_s = True, 10.0 if name != "p2" else 0.05
            worker.load = pace(worker, paces)
        await world.start()
        telling = loop.create_task(tell(world, paces))
        await body(world, meter)
        telling.cancel()
        await world.stop()

    run(main, limit_s=3000.0)


def pace(worker: ScriptedWorker, paces: Mapping[str, float]) -> Load:
    tokens_a_second = paces.get(worker.worker_id, 1e4 if worker.worker_id == "p2" else 10.0)
    return Load(0, 0, 0, 900, 0, 0, 0.0, tokens_a_second, 0.0, 0)


async def tell(world: World, paces: Mapping[str, float]) -> None:
    while True:
        await asyncio.sleep(0.5)
        for worker in world.workers.values():
            if worker.link is not None:
                worker.link.state.send(pace(worker, paces))


def test_who_cannot_be_answered_in_time_is_refused_with_the_estimate_long_before() -> None:
    async def body(world: World, meter: CountingMeter) -> None:
        clients = [world.ask(tokens=1000, timeout_s=40.0) for _ in range(6)]
        for client in clients:
            await ended(client)
        errors = [client.error for client in clients if client.error is not None]
        refused = [error for error in errors if error.code == "queue_full"]
        assert meter.sum("tandem_starved_prompts_total", "refused") == len(refused) > 0
        for error in refused:
            assert error.retry_after_s is not None
            assert error.retry_after_s >= 1.0
            assert "its first token is expected in" in error.message

    starved(body, "p1 d1")


@pytest.mark.parametrize(("workers", "timeout_s"), [("p1 d1", 600.0), ("p1 p2 d1", 20.0)])
def test_a_prompt_that_is_expected_in_time_or_not_clearly_later_stays(workers: str, timeout_s: float) -> None:
    async def body(world: World, meter: CountingMeter) -> None:
        clients = [world.ask(tokens=100, timeout_s=timeout_s) for _ in range(3)]
        for client in clients:
            (await ended(client)).check_whole()
        assert meter.sum("tandem_starved_prompts_total", "moved") == 0
        assert meter.sum("tandem_placements_total", "local") == 0

    starved(body, workers)


async def until(world: World, holds: Callable[[], bool]) -> float:
    """When it does."""
    for _ in range(10_000):
        if holds():
            return world.clock.now()
        await asyncio.sleep(0.01)
    raise AssertionError("it never does")


def test_a_prompt_is_submitted_elsewhere_only_after_prefill_has_said_that_it_has_ended() -> None:
    """Placement learns how slow `p1` is when the prompts are there already."""

    async def body(world: World, meter: CountingMeter) -> None:
        slow, decode = world.workers["p1"], world.workers["d1"]
        slow.end_s, slow.prefill_s = 1.0, 1000.0
        clients = [world.ask(tokens=100, timeout_s=25.0) for _ in range(4)]
        cancelled = await until(world, lambda: told(slow, Cancel) > 0)
        again = await until(world, lambda: any(submit.mode == "local" for submit in decode.submits))
        assert again - cancelled >= 0.95
        moved = [submit.request_id for submit in decode.submits if submit.mode == "local"]
        assert moved
        for client in clients:
            await ended(client)
            if client.generation.request_id in moved:
                client.check_whole()
        assert meter.sum("tandem_starved_prompts_total", "moved") >= len(moved)

    starved(body, "p1 d1")


def of_priority(world: World, priority: int, timeout_s: float) -> Client:
    client = Client(
        world, msgspec.structs.replace(world.generation(tokens=100, timeout_s=timeout_s), priority=priority)
    )
    world.dispatcher.start(client.generation, client)
    return client


def test_a_prompt_is_judged_by_its_turn_as_its_priority_has_it() -> None:
    """Twenty prompts of ten seconds each wait; the one that comes last is computed next, the twenty-first would be
    refused."""

    async def body(world: World, meter: CountingMeter) -> None:
        clients = [world.ask(tokens=100) for _ in range(20)]
        await asyncio.sleep(0.1)
        urgent = of_priority(world, 5, 30.0)
        await asyncio.sleep(3.0)
        assert urgent.error is None
        assert meter.sum("tandem_starved_prompts_total") == 0
        usual = of_priority(world, 0, 30.0)
        await asyncio.sleep(1.0)
        assert usual.error is not None
        assert usual.error.code == "queue_full"
        for client in (*clients, urgent):
            (await ended(client)).check_whole()

    starved(body, "p1 d1", paces={"d1": 1.0})


def peer_of(world: World, worker_id: str) -> Peer:
    peer = world.fleet.peer(worker_id)
    assert peer is not None
    return peer


def test_what_a_worker_has_begun_is_computed_before_more_urgent_prompts_that_come_later() -> None:
    """Each is judged by the tokens that are computed there until it has its first one."""

    async def body(world: World, _: CountingMeter) -> None:
        world.workers["p1"].gets_on = False
        clients = [of_priority(world, 0, 600.0), of_priority(world, 0, 600.0), of_priority(world, 5, 600.0)]
        await asyncio.sleep(0.1)
        peer = peer_of(world, "p1")
        first = next(leg for _, leg in peer.targets() if isinstance(leg, WorkerStream))
        first.on_progress(world.clock.now(), 40)
        waiting = [(each.request.generation.request_id, each.tokens) for each in relief._waiting(peer)]
        names = [client.generation.request_id for client in clients]
        assert waiting == [(names[0], 60), (names[2], 160), (names[1], 260)]
        eta_s = world.dispatcher._prefill_rebalancer.prefill_eta_s(peer)
        assert sorted(eta_s.values()) == pytest.approx([6.0, 16.0, 26.0], rel=0.1)
        for client in clients:
            await ended(client)

    starved(body, "p1 d1", paces={"d1": 0.01})


def test_neither_a_claim_nor_a_prompt_that_has_been_computed_waits_on_a_worker() -> None:
    """A router that takes requests over asks every worker for them, while figures go on coming."""

    async def body(world: World, _: CountingMeter) -> None:
        world.workers["p1"].prefill_s, world.workers["p1"].report = 0.05, False
        client = world.ask(tokens=100, max_tokens=30)
        await asyncio.sleep(0.2)
        assert client.tokens[0]
        peer = peer_of(world, "p1")
        recovery_stream = RecoveryStream(peer, lambda: None)
        assert len(peer.targets()) == 2
        assert relief._waiting(peer) == []
        assert world.dispatcher._prefill_rebalancer.prefill_eta_s(peer) == {}
        peer.close(recovery_stream.handle)
        await ended(client)

    starved(body, "p1 d1")


def test_a_prompt_that_waits_is_judged_by_what_its_placement_expected_and_what_its_client_has_left() -> None:
    async def body(world: World, _: CountingMeter) -> None:
        clients = [world.ask(tokens=100, timeout_s=60.0) for _ in range(2)]
        await asyncio.sleep(0.5)
        request = list(world.dispatcher._requests.values())[1]
        leg = request.worker_streams[0]
        waits = request.prompt_waits(leg, 7.0, 17.0, world.clock.now())
        assert waits is not None
        assert (waits.turn_s, waits.here_s, waits.moves) == (7.0, 17.0, 0)
        assert waits.waited_s == pytest.approx(0.5, abs=0.01)
        assert waits.left_s == pytest.approx(59.5, abs=0.01)
        assert waits.expected_s == pytest.approx(20.0, rel=0.02), "its own ten seconds and those of the one before"
        request._hedging.second = request._attempt
        assert request.prompt_waits(leg, 7.0, 17.0, world.clock.now()) is None, "another attempt races it"
        request._hedging.second = None
        leg.on_progress(world.clock.now(), 1)
        assert request.prompt_waits(leg, 7.0, 17.0, world.clock.now()) is None, "some of it has been computed"
        for client in clients:
            await ended(client)

    starved(body, "p1 d1", paces={"d1": 0.01})


def test_what_a_placement_expected_of_the_first_token_is_the_line_the_fetch_and_the_prompt() -> None:
    """A prompt whose blocks take long to come is not taken to be starved for that."""

    async def body(world: World, _: CountingMeter) -> None:
        client = world.ask(tokens=100)
        await asyncio.sleep(0.1)
        (request,) = world.dispatcher._requests.values()
        attempt = request._attempt
        assert attempt is not None
        cost = Breakdown(1000.0, 2000.0, 100.0, 9000.0, 90.0, fetch_ms=4000.0)
        costs = ((attempt.placement.costs[0][0], cost),)
        attempt.placement = msgspec.structs.replace(attempt.placement, costs=costs)
        waits = request.prompt_waits(request.worker_streams[0], 7.0, 17.0, world.clock.now())
        assert waits is not None
        assert (waits.expected_s, waits.answer_s) == (7.0, 9.0)
        await ended(client)

    starved(body, "p1 d1", paces={"d1": 0.01})


def test_elsewhere_a_prompt_has_its_turn_as_late_as_prompts_there_have_been_seen_to() -> None:
    """Steps of `p3` say that it has all that waits there within a second; it has computed a token in each of the
    last four. Whoever believed the steps would have prompts go to and fro between two starved workers."""

    async def body(world: World, _: CountingMeter) -> None:
        clients = [world.ask(tokens=100) for _ in range(4)]
        await asyncio.sleep(0.1)
        rebalancer, now = world.dispatcher._prefill_rebalancer, world.clock.now()
        waiting = relief._waiting(peer_of(world, "p1"))
        drain = rebalancer._drains["p3"] = PrefillRate()
        drain.look(now - 4.0, 0, 2)
        drain.look(now, 4, 2)
        there = rebalancer._elsewhere(waiting[0].request, (("p1", 1),), forced=False)
        assert there is not None
        assert there.name == "p3"
        assert there.first_s >= 100.0
        for client in clients:
            await ended(client)

    starved(body, "p1 p3 d1", paces={"p1": 1e3, "p3": 1e3, "d1": 0.01})


class Looks:
    """What looks at waiting prompts ask for."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch) -> None:
        self._world = world
        self.asked = list[str]()
        """Requests for which another place was looked for."""
        self.walks = 0
        find, walk = world.dispatcher._placing.find, relief._waiting

        def found(request: RequestState, *given: Any, **named: Any) -> Any:
            self.asked.append(request.generation.request_id)
            return find(request, *given, **named)

        def walked(peer: Peer) -> Any:
            self.walks += 1
            return walk(peer)

        patch.setattr(world.dispatcher._placing, "find", found)
        patch.setattr(relief, "_waiting", walked)

    def look(self, worker_id: str) -> list[str]:
        """The next look at a worker's prompts, now; for which of them another place was looked for."""
        (peer,) = (peer for peer in self._world.fleet.peers() if peer.worker_id == worker_id)
        self.asked, self.walks = [], 0
        self._world.dispatcher._prefill_rebalancer._looked.clear()
        self._world.dispatcher._prefill_rebalancer.loaded(peer)
        return self.asked


def test_the_prompts_that_wait_are_looked_at_once_a_heartbeat_however_often_figures_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Busy workers tell theirs many times a second, and every look walks over all that waits."""

    async def body(world: World, _: CountingMeter) -> None:
        clients = [world.ask(tokens=10) for _ in range(4)]
        await asyncio.sleep(0.1)
        looks, peer = Looks(world, monkeypatch), peer_of(world, "p1")
        looks.look("p1")
        for _ in range(2):
            walks = looks.walks
            for _ in range(5):
                world.dispatcher.loaded(peer, pace(world.workers["p1"], {}))
            assert looks.walks == walks
            await asyncio.sleep(world.settings.deadlines.heartbeat_every_s)
            world.dispatcher.loaded(peer, pace(world.workers["p1"], {}))
            assert looks.walks > walks
        for client in clients:
            await ended(client)

    starved(body, "p1 d1")


@pytest.mark.parametrize("waiting", [100, 400])
def test_a_look_costs_no_more_the_more_prompts_wait_and_all_have_their_turn(
    waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second each on two workers. Three in ten are not in time, and stay: nobody has them earlier, and they are not
    late enough to be refused."""

    async def body(world: World, meter: CountingMeter) -> None:
        clients = [world.ask(tokens=10, timeout_s=0.7 * waiting) for _ in range(2 * waiting)]
        await asyncio.sleep(0.3)
        looks, asked = Looks(world, monkeypatch), set[str]()
        for _ in range(waiting // relief._JUDGED_MAX + 1):
            found = looks.look("p1")
            assert 0 < len(found) <= 2 * relief._JUDGED_MAX
            assert looks.walks <= 2, "one of each prefill worker"
            asked |= set(found)
        assert len(asked) >= 0.3 * waiting
        assert meter.sum("tandem_starved_prompts_total") == 0
        for client in clients:
            await ended(client)

    slow = {f"d{number}": 0.01 for number in range(1, 5)}
    settings = replace(PAIRED, admission=AdmissionSettings(requests_max=1000))
    starved(body, "p1 p3 d1 d2 d3 d4", settings, paces=slow)


def test_a_prompt_goes_to_another_prefill_worker_that_has_it_in_time_before_anybody_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten seconds each. The third on `p1` is too late there, and not twice as early on `p2`; decode is no help."""

    def elsewhere(_: RequestState, __: object, *, forced: bool) -> AlternativeWorker:
        return AlternativeWorker("d1", 25.0, 0.0, 0.2) if forced else AlternativeWorker("p2", 14.0, 0.0, 0.2)

    async def body(world: World, meter: CountingMeter) -> None:
        monkeypatch.setattr(world.dispatcher._prefill_rebalancer, "_elsewhere", elsewhere)
        clients = [world.ask(tokens=100, timeout_s=15.0) for _ in range(6)]
        await asyncio.sleep(0.3)
        p1, p2 = world.workers["p1"], world.workers["p2"]
        here, there = ([submit.request_id for submit in worker.submits] for worker in (p1, p2))
        Looks(world, monkeypatch).look("p1")
        monkeypatch.undo()
        await asyncio.sleep(0.1)
        moved = [submit.request_id for submit in p2.submits if submit.request_id not in there]
        assert moved == here[-1:0:-1], "all but the one that is computed now, the last first"
        assert meter.sum("tandem_starved_prompts_total", "moved") == len(moved)
        assert meter.sum("tandem_starved_prompts_total", "refused") == 0
        for client in clients:
            await ended(client)

    starved(body, "p1 p2 d1", paces={"p2": 10.0})


def test_prompts_on_their_way_to_another_worker_count_there_as_if_they_had_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second each on both: of eleven that wait on `p1` five leave at one look; the sixth is no earlier there."""

    async def body(world: World, meter: CountingMeter) -> None:
        peer_of(world, "p2").view.draining = True
        clients = [world.ask(tokens=10, timeout_s=8.0) for _ in range(11)]
        peer_of(world, "p2").view.draining = False
        assert len(relief._waiting(peer_of(world, "p1"))) == 11
        Looks(world, monkeypatch).look("p1")
        leaving = [request.prompt_moves for request in world.dispatcher._requests.values()]
        assert leaving == [False] * 6 + [True] * 5
        assert meter.sum("tandem_starved_prompts_total", "refused") == 0
        monkeypatch.undo()
        for client in clients:
            await ended(client)

    starved(body, "p1 p2 d1", paces={"p2": 10.0, "d1": 0.01})


@pytest.mark.parametrize(("decode_s", "refused"), [(25.0, 0), (35.0, 1)])
def test_nobody_is_refused_while_decode_might_have_the_prompt_in_time(
    decode_s: float, refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds each: the fourth on `p1` has 20 s for what takes 40 there, and no other prefill worker is left."""

    def elsewhere(_: RequestState, __: object, *, forced: bool) -> AlternativeWorker | None:
        return AlternativeWorker("d1", decode_s, 0.0, 0.2) if forced else None

    async def body(world: World, meter: CountingMeter) -> None:
        monkeypatch.setattr(world.dispatcher._prefill_rebalancer, "_elsewhere", elsewhere)
        clients = [world.ask(tokens=100, timeout_s=20.0) for _ in range(4)]
        Looks(world, monkeypatch).look("p1")
        assert meter.sum("tandem_starved_prompts_total", "refused") == refused
        assert [client.error is not None for client in clients] == [False, False, False, refused == 1]
        for client in clients:
            await ended(client)

    starved(body, "p1 d1", paces={"d1": 0.01})


def test_a_prompt_that_moves_when_some_of_it_has_been_computed_after_all_is_a_retry() -> None:
    """It was begun before the cancel came: ten tokens, says the report."""

    async def body(world: World, _: CountingMeter) -> None:
        client = world.ask(tokens=100)
        await asyncio.sleep(0.1)
        (request,) = world.dispatcher._requests.values()
        prefill = request.worker_streams[0].peer
        request.move_prompt("it is slow", [(prefill.worker_id, prefill.epoch)])
        (await ended(client)).check_whole()
        assert sorted(len(world.workers[name].submits) for name in ("p1", "p3")) == [1, 1]
        assert not world.dispatcher.may_retry(), "the only retry was charged"

    starved(body, "p1 p3 d1", replace(PAIRED, retry=RetrySettings(share=0.0, burst=1)))


def test_time_in_which_a_worker_took_no_prompts_does_not_make_it_slow() -> None:
    async def body(world: World, __: CountingMeter) -> None:
        world.workers["p1"].prefill_s = 500.0
        clients = [world.ask(tokens=10, timeout_s=3600.0) for _ in range(3)]
        await asyncio.sleep(0.3)
        (peer,) = (peer for peer in world.fleet.peers() if peer.worker_id == "p1")
        drains, paces = world.dispatcher._prefill_rebalancer._drains, list[float]()
        for takes in (True, False, True):
            peer.view.take_prompts(takes)
            for _ in range(20):
                await asyncio.sleep(0.5 if takes else 10.0)
                if takes:
                    peer.view.prompt_tokens_computed += 500
                    paces.append(drains["p1"].token_s())
        assert paces[-1] == pytest.approx(0.001, rel=0.01)
        assert max(paces) <= 0.0021
        for client in clients:
            await ended(client)

    starved(body, "p1 d1", paces={"d1": 0.01})
