"""A Ray cluster in memory with a hub that dies between any two of its writes, replicas that report to it, and a
router that is polled. On virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from control_plane.reports.aggregator import ReportAggregate
from control_plane.reports.http_get import Endpoint
from control_plane.reports.poller import Poller
from control_plane.reports.wire import (
    RevisionCounts,
    RevisionsAnswer,
    RouterReport,
    ServiceCounts,
    WorkerLoad,
    WorkerReport,
)
from router.discovery.pods import SELECTED, WorkerPod, worker_of
from tandem.apps.client.http import Target
from tandem.apps.ray.cluster import ClusterNodes
from tandem.apps.ray.gates import Comparison
from tandem.apps.ray.hub import Hub
from tandem.apps.ray.hub_store import STATE
from tandem.apps.ray.options import RaySettings
from tandem.apps.ray.pods import NAMESPACE
from tandem.apps.ray.serving import ROUTERS, AppState, AppStatus, RevisionApp, RouterApp, RouterTold, WorkerTold
from tandem.core.clock import Clock
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.kube.cluster import Selector
from tandem.kube.kinds import POD, Json
from tandem.spec.reading import service_of
from tandem.spec.service import ModelService, RouterSpec
from tandem.spec.status import ModelServiceStatus
from tests.worlds.loop_clock import LoopClock
from tests.worlds.memory_serving import MemoryPace, MemoryServing

NAME = "chat"
BACK_S = 1.0
"""Seconds until a hub that died is back."""
LOOK_S = 0.25
SPEC: Json = {
    "engine": {"type": "simulated"},
    "pools": [
        {"name": "prefill", "role": "prefill", "replicas": 1, "drainSeconds": 5},
        {"name": "decode", "role": "decode", "replicas": 2, "drainSeconds": 5},
    ],
    "rollout": {"maxSurge": 1, "maxUnavailable": 0, "progressDeadlineSeconds": 120},
}


class Crashed(Exception):
    """The hub's process is gone."""


@dataclass
class Demand:
    """What routers hold of a service."""

    queued: int = 0
    in_flight: int = 0
    arrived: int = 0


class Life:
    """One life of a hub: its store and its Serve, which it can reach no more once it is dead."""

    def __init__(self, world: "RayWorld") -> None:
        self._world = world
        self.dead = False

    async def get(self, key: str) -> bytes | None:
        self._check()
        await asyncio.sleep(0)
        return self._world.kept.get(key)

    async def put(self, key: str, value: bytes) -> None:
        await self._write(self._put(key, value))

    async def running(self) -> Mapping[str, AppState]:
        self._check()
        return await self._world.serving.running()

    async def routers(self) -> tuple[str, ...]:
        self._check()
        return await self._world.serving.routers()

    async def deploy(self, app: RevisionApp) -> None:
        # As bytes, as it travels.
        copy = msgspec.msgpack.decode(msgspec.msgpack.encode(app), type=RevisionApp)
        await self._write(self._world.serving.deploy(copy))

    async def want(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        await self._write(self._world.serving.want(counts))

    async def delete(self, name: str) -> None:
        await self._write(self._world.serving.delete(name))

    async def _put(self, key: str, value: bytes) -> None:
        await asyncio.sleep(0)
        self._world.kept[key] = value

    async def _write(self, write: Coroutine[Any, Any, None]) -> None:
        """Dies before or after the write, if it is the one."""
        if self.dead:
            write.close()
            raise Crashed
        world = self._world
        world.writes += 1
        number = world.writes
        if world.writes in world.dies_before:
            write.close()
            world.crash()
            raise Crashed
        await write
        if number in world.dies_after:
            world.crash()
            raise Crashed
        self._check()

    def _check(self) -> None:
        if self.dead:
            raise Crashed


class WorldPoller(Poller):
    """Asks the world instead of routers."""

    def __init__(self, world: "RayWorld", routers: Callable[[], Mapping[str, Endpoint]], clock: Clock) -> None:
        super().__init__(routers, clock)
        self._world, self._listed, self._time = world, routers, clock

    async def poll(self) -> ReportAggregate:
        routers = dict(self._listed())
        report = await self._world.router_report()
        self.books = self.books.round(routers, dict.fromkeys(routers, report), self._time.now())
        return self.books


@dataclass
class RayWorld:
    """`run` has Serve, the router and the hub run beside a story. `dies_before` and `dies_after` are numbers of the
    hub's writes, counted over all its lives."""

    clock: LoopClock
    serving: MemoryServing
    kept: dict[str, bytes] = field(default_factory=dict)
    writes: int = 0
    dies_before: frozenset[int] = frozenset()
    dies_after: frozenset[int] = frozenset()
    lives: int = 0
    demand: dict[str, Demand] = field(default_factory=dict)
    over: bool = False
    """Whether the last hub has come to its end; it is still `hub`."""
    verdicts: list[int | OSError] = field(default_factory=list)
    """Exit statuses of comparisons to come, and why they cannot be made; 0 where there is none."""
    compared: list[Comparison] = field(default_factory=list)
    hub: Hub | None = None
    _life: Life | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    # -- The hub --------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """The hub's process ends at once."""
        if self._life is not None:
            self._life.dead = True
        self.hub = None
        self._ended.set()

    def make_hub(self, life: Life, verify: Callable[[Comparison], Awaitable[int]] | None = None) -> Hub:
        def poller(routers: Callable[[], Mapping[str, Endpoint]], clock: Clock, key: str) -> Poller:
            return WorldPoller(self, routers, clock)

        entropy = SeededEntropy(self.lives)
        return Hub(RaySettings(), life, life, self.clock, entropy, make_poller=poller, verify=verify or self._verify)

    async def live(self) -> None:
        """One life of the hub after the other, until one is over. An error of its own, that is no crash, ends the
        world."""
        while True:
            self.lives += 1
            self._ended.clear()
            life = self._life = Life(self)
            hub = self.hub = self.make_hub(life)
            running = asyncio.create_task(hub.run())
            ended = asyncio.create_task(self._ended.wait())
            try:
                await asyncio.wait((running, ended), return_when=asyncio.FIRST_COMPLETED)
            finally:
                life.dead = True
                running.cancel()
                ended.cancel()
                results = await asyncio.gather(running, ended, return_exceptions=True)
            error = results[0]
            if error is None:
                self.over = True
                self.kept.pop(STATE)
                return
            if not _is_crash(error):
                raise error
            self.hub = None
            await asyncio.sleep(BACK_S)

    async def ask(self, call: Callable[[Hub], Awaitable[Any]], within_s: float = 600.0) -> Any:
        """A call that is made again where the hub dies under it, as calls of an actor are."""
        async with asyncio.timeout(within_s):
            while True:
                hub = self.hub
                if hub is None:
                    await asyncio.sleep(LOOK_S)
                    continue
                asking = asyncio.ensure_future(call(hub))
                while not asking.done() and self.hub is hub:
                    await asyncio.wait((asking,), timeout=LOOK_S)
                if asking.done():
                    with suppress(Crashed):
                        return asking.result()
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                await asyncio.sleep(LOOK_S)

    async def _verify(self, comparison: Comparison) -> int:
        self.compared.append(comparison)
        await asyncio.sleep(3.0)
        verdict = self.verdicts.pop(0) if self.verdicts else 0
        if isinstance(verdict, OSError):
            raise verdict
        return verdict

    # -- Replicas -------------------------------------------------------------------------------------------------

    async def report(self, told: WorkerTold) -> object:
        copy = msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=WorkerTold)
        return await self._to_hub(lambda hub: hub.report(copy))

    async def route(self) -> None:
        """A router that reports itself."""
        told = RouterTold(name="router-1", host="127.0.0.9", port=8000)
        while True:
            with suppress(TandemError):
                await self._to_hub(lambda hub: hub.router(told))
            await asyncio.sleep(1.0)

    async def _to_hub(self, call: Callable[[Hub], Awaitable[object]]) -> object:
        if self.hub is None:
            raise TandemError("link_lost", "there is no hub")
        try:
            async with asyncio.timeout(0.5):
                return await call(self.hub)
        except (TimeoutError, Crashed):
            raise TandemError("link_lost", "the hub does not answer") from None

    async def router_report(self) -> RouterReport:
        if self.hub is None:
            raise Crashed
        revisions, services = [], []
        for name, status in (await self.statuses(self.hub)).items():
            for each in status.revisions:
                revisions.append(RevisionCounts(name, NAMESPACE, each.name, weight=each.weight))
            held = self.demand.get(name, Demand())
            services.append(
                ServiceCounts(
                    name,
                    NAMESPACE,
                    queued_requests=held.queued,
                    queued_prompt_tokens=100 * held.queued,
                    in_flight_requests=held.in_flight,
                    requests=held.arrived,
                )
            )
        workers = tuple(
            WorkerReport(each.name, each.role, "ready", revision=each.revision, load=WorkerLoad(), ready_for_s=1.0)
            for each in self.serving.workers()
            if each.ready
        )
        return RouterReport(workers, RevisionsAnswer("router-1", tuple(revisions), tuple(services)))

    # -- Looking --------------------------------------------------------------------------------------------------

    async def statuses(self, hub: Hub) -> dict[str, ModelServiceStatus]:
        objects = await hub.services()
        return {
            each["metadata"]["name"]: msgspec.convert(each.get("status") or {}, ModelServiceStatus)
            for each in objects
        }

    async def status(self, name: str = NAME) -> ModelServiceStatus:
        found: dict[str, ModelServiceStatus] = await self.ask(self.statuses)
        return found.get(name, ModelServiceStatus())

    async def discovered(self) -> list[WorkerPod]:
        """The workers as routers see them."""
        page = await self.ask(lambda hub: hub.list_page(Selector(POD, None, SELECTED), 1000))
        return [worker for each in page.items if (worker := worker_of(each)) is not None]

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str, within_s: float = 300.0) -> None:
        end = self.clock.now() + within_s
        while not await holds():
            assert self.clock.now() < end, f"{what}: not within {within_s:g} s; {await self.told()}"
            await asyncio.sleep(LOOK_S)

    async def told(self) -> str:
        """Everything, for people who read a failure."""
        _, sentences = await self.ask(lambda hub: hub.events(0, 0.0))
        return f"{await self.serving.running()} {await self.status()} {sentences}"

    async def settled(self, revision: str, within_s: float = 300.0, **counts: int) -> None:
        """Wait until this revision alone serves, with so many workers by pool, as Serve, status and routers see."""

        async def holds() -> bool:
            status, app = await self.status(), f"{NAME}-{revision}"
            there = {pool: len(self.serving.workers(app, pool)) for pool in counts}
            seen = [each for each in await self.discovered() if each.ready and each.drain_within_s is None]
            by_pool = {pool: sum(each.pool == pool for each in seen) for pool in counts}
            return (
                there == by_pool == counts
                and status.current_revision == revision
                and not status.update_revision
                and len(self.serving.workers()) == sum(counts.values())
                and set(await self.serving.running()) == {app}
            )

        await self.until(holds, f"revision {revision} serves with {counts}", within_s)


def service(name: str = NAME, **spec: Any) -> ModelService:
    """A checked service; `spec` replaces parts of `SPEC`."""
    return service_of(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "ModelService",
            "metadata": {"name": name},
            "spec": {**SPEC, **spec},
        }
    )


def scaled(**counts: int) -> list[Json]:
    """The pools of `SPEC` with other numbers."""
    return [{**pool, "replicas": counts.get(pool["name"], pool["replicas"])} for pool in SPEC["pools"]]


async def in_world(story: Callable[[RayWorld], Awaitable[None]], **settings: Any) -> RayWorld:
    """Run a story in a world of its own."""
    clock = LoopClock(asyncio.get_running_loop())
    serving = MemoryServing(clock, pace=MemoryPace(start_s=2.0, drain_s=1.0))
    world = RayWorld(clock, serving, **settings)
    serving.report = world.report
    beside = [asyncio.create_task(each) for each in (serving.run(), world.live(), world.route())]
    telling = asyncio.ensure_future(story(world))
    try:
        await asyncio.wait((*beside, telling), return_when=asyncio.FIRST_COMPLETED)
        for task in beside:
            if task.done():
                task.result()
        await telling
    finally:
        for task in (*beside, telling):
            task.cancel()
        await asyncio.gather(*beside, telling, return_exceptions=True)
    return world


def _is_crash(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_crash(each) for each in error.exceptions)
    return isinstance(error, (Crashed, asyncio.CancelledError))


@dataclass
class MemoryShared:
    """`tandem.apps.ray.cluster.SharedCluster` beside a world, and its hub as commands call it (`call`): Serve,
    the application of routers, and a hub that is there once it is made. `done` says what was done, in order."""

    world: RayWorld
    serve_port: int = 0
    """Of Serve's ingress; 0 while Serve does not run."""
    apps: dict[str, RouterApp] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    told: RaySettings | None = None
    """What the hub was told when it was made; None while there is none."""
    ending: bool = False
    """Whether the hub is on its way to its end: it takes no service, and is gone when it is asked."""
    lost: bool = False
    """Whether the hub does not answer."""
    status: int = 200
    """Of every answer of a router."""
    making_s: float = 0.0
    """How long Ray takes to start Serve, and to deploy routers."""
    refuses: bool = False
    """Whether Ray refuses to deploy routers."""
    gone_s: float = 5.0
    """How long routers take to end."""
    done: list[str] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)

    async def nodes(self) -> ClusterNodes:
        return ClusterNodes("10.0.0.1", "head", 3)

    async def start_serve(self, settings: RaySettings, nodes: ClusterNodes, port: int) -> bool:
        if self.serve_port:
            return False
        await asyncio.sleep(self.making_s)
        self.serve_port = port
        self.done.append("start Serve")
        return True

    async def ingress_port(self) -> int:
        return self.serve_port

    async def make_hub(self, settings: RaySettings) -> None:
        if self.told is None:
            self.told, self.ending = settings, False
            self.done.append("make the hub")

    async def routers(self) -> tuple[RouterApp, ...]:
        return tuple(self.apps.values())

    async def deploy_routers(self, settings: RaySettings, count: int, router: RouterSpec) -> None:
        assert ROUTERS not in self.apps, "routers of that name are there"
        if self.refuses:
            raise TandemError("bad_setting", "it refuses")
        await asyncio.sleep(self.making_s)
        direct = settings.ingress == "direct"
        self.runs(
            replicas=count,
            port=router.port if direct else 0,
            route_prefix=None if direct else settings.route_prefix,
            api_keys=settings.api_keys,
        )
        self.done.append(f"deploy {count} routers")

    def runs(self, name: str = ROUTERS, status: AppStatus = "running", **facts: Any) -> None:
        """Routers run so, from now on."""
        self.apps[name] = RouterApp(name=name, status=status, **facts)

    def leaves(self, name: str = ROUTERS) -> None:
        """The routers are being taken away."""
        self.apps[name] = msgspec.structs.replace(self.apps[name], status="deleting")
        asyncio.get_running_loop().call_later(self.gone_s, self.apps.pop, name, None)

    async def delete_routers(self, *, wait: bool) -> None:
        self.done.append("delete routers")
        self.leaves()
        if wait:
            await asyncio.sleep(self.gone_s + LOOK_S)

    async def state(self, name: str) -> AppState | None:
        return (await self.world.serving.running()).get(name)

    async def others(self) -> tuple[str, ...]:
        return self.foreign

    async def stop_serve(self, nodes: ClusterNodes) -> None:
        self.serve_port = 0
        self.done.append("stop Serve")

    async def call(self, method: str, *arguments: object, within_s: float = 10.0) -> Any:
        hub = self.world.hub
        if self.told is None or self.lost or hub is None:
            raise TandemError("link_lost", "there is no hub")
        if method == "settings":
            return self.told.shown()
        if method == "end":
            return await self._end(hub)
        if method == "want" and self.ending:
            self.told = None
            raise TandemError("link_lost", "the hub is on its way to its end")
        try:
            async with asyncio.timeout(within_s):
                return await getattr(hub, method)(*arguments)
        except (TimeoutError, Crashed):
            raise TandemError("link_lost", f"the hub has not answered {method}") from None

    async def _end(self, hub: Hub) -> bool:
        if await hub.services():
            return False
        self.told = None
        self.done.append("end the hub")
        return True

    async def ask(self, target: Target, method: str, path: str) -> tuple[int, bytes]:
        """A router's answer, whichever there is: all models."""
        self.targets.append(target)
        if not any(each.status == "running" for each in self.apps.values()) or self.world.hub is None:
            raise TandemError("link_lost", "no router listens")
        objects = await self.world.hub.services()
        return self.status, msgspec.json.encode({"data": [{"id": each["metadata"]["name"]} for each in objects]})
