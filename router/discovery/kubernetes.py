"""Watches pods and services at an API server and reports every change to the fleet, and of it no more than what is
another one.

While the server is away, at the start or later, the last good list stays in force and running work goes on. Logs and
metrics report the absence.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from router.discovery.catalog import Catalog
from router.discovery.pods import SELECTED, WorkerPod, kept
from router.discovery.texts import TextSides
from router.fleet.services import FactsChanges, MemberChanges, MemberFacts, ServiceFacts
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.metrics import Meter
from tandem.kube.backoff import Backoff
from tandem.kube.cluster import Cluster, Selector
from tandem.kube.kinds import MODEL_SERVICE, POD, Json
from tandem.kube.projection import without_bookkeeping
from tandem.kube.reflector import Reflector, ReflectorSettings
from tandem.kube.store import Key
from tandem.process.logs import event
from tandem.spec.tenants import EVERYBODY, Tenants

_log = logging.getLogger(__name__)

_SETTLE_S: Final = 0.05
"""Seconds to wait after a change, so that changes that come together are reported together."""
_LOOK_EVERY_S: Final = 1.0
_SETTINGS: Final = ReflectorSettings(page=100, backoff=Backoff(0.5, 5.0))
"""Reflector settings of a router. Routers are few, and workers that a router does not know of get no requests, so
routers retry sooner than operators do. A page is decoded in the loop that streams tokens: 100 pods are some 5 ms."""


Connect = Callable[[], Awaitable[Cluster]]
"""Finds out how to reach the API server, without asking it anything. Raises `bad_setting`."""


class DiscoveryListener(Protocol):
    """The part of `router.fleet.fleet.Fleet` to which discovery reports."""

    def change_members(self, joined: Iterable[str], left: Iterable[str]) -> None: ...

    def change_services(self, facts: FactsChanges, members: MemberChanges) -> None: ...

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
        self._always = tuple(always)
        self._settings = settings or _SETTINGS
        self._changed = asyncio.Event()
        self._cluster: Cluster | None = None
        self._catalog = Catalog(tools.tenants)
        self._drains: dict[str, float] = {}
        self._loaded: set[str] = set()
        """Models whose text side has come since the last report."""
        self._lost = ""

    async def open(self) -> None:
        """Find out how to reach the server, without asking it anything. Raises `bad_setting`."""
        self._cluster = await self._connect()

    async def run(self) -> None:
        """Watch until cancelled."""
        assert self._cluster is not None, "opened first"
        pods = [self._reflector(Selector(POD, each, SELECTED)) for each in self._namespaces]
        services = [self._reflector(Selector(MODEL_SERVICE, each)) for each in self._namespaces]
        reflectors = (*pods, *services)
        self._texts.loaded = self._text_loaded
        try:
            async with asyncio.TaskGroup() as group:
                for reflector in reflectors:
                    group.create_task(reflector.run(), name="watch of the API server")
                group.create_task(self._texts.run(), name="text sides")
                await self._tell_for_ever(reflectors)
        finally:
            await self._cluster.close()

    def _reflector(self, selector: Selector) -> Reflector:
        assert self._cluster is not None
        pods = selector.kind == POD
        keep, take = (kept, self._catalog.take_pod) if pods else (without_bookkeeping, self._catalog.take_service)

        def on_change(key: Key, old: Json | None, new: Json | None) -> None:
            if take(key, new):
                self._changed.set()

        reflector = Reflector(self._cluster, selector, self._clock, self._entropy, self._settings, keep)
        reflector.store.on_change(on_change)
        return reflector

    def _text_loaded(self, model: str) -> None:
        self._loaded.add(model)
        self._changed.set()

    async def _tell_for_ever(self, reflectors: Sequence[Reflector]) -> None:
        told = False
        while True:
            synced = all(reflector.has_synced for reflector in reflectors)
            if synced and not told:
                self._fleet.change_members(self._always, ())
                self._fleet.change_services({}, {})
                self._changed.set()
                told = True
            if synced and self._changed.is_set():
                self._changed.clear()
                self._tell()
            self._watch_health(reflectors)
            try:
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._changed.wait()
                await asyncio.sleep(_SETTLE_S)
            except TimeoutError:
                pass

    def _tell(self) -> None:
        """Report what has changed."""
        changes, catalog = self._catalog.take_changes(), self._catalog
        for problem in changes.problems:
            event(_log, "service_ignored", level=logging.WARNING, reason=problem)
        event(_log, "discovered", level=logging.DEBUG, workers=len(catalog.members), services=len(catalog.named))
        if changes.services:
            self._texts.want({model: each.text for model, each in catalog.named.items()})
        models, self._loaded = {*changes.services, *self._loaded}, set()
        services = {model: catalog.named.get(model) for model in sorted(models)}
        self._fleet.change_services(
            {model: None if each is None else self._with_context(each.facts) for model, each in services.items()},
            {address: None if each is None else _facts(each) for address, each in changes.members.items()},
        )
        joined = [address for address, each in changes.members.items() if each is not None]
        left = [address for address, each in changes.members.items() if each is None and address not in self._always]
        self._fleet.change_members(joined, left)
        self._tell_drains(changes.members)

    def _tell_drains(self, members: Mapping[str, WorkerPod | None]) -> None:
        changed = {address: None if each is None else each.drain_within_s for address, each in members.items()}
        if all(self._drains.get(address) == within_s for address, within_s in changed.items()):
            return
        whole: dict[str, float | None] = {**self._drains, **changed}
        self._drains = {address: within_s for address, within_s in whole.items() if within_s is not None}
        self._fleet.set_drains(self._drains)

    def _with_context(self, facts: ServiceFacts) -> ServiceFacts:
        context = self._texts.context_tokens(facts.model)
        return facts if context is None else replace(facts, context_tokens=context)

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


def _facts(worker: WorkerPod) -> MemberFacts:
    return MemberFacts(worker.address, worker.service, worker.pool, worker.ready, worker.name)
