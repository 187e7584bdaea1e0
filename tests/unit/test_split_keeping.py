"""A router that decides, or follows, who of its `auto` workers takes prompts for others."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

from router.fleet.service_split import ServiceSplit
from router.settings import PlacementSettings, RouterSettings
from router.split.plan import Planner
from router.split.values import Outlook, Seen, Split, Standing, Way, WorkTimes
from tandem.core.messages import ITL_TARGET, PublishSplit, SplitRecord, Tune
from tandem.core.slo import Slo
from tandem.sim.loop import VirtualLoop, run
from tests.unit.router_world import Client, World

NAMES = ("a1", "a2", "a3")


class Told(Planner):
    """A planner that decides what it is told, in three slices."""

    def __init__(self, prefills: frozenset[str] = frozenset(), itl_s: float | None = None) -> None:
        super().__init__(RouterSettings().split)
        self.wanted = Split(prefills, itl_s, "as told")
        self.looks: list[tuple[Sequence[Standing], WorkTimes, Slo, float]] = []
        self.met: list[bool] = []
        self.requests: list[Seen] = []

    def seen(self, request: Seen) -> None:
        self.requests.append(request)

    def outcome(self, arrival_s: float, met: bool, answer_tokens: float | None = None) -> None:
        self.met.append(met)

    def look(
        self, now: float, standings: Sequence[Standing], times: WorkTimes, slo: Slo, share: float = 1.0
    ) -> Iterator[None]:
        self.looks.append((standings, times, slo, share))
        yield
        yield
        yield
        present = {standing.worker_id for standing in standings}
        self.moves += len(self.split.prefills ^ (self.wanted.prefills & present))
        self.split = self.wanted._replace(prefills=self.wanted.prefills & present)
        self.outlooks = (Outlook(Way(len(self.split.prefills), self.split.itl_s), 0.9, 100.0),)


async def all_end(clients: Sequence[Client]) -> None:
    for client in clients:
        async with asyncio.timeout(120):
            await client.ended.wait()
        client.check_whole()


def service_of(world: World) -> ServiceSplit:
    return world.dispatcher._splits._services["demo"]


def scenario(body: Callable[[World], Awaitable[None]], roles: Sequence[str] = ("auto",) * 3) -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, RouterSettings(placement=PlacementSettings(prefer="disaggregated")), canaries=True)
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
        after = world.ask(tokens=400)
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


def test_a_worker_without_a_proved_pair_is_barred_and_says_so() -> None:
    async def body(world: World) -> None:
        for name in NAMES:
            world.workers[name].transfer = lambda holder: ("mem", "transfer_failed" if holder == "a1" else "")
        world.workers["a1"].transfer = lambda _holder: ("mem", "transfer_failed")
        for name in NAMES:
            world.workers[name].die()
            await world.workers[name].revive()
        await asyncio.sleep(5)
        service_of(world).planner = planner = Told()
        await asyncio.sleep(6)
        standings = planner.looks[-1][0]
        assert [bool(standing.barred) for standing in standings] == [True, False, False]
        assert "no pair with it" in standings[0].barred

    scenario(body)
