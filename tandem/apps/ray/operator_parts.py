"""The operator's parts over the hub's objects: mirror, queue, reconcile, applier and scaling, as on Kubernetes. The
hub takes the place of the autoscaler that scales EnginePools."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from control_plane.objects.installation import Installation
from control_plane.objects.names import pool_name
from control_plane.operator.applier import Applier
from control_plane.operator.controller import Controller, ControllerDeps
from control_plane.operator.mirror import Mirror, Watched
from control_plane.operator.models import KnownModels
from control_plane.operator.routers import RouterReports
from control_plane.operator.scaling import scaled_services
from control_plane.reconcile.pool_status import LOAD_EVERY_S
from control_plane.reports.poller import Poller
from control_plane.scaler import MetricCache, ScalingLoop
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.core.metrics import NullMeter
from tandem.kube.cluster import NotFound, Page, Selector, WatchEvent
from tandem.kube.kinds import ENGINE_POOL, SCALED_OBJECT, TRIGGER_AUTHENTICATION, Kind, Ref
from tandem.kube.memory_cluster import MemoryCluster
from tandem.kube.queue import WorkQueue
from tandem.kube.recorder import EventRecorder
from tandem.kube.store import Key, key_of
from tandem.kube.workers import Workers

SCALE_EVERY_S: Final = 2.0
_LACKED: Final = frozenset({SCALED_OBJECT, TRIGGER_AUTHENTICATION})
_WORKERS: Final = 2
_SYNC_S: Final = 30.0


class HubObjects(MemoryCluster):
    """The hub's objects. Kinds of KEDA are not installed, so that nothing of it is made."""

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        _know(selector.kind)
        return await super().list_page(selector, limit, token)

    async def watch(self, selector: Selector, version: str) -> AsyncGenerator[WatchEvent, None]:
        _know(selector.kind)
        async with aclosing(super().watch(selector, version)) as stream:
            async for event in stream:
                yield event


@dataclass(frozen=True)
class OperatorDeps:
    """What the operator's parts need of the hub. `routers` names those that take requests; `allowed` says whether
    this hub may still write."""

    cluster: HubObjects
    clock: Clock
    entropy: Entropy
    recorder: EventRecorder
    poller: Poller
    routers: Callable[[], Iterable[str]]
    allowed: Callable[[], bool]
    installation: Installation


class OperatorParts:
    """Run `run` as a task; it ends only by being cancelled, or by a mistake of ours."""

    def __init__(self, deps: OperatorDeps) -> None:
        self._cluster = deps.cluster
        self._clock = deps.clock
        self._queue: WorkQueue[Key] = WorkQueue(deps.clock)
        self.mirror = Mirror(deps.cluster, Watched(), deps.clock, deps.entropy, self._queue.add)
        self.reports = RouterReports(deps.poller, deps.routers)
        meter = NullMeter()
        self.controller = Controller(
            ControllerDeps(
                mirror=self.mirror,
                reports=self.reports,
                models=KnownModels(None),
                applier=Applier(deps.cluster, deps.clock, deps.recorder, meter, deps.allowed),
                recorder=deps.recorder,
                queue=self._queue,
                clock=deps.clock,
                meter=meter,
                installation=deps.installation,
            )
        )
        self.scaling = ScalingLoop(
            deps.poller, lambda: scaled_services(self.mirror, self.controller), MetricCache(deps.clock), deps.clock
        )

    async def run(self) -> None:
        """Reconcile and scale until cancelled. Raises `deadline_exceeded` where the objects cannot be read."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.mirror.run(), name="mirror")
                try:
                    async with asyncio.timeout(_SYNC_S):
                        await self.mirror.synced()
                except TimeoutError:
                    problem = f"the hub's objects were not read within {_SYNC_S:g} s"
                    raise TandemError("deadline_exceeded", problem) from None
                workers = Workers(self._queue, self.controller.work, self.controller.failed, count=_WORKERS)
                tasks.create_task(workers.run(), name="reconcile")
                tasks.create_task(self._scale(), name="scaling")
                tasks.create_task(self._look_at_loads(), name="loads")
        finally:
            self._queue.close()

    async def _scale(self) -> None:
        """A round of polls and decisions, and then the EnginePools they are about."""
        while True:
            began = self._clock.now()
            await self.scaling.once()
            await self._carry_out()
            await asyncio.sleep(max(0.0, SCALE_EVERY_S - (self._clock.now() - began)))

    async def _carry_out(self) -> None:
        for (namespace, service), look in self.scaling.looks.items():
            wanted = self._wanted(namespace, service, look.scaling.pools)
            for pool, scaling in look.scaling.pools.items():
                if wanted.get(pool, scaling.replicas) == scaling.replicas:
                    continue
                try:
                    ref = Ref(ENGINE_POOL, namespace, pool_name(service, pool))
                    await self._cluster.scale(ref, scaling.replicas)
                except NotFound:
                    continue  # It has gone meanwhile.

    def _wanted(self, namespace: str, service: str, pools: Mapping[str, object]) -> dict[str, int]:
        found = {}
        for pool in pools:
            obj = self._cluster.peek(Ref(ENGINE_POOL, namespace, pool_name(service, pool)))
            if obj is not None:
                found[pool] = int(obj["spec"].get("replicas", 1))
        return found

    async def _look_at_loads(self) -> None:
        """Renew the status of services that have work: nothing among the objects reports that one has got work."""
        while True:
            await asyncio.sleep(LOAD_EVERY_S)
            for obj in self.mirror.services():
                if any(each.running for each in self.reports.loads(key_of(obj)).values()):
                    self._queue.add(key_of(obj))


def _know(kind: Kind) -> None:
    if kind in _LACKED:
        raise NotFound(f"{kind.kind} is not for Ray")
