"""Watches pods and services at an API server and reports every change to the fleet.

While the server is away, at the start or later, the last good list stays in force and running work goes on. Logs and
metrics report the absence.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from router.discovery.model_service import DiscoveredService, by_model, service_of
from router.discovery.pods import SELECTED, WorkerPod, worker_of
from router.discovery.texts import TextSides
from router.fleet.services import MemberFacts, ServiceFacts
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter
from tandem.kube.backoff import Backoff
from tandem.kube.cluster import Cluster, Selector
from tandem.kube.kinds import MODEL_SERVICE, POD
from tandem.kube.reflector import Reflector, ReflectorSettings
from tandem.kube.store import Key
from tandem.process.logs import event
from tandem.spec.tenants import EVERYBODY, Tenants

_log = logging.getLogger(__name__)

_SETTLE_S: Final = 0.05
"""Seconds to wait after a change, so that changes that come together are reported together."""
_LOOK_EVERY_S: Final = 1.0
_SETTINGS: Final = ReflectorSettings(backoff=Backoff(0.5, 5.0))
"""Reflector settings of a router. Routers are few, and workers that a router does not know of get no requests, so
routers retry sooner than operators do."""


Connect = Callable[[], Awaitable[Cluster]]
"""Finds out how to reach the API server, without asking it anything. Raises `bad_setting`."""


class DiscoveryListener(Protocol):
    """The part of `router.fleet.fleet.Fleet` to which discovery reports."""

    def set_members(self, addresses: Sequence[str]) -> None: ...

    def set_services(self, facts: Sequence[ServiceFacts], members: Sequence[MemberFacts]) -> None: ...

    def set_drains(self, within_s: Mapping[str, float]) -> None: ...


@dataclass(frozen=True)
class WatchDeps:
    """What watching needs of the process, and the text sides that the watch keeps current."""

    texts: TextSides
    clock: Clock
    entropy: Entropy
    meter: Meter
    tenants: Tenants = EVERYBODY
    """Services whose names it refuses are not served."""


class KubernetesDiscovery:
    """`run` is a root task of the router. `always` are addresses of workers that are there whatever pods there are;
    `namespaces` may be empty for all."""

    def __init__(
        self,
        connect: Connect,
        namespaces: Sequence[str],
        fleet: DiscoveryListener,
        tools: WatchDeps,
        always: Sequence[str] = (),
        settings: ReflectorSettings | None = None,
    ) -> None:
        self._connect = connect
        self._namespaces: tuple[str | None, ...] = tuple(namespaces) or (None,)
        self._fleet = fleet
        self._texts = tools.texts
        self._clock = tools.clock
        self._entropy = tools.entropy
        self._meter = tools.meter
        self._tenants = tools.tenants
        self._always = tuple(always)
        self._settings = settings or _SETTINGS
        self._changed = asyncio.Event()
        self._cluster: Cluster | None = None
        self._services: dict[Key, DiscoveredService] = {}
        """The services as last understood: a service written by a newer version stays as it was."""
        self._said: tuple[str, ...] = ()
        self._lost = ""

    async def open(self) -> None:
        """Find out how to reach the server, without asking it anything. Raises `bad_setting`."""
        self._cluster = await self._connect()

    async def run(self) -> None:
        """Watch until cancelled."""
        assert self._cluster is not None, "opened first"
        pods = [self._reflector(Selector(POD, each, SELECTED)) for each in self._namespaces]
        services = [self._reflector(Selector(MODEL_SERVICE, each)) for each in self._namespaces]
        self._texts.loaded = self._changed.set
        try:
            async with asyncio.TaskGroup() as group:
                for reflector in (*pods, *services):
                    reflector.store.on_change(lambda key, old, new: self._changed.set())
                    group.create_task(reflector.run(), name="watch of the API server")
                group.create_task(self._texts.run(), name="text sides")
                await self._tell_for_ever(pods, services)
        finally:
            await self._cluster.close()

    def _reflector(self, selector: Selector) -> Reflector:
        assert self._cluster is not None
        return Reflector(self._cluster, selector, self._clock, self._entropy, self._settings)

    async def _tell_for_ever(self, pods: Sequence[Reflector], services: Sequence[Reflector]) -> None:
        told = False
        while True:
            synced = all(reflector.has_synced for reflector in (*pods, *services))
            if synced and (self._changed.is_set() or not told):
                self._changed.clear()
                self._tell(pods, services)
                told = True
            self._watch_health((*pods, *services))
            try:
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._changed.wait()
                await asyncio.sleep(_SETTLE_S)
            except TimeoutError:
                pass

    def _tell(self, pods: Sequence[Reflector], services: Sequence[Reflector]) -> None:
        found: list[str] = []
        named, problems = by_model(self._understood(services, found))
        workers = [worker for each in pods for pod in each.store if (worker := worker_of(pod)) is not None]
        served = {each.facts.name for each in named.values()}
        members = {worker.address: worker for worker in workers if worker.service in served}
        self._say((*found, *problems), len(members), len(named))
        self._texts.want({model: each.text for model, each in named.items()})
        self._fleet.set_services(
            [self._with_context(each.facts) for each in named.values()],
            [MemberFacts(each.address, each.service, each.pool, each.ready) for each in members.values()],
        )
        # In an order of their own, whatever order they came in.
        self._fleet.set_members((*self._always, *sorted(members)))
        self._fleet.set_drains(_drains(members))

    def _understood(self, services: Sequence[Reflector], problems: list[str]) -> list[DiscoveredService]:
        found: dict[Key, DiscoveredService] = {}
        for reflector in services:
            for obj in reflector.store:
                key = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
                if (refused := self._tenants.refused(obj)) is not None:
                    problems.append(f"{'/'.join(key)} is not served: {refused}")
                    continue
                try:
                    found[key] = service_of(obj)
                except TandemError as error:
                    problems.append(error.message)
                    if key in self._services:
                        found[key] = self._services[key]
        self._services = found
        return list(found.values())

    def _with_context(self, facts: ServiceFacts) -> ServiceFacts:
        context = self._texts.context_tokens(facts.model)
        return facts if context is None else replace(facts, context_tokens=context)

    def _say(self, problems: tuple[str, ...], workers: int, services: int) -> None:
        """Log what is new about problems, once."""
        for problem in problems:
            if problem not in self._said:
                event(_log, "service_ignored", level=logging.WARNING, reason=problem)
        self._said = problems
        event(_log, "discovered", level=logging.DEBUG, workers=workers, services=services)

    def _watch_health(self, reflectors: Sequence[Reflector]) -> None:
        """Say when the server has gone away, and when it is back."""
        lost = next((reflector.last_error for reflector in reflectors if reflector.last_error is not None), "")
        if lost and not self._lost:
            event(_log, "kubernetes_lost", level=logging.WARNING, reason=lost, kept="the last good list")
        elif self._lost and not lost:
            event(_log, "kubernetes_back")
        self._lost = lost
        heard = [reflector.heard_at for reflector in reflectors if reflector.heard_at is not None]
        self._meter.set("tandem_discovery_lost", 1.0 if lost else 0.0)
        if heard:
            self._meter.set("tandem_discovery_age_seconds", max(0.0, self._clock.now() - min(heard)))


def _drains(members: Mapping[str, WorkerPod]) -> dict[str, float]:
    return {
        address: worker.drain_within_s for address, worker in members.items() if worker.drain_within_s is not None
    }
