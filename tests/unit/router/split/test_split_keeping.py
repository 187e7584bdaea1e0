"""A router that decides, or follows, who of its `auto` workers takes prompts for others."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.fleet.service_split import ServiceSplit
from router.fleet.split_listing import FleetOutlook
from router.settings import PlacementSettings, RouterSettings
from router.split.plan import Planner
from router.split.values import ObservedRequest, Outlook, Split, SplitOption, WorkerStatus, WorkTimes
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.errors import TandemError
from tandem.core.messages import ITL_TARGET, Forecast, Pin, PublishSplit, SplitPublished, SplitRecord, Tune
from tandem.core.metrics import Meter, NullMeter
from tandem.core.slo import Slo
from tandem.link.messages import COMMANDS
from tests.unit.router.placement.test_router_placement import load
from tests.worlds.router_world import Client, World

NAMES = ("a1", "a2", "a3")


class Told(Planner):
    """A planner that decides what it is told, in three slices."""

    def __init__(self, prefills: frozenset[str] = frozenset(), itl_s: float | None = None) -> None:
        super().__init__(RouterSettings().split)
        self.wanted = Split(prefills, itl_s, "as told")
        self.looks: list[tuple[Sequence[WorkerStatus], WorkTimes, Slo, float]] = []
        self.met: list[bool] = []
        self.placed: list[bool] = []
        self.requests: list[ObservedRequest] = []

    def seen(self, request: ObservedRequest) -> None:
        self.requests.append(request)

    def outcome(self, arrival_s: float, met: bool, placed: bool = True) -> None:
        self.met.append(met)
        self.placed.append(placed)

    def look(
        self, now: float, standings: Sequence[WorkerStatus], times: WorkTimes, slo: Slo, share: float = 1.0
    ) -> Iterator[None]:
        self.looks.append((standings, times, slo, share))
        yield
        yield
        yield
        present = {standing.worker_id for standing in standings}
        self.moves += len(self.split.prefills ^ (self.wanted.prefills & present))
        self.split = self.wanted._replace(prefills=self.wanted.prefills & present)
        self.outlooks = (Outlook(SplitOption(len(self.split.prefills), self.split.itl_s), 0.9, 100.0),)


async def all_end(clients: Sequence[Client]) -> None:
    for client in clients:
        async with asyncio.timeout(120):
            await client.ended.wait()
        client.check_whole()


def service_of(world: World) -> ServiceSplit:
    return world.dispatcher._splits._services["demo"]


def scenario(
    body: Callable[[World], Awaitable[None]], roles: Sequence[str] = ("auto",) * 3, meter: Meter | None = None
) -> None:
    async def main(loop: VirtualLoop) -> None:
        settings = RouterSettings(placement=PlacementSettings(prefer="disaggregated"))
        world = World(loop, settings, canaries=True, meter=meter)
        for name, role in zip(NAMES, roles, strict=False):
            world.worker(name, role).features = (ITL_TARGET,)
        await world.start()
        await body(world)
        await world.stop()

    run(main)


def takers(world: World) -> set[str]:
    return {view.worker_id for view in world.fleet.views("demo") if view.takes_prompts}


def test_what_the_planner_decides_holds_from_the_next_placement_on() -> None:
    async def body(world: World) -> None:
        service_of(world).planner = planner = Told(frozenset(("a1",)), 0.02)
        before = world.ask(tokens=400, max_tokens=2000)
        await asyncio.sleep(4)
        assert takers(world) == {"a1"}
        after = world.ask(tokens=2100)
        await all_end([before, after])
        assert {submit.mode for submit in world.workers["a1"].submits} >= {"prefill"}
        tuned = [one.itl_target_s for one in world.workers["a2"].commands if isinstance(one, Tune)]
        assert tuned == [0.02]
        standings, times, slo, share = planner.looks[0]
        assert [standing.worker_id for standing in standings] == list(NAMES)
        assert not any(standing.barred for standing in standings)
        assert all(standing.itl_target for standing in standings)
        assert times.max_batched_tokens > 0
        assert slo == world.fleet.services.slo("demo")
        assert share == 1.0
        assert len(planner.requests) >= 1
        assert planner.met
        last = planner.requests[-1]
        assert last.prefills == 1
        assert len(last.marks) == last.prompt_tokens // 1024

    scenario(body)


def test_a_look_comes_every_few_seconds_and_at_once_when_a_worker_goes() -> None:
    async def body(world: World) -> None:
        service_of(world).planner = planner = Told(frozenset(("a1", "a2")))
        await asyncio.sleep(20)
        looks = len(planner.looks)
        assert 3 <= looks <= 5
        world.workers["a1"].die()
        await asyncio.sleep(1.5)
        assert len(planner.looks) > looks
        assert takers(world) == {"a2"}
        await all_end([world.ask(tokens=300)])

    scenario(body)


def test_a_router_follows_the_record_of_another() -> None:
    async def body(world: World) -> None:
        board = world.workers["a2"].board
        record = SplitRecord(7, "elsewhere", ("a3",), 0.03, "of another router", 4.0)
        link = world.workers["a2"]
        board._until = 0.0
        for name in NAMES:
            world.workers[name].board.record = record
            world.workers[name].board._until = world.clock.now() + 30.0
        board.tell((_Teller(link.send),), world.clock.now())
        await asyncio.sleep(0.1)
        assert takers(world) == {"a3"}
        (outlook,) = world.dispatcher.outlooks()
        assert (outlook.decides, outlook.decides_here, outlook.prefills) == ("elsewhere", False, ("a3",))
        assert (outlook.why, outlook.itl_ms) == ("of another router", 30.0)
        service_of(world).planner = planner = Told(frozenset(("a1",)))
        await asyncio.sleep(20)
        assert not planner.looks, "who follows does not look"
        assert takers(world) == {"a3"}
        await asyncio.sleep(25)
        assert takers(world) == {"a1"}, "the lease of the other has lapsed"
        published = [one for one in world.workers["a1"].commands if isinstance(one, PublishSplit)]
        assert published[-1].record.term == 8

    scenario(body)


class _Teller:
    def __init__(self, tell: Callable[..., None]) -> None:
        self.tell = tell


def test_the_split_is_told_with_its_reason() -> None:
    async def body(world: World) -> None:
        service_of(world).planner = Told(frozenset(("a1",)), 0.02)
        await asyncio.sleep(8)
        (outlook,) = world.dispatcher.outlooks(("demo",))
        assert (outlook.model, outlook.prefills, outlook.workers) == ("demo", ("a1",), NAMES)
        assert (outlook.why, outlook.itl_ms, outlook.decides_here, outlook.moves) == ("as told", 20.0, True, 1)
        assert [way.prefills for way in outlook.outlooks] == [1]
        assert outlook.since_s > 0.0
        assert world.dispatcher.outlooks(("other",)) == ()

    scenario(body)


def test_without_auto_workers_nothing_is_kept() -> None:
    async def body(world: World) -> None:
        await asyncio.sleep(10)
        assert world.dispatcher.outlooks() == ()
        assert not any(isinstance(one, PublishSplit) for one in world.workers["a1"].commands)

    scenario(body, ("prefill", "decode", "unified"))


def test_a_worker_without_a_proved_pair_takes_no_part_and_it_is_said_why() -> None:
    async def body(world: World) -> None:
        for name in NAMES:
            world.workers[name].transfer = lambda holder: ("mem", "transfer_failed" if holder == "a1" else "")
        world.workers["a1"].transfer = lambda _holder: ("mem", "transfer_failed")
        for name in NAMES:
            world.workers[name].die()
            await world.workers[name].revive()
        await asyncio.sleep(5)
        service_of(world).planner = planner = Told(frozenset(("a2",)))
        await asyncio.sleep(12)
        standings = planner.looks[-1][0]
        assert [(each.worker_id, each.barred) for each in standings] == [("a2", ""), ("a3", "")]
        assert takers(world) == {"a2"}
        (outlook,) = world.dispatcher.outlooks()
        assert outlook.why.startswith("as told; whole requests are served beside it by a1 ")
        assert "no pair with it" in outlook.why

    scenario(body)


def test_where_most_workers_have_no_proved_pair_the_planner_says_why_nothing_is_split() -> None:
    async def body(world: World) -> None:
        for name in NAMES:
            world.workers[name].transfer = lambda _holder: ("mem", "transfer_failed")
            world.workers[name].die()
            await world.workers[name].revive()
        await asyncio.sleep(12)
        assert not takers(world)
        (outlook,) = world.dispatcher.outlooks()
        assert outlook.why.startswith("every worker takes prompts and decodes: a1 no pair with it")

    scenario(body)


def test_a_worker_that_joins_leaves_the_split_of_the_others_as_it_is() -> None:
    async def body(world: World) -> None:
        service = service_of(world)
        assert type(service.planner) is Planner
        await asyncio.sleep(6)
        service.planner.split = Split(frozenset(("a1",)), 0.02, "given")
        await asyncio.sleep(6)
        assert takers(world) == {"a1"}
        # Nobody can fetch from the new one, nor it from others, for as long as it takes: its canaries are silent.
        joining = world.worker("a4", "auto")
        joining.features, joining.transfer = (ITL_TARGET,), lambda _holder: None
        for name in NAMES:
            world.workers[name].transfer = lambda holder: None if holder == "a4" else ("mem", "")
        await joining.start()
        world.fleet.set_members(world.workers)
        for _ in range(40):
            await asyncio.sleep(0.2)
            assert takers(world) == {"a1"}
        assert len(service.outlook().workers) == 4
        assert service.planner.moves == 0
        for worker in world.workers.values():
            worker.transfer = lambda _holder: ("mem", "")
        await asyncio.sleep(60)  # Until no canary is silent.

    scenario(body)


def test_a_router_that_takes_over_leaves_the_split_until_its_pairs_are_proved() -> None:
    async def body(world: World) -> None:
        now = world.clock.now()
        for name in NAMES:
            world.workers[name].transfer = lambda _holder: None
            world.workers[name].die()
            board = world.workers[name].board
            board.record, board._until = SplitRecord(7, "elsewhere", ("a3",), 0.03, "of another", 4.0), now + 10.0
            await world.workers[name].revive()
        service = service_of(world)

        def traffic() -> None:
            service.planner.seen(ObservedRequest(world.clock.now(), 300, 300, 50.0))

        while not service.lease.holds:
            assert world.clock.now() < now + 60.0
            traffic()
            await asyncio.sleep(0.1)
        for _ in range(20):
            assert takers(world) == {"a3"}
            traffic()
            await asyncio.sleep(0.2)
        assert service.outlook().decides_here

    scenario(body)


_NUMBERS = st.floats() | st.sampled_from([0.0, 0.02, 5.0, 61.0, 1e12])
_RECORDS = st.builds(
    SplitRecord,
    term=st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2, 50, 2**53 - 1, 2**64 - 1]),
    holder=st.sampled_from(["", "a-router", "z-router", "h" * 100_000]),
    prefills=st.sampled_from([(), ("a1",), ("a1", "a2", "a3"), ("gone",) * 10_000, ("a" * 100_000,)]),
    itl_target_s=st.none() | _NUMBERS,
    reason=st.sampled_from(["", "as told", "r" * 100_000]),
    age_s=_NUMBERS,
    moves=st.integers(0, 2**64 - 1),
    forecast_error=st.none() | _NUMBERS,
    forecasts=st.lists(st.builds(Forecast, st.integers(0, 9), st.none() | _NUMBERS, _NUMBERS, _NUMBERS)).map(tuple),
)


@settings(max_examples=40, deadline=None)
@given(told=st.lists(st.tuples(_RECORDS, _NUMBERS, st.sampled_from([0.0, 0.5, 20.0])), min_size=1, max_size=5))
def test_whatever_a_worker_tells_the_router_decides_again(told: list[tuple[SplitRecord, float, float]]) -> None:
    async def body(world: World) -> None:
        await asyncio.sleep(6)
        liar, honest, service = world.workers["a3"], world.workers["a1"], service_of(world)
        for record, left_s, wait_s in told:
            liar.send(SplitPublished(record, left_s))
            await asyncio.sleep(wait_s)
        before = len(honest.commands)
        # Until what was told has lapsed, and the router has listened.
        await asyncio.sleep(75.0)
        published = [one for one in honest.commands[before:] if isinstance(one, PublishSplit)]
        assert service.lease.holds
        assert published
        for one in honest.commands:
            assert len(COMMANDS.encode(one)) < 100_000
        for tuned in (one.itl_target_s for one in honest.commands if isinstance(one, Tune)):
            assert tuned is None or 0.0 < tuned < float("inf")
        msgspec.json.decode(msgspec.json.encode(service.outlook()), type=FleetOutlook)

    scenario(body)


def test_a_router_that_drains_decides_no_more_and_follows() -> None:
    async def body(world: World) -> None:
        service_of(world).planner = planner = Told(frozenset(("a1",)))
        await asyncio.sleep(8)
        assert takers(world) == {"a1"}
        world.dispatcher.drain()
        await asyncio.sleep(0.1)
        told = [one for one in world.workers["a1"].commands if isinstance(one, PublishSplit)]
        assert told[-1].lease_s == 0.0
        looks = len(planner.looks)
        await asyncio.sleep(60)
        assert len([one for one in world.workers["a1"].commands if isinstance(one, PublishSplit)]) == len(told)
        assert len(planner.looks) == looks
        assert takers(world) == {"a1"}, "the last split stays"
        for name in ("a2", "a3"):
            worker = world.workers[name]
            record = PublishSplit(SplitRecord(9, "elsewhere", ("a3",)), 15.0)
            worker.board.publish(record, _Teller(worker.send), (_Teller(worker.send),), world.clock.now())
        await asyncio.sleep(0.1)
        assert takers(world) == {"a3"}
        (outlook,) = world.dispatcher.outlooks()
        assert not outlook.decides_here

    scenario(body)


def test_a_service_without_workers_is_not_shown() -> None:
    class Gauges(NullMeter):
        def __init__(self) -> None:
            self.values: dict[tuple[str, ...], float] = {}

        def set(self, name: str, value: float, *labels: str) -> None:
            self.values[(name, *labels)] = value

    gauges = Gauges()

    async def body(world: World) -> None:
        service_of(world).planner = Told(frozenset(("a1",)))
        await asyncio.sleep(8)
        names = ("tandem_split_decides", "tandem_split_prefill_workers")
        assert [gauges.values[name, "demo"] for name in names] == [1.0, 1.0]
        world.fleet.set_members(())
        await asyncio.sleep(5)
        assert [gauges.values[name, "demo"] for name in names] == [0.0, 0.0]
        assert world.dispatcher.outlooks() == ()
        world.fleet.set_members(NAMES)
        await asyncio.sleep(30)
        assert [gauges.values[name, "demo"] for name in names] == [1.0, 1.0]
        assert len(world.dispatcher.outlooks()) == 1

    scenario(body, meter=gauges)


def test_what_comes_by_other_routers_counts_from_the_first_look_on() -> None:
    async def body(world: World) -> None:
        for name in NAMES:
            world.workers[name].load = load(running=4)
            world.workers[name].die()
            await world.workers[name].revive()
        await asyncio.sleep(1)
        clients = [world.ask(max_tokens=3000) for _ in range(4)]
        service_of(world).planner = planner = Told()
        await asyncio.sleep(8)
        assert planner.looks
        for _, _, _, share in planner.looks:
            assert 0.2 <= share <= 0.5, "of twelve sequences four came by this router"
        await all_end(clients)

    scenario(body)


def test_prefixes_that_are_pinned_are_no_traffic() -> None:
    async def body(world: World) -> None:
        service_of(world).planner = planner = Told()
        generation = msgspec.structs.replace(world.generation(tokens=640), pin=Pin(1, 60.0))
        client = Client(world, generation)
        world.dispatcher.start(generation, client)
        await client.ended.wait()
        assert planner.requests == []
        assert planner.met == []
        await all_end([world.ask()])
        assert (len(planner.requests), len(planner.met)) == (1, 1)

    scenario(body)


def test_requests_end_even_where_others_cannot_be_told() -> None:
    async def body(world: World) -> None:
        def fails() -> None:
            raise OverflowError

        service_of(world).drain = fails  # type: ignore[method-assign]
        client = world.ask(max_tokens=2000)
        await asyncio.sleep(1.0)
        with pytest.raises(OverflowError):
            world.dispatcher.close(TandemError("draining", "the router stops"))
        assert client.error is not None
        assert client.error.code == "draining"

    scenario(body)
