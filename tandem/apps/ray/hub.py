"""The hub: Tandem's operator for a Ray cluster, over objects in memory that outlive it in a store.

One per cluster, for all services. Replicas report to it, routers read objects from it, commands set what is wanted.
It knows Ray by the seam `Serving` alone.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final

from control_plane.objects.installation import Installation, completed
from control_plane.objects.names import SERVICE, labels_of
from control_plane.reports.http_get import Endpoint
from control_plane.reports.poller import Poller
from tandem.apps.cli.registry import PlatformEntry, process_start
from tandem.apps.ray.event_log import EventLog, LogRecorder
from tandem.apps.ray.gates import Gates, Verify, VerifyProcess
from tandem.apps.ray.hub_end import HubEnd
from tandem.apps.ray.hub_store import HubStore, StateKeeper
from tandem.apps.ray.kubelet import Kubelet
from tandem.apps.ray.operator_parts import HubObjects, OperatorDeps, OperatorParts
from tandem.apps.ray.options import RaySettings
from tandem.apps.ray.pods import NAMESPACE
from tandem.apps.ray.router_reports import RouterReports
from tandem.apps.ray.serving import Orders, RouterTold, Serving, WorkerTold
from tandem.apps.ray.wanted import Turn, WantedServices, wanted_again
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.kube.cluster import Page, Selector, WatchEvent
from tandem.kube.kinds import MODEL_SERVICE, POD, Json, Ref
from tandem.spec.revision import revision_of
from tandem.spec.service import ModelService

LOOK_EVERY_S: Final = 0.5
SAVE_EVERY_S: Final = 0.5
END_LOOK_S: Final = 1.0
REFUSE_S: Final = 60.0
"""Seconds for which a hub that cannot read its state says so, before its process makes room for another version."""
OPEN_S: Final = 30.0
"""Seconds that a call waits for a hub that is starting."""
_CHANGES_MAX: Final = 1000
_HISTORY_MAX: Final = 5000
"""Writes after which history is forgotten: watches that are behind list again."""

MakePoller = Callable[[Callable[[], Mapping[str, Endpoint]], Clock, str], Poller]


def open_poller(routers: Callable[[], Mapping[str, Endpoint]], clock: Clock, key: str) -> Poller:
    """The poller of routers by HTTP; `key` is an API key or empty."""
    return Poller(routers, clock, key=key)


class Hub:
    """Run `run` as a task. Every other method may be called beside it at any time, and waits until it has begun;
    those that change something return once the change is kept. They raise `link_lost` when the hub does not begin in
    time or is over, `stale_epoch` once a younger hub acts, and `bad_setting` where its kept state cannot be read."""

    def __init__(
        self,
        settings: RaySettings,
        serving: Serving,
        store: HubStore,
        clock: Clock,
        entropy: Entropy,
        *,
        make_poller: MakePoller = open_poller,
        verify: Verify | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._serving = serving
        self._cluster = HubObjects(clock)
        self._keeper = StateKeeper(store, self._cluster, entropy)
        self._wanted = WantedServices(self._cluster, clock)
        self._log = EventLog()
        self._routers = RouterReports(clock)
        self._kubelet = Kubelet(self._cluster, serving, clock, self._keeper.save, self._log.say)
        self._gates = Gates(
            self._cluster, verify or VerifyProcess(self._routers.url, settings.router_key), self._log.say
        )
        url = settings.url or Installation.service_url
        self._installation = Installation(worker_image="ray", key_secret=None, service_url=url, in_cluster=False)
        self._parts = OperatorParts(
            OperatorDeps(
                cluster=self._cluster,
                clock=clock,
                entropy=entropy,
                recorder=LogRecorder(self._log, self._cluster, clock),
                poller=make_poller(self._routers.endpoints, clock, settings.router_key),
                routers=self._routers.serving,
                allowed=lambda: not self._keeper.superseded,
                installation=self._installation,
            )
        )
        self._opened, self._stirred = asyncio.Event(), asyncio.Event()
        self._empty_since: float | None = None
        self._compacted_at = 0
        self._unreadable: TandemError | None = None
        """Why the hub cannot begin."""

    async def run(self) -> None:
        """Act until the hub is over, or cancelled. Once this has returned every call is refused, and what was kept is
        of no use any more. Raises `stale_epoch` once a younger hub acts, `link_lost`, and after some time of refusing
        `bad_setting` where the kept state cannot be read."""
        await self._begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                acting = [
                    tasks.create_task(self._parts.run(), name="operator"),
                    tasks.create_task(self._look_for_ever(), name="kubelet"),
                    tasks.create_task(self._expire_for_ever(), name="silence"),
                    tasks.create_task(self._save_for_ever(), name="state"),
                ]
                while not self._wanted.over:
                    await asyncio.sleep(END_LOOK_S)
                    await self._look_for_end()
                for task in acting:
                    task.cancel()
        except* TandemError as group:
            raise _first(group) from None
        finally:
            await self._gates.close()

    async def change(self, until: float, method: str, *arguments: object) -> Any:
        """The result of a method that changes something, whose caller waits until second `until` of `time`. Raises
        `deadline_exceeded` after it: what nobody waits for any more is not done."""
        await self._open()
        late_s = self._clock.wall() - until
        if late_s >= 0.0:
            problem = f"the hub came to {method} {late_s:.1f} s after its caller had given up, and does not do it"
            raise TandemError("deadline_exceeded", problem)
        return await getattr(self, method)(*arguments)

    async def time(self) -> float:
        """The hub's own wall clock, in seconds."""
        return self._clock.wall()

    # -- Commands -------------------------------------------------------------------------------------------------

    async def want(self, service: ModelService) -> str:
        """The service is to be as specified from now on; gives its revision. Raises `bad_setting` for what cannot be
        on Ray, and for a change of what cannot be changed."""
        await self._open()
        await self._wanted.want(service)
        await self._changed()
        return revision_of(completed(service, self._installation).spec)

    async def scale(self, service: str, counts: Mapping[str, int]) -> None:
        """Set numbers of workers by pool. Raises `not_found` for a service or pool that there is not, and
        `invalid_request` for a number that no pool may have."""
        await self._open()
        await self._wanted.scale(service, counts)
        await self._changed()

    async def turn(self) -> Turn:
        """The moment at which `leave` is asked for, so that a call which is made again undoes nothing newer."""
        await self._open()
        return self._wanted.turn()

    async def leave(self, service: str, within_s: float, asked: Turn | None = None) -> None:
        """Drain and delete a service; return when nothing of it is left. Workers that have not ended within
        `within_s` seconds are deleted with it. Raises `deadline_exceeded` when they are still there some time
        later, and `Conflict` when the service is wanted again meanwhile, or was after the turn at which this was
        `asked`."""
        await self._open()
        await self._wanted.leave(service, within_s, asked)
        await self._changed()
        try:
            async with asyncio.timeout(2 * within_s + OPEN_S):
                while self._left(service):
                    if self._wanted.stays(service):
                        raise wanted_again(service)
                    await asyncio.sleep(LOOK_EVERY_S / 2)
        except TimeoutError:
            problem = f"not gone within {within_s:g} s: {', '.join(self._left(service))}"
            raise TandemError("deadline_exceeded", problem) from None
        await self._keeper.save()

    async def end(self) -> bool:
        """Have the hub end as soon as nothing of a service is left, and say whether that is to be: not where there
        is a service. One that is wanted before the end keeps the hub."""
        if self._wanted.over:
            return True
        await self._open()
        return await self._wanted.ask_to_end()

    async def services(self) -> tuple[Json, ...]:
        """All ModelServices, with their status."""
        await self._open()
        return tuple(self._cluster.objects(MODEL_SERVICE))

    async def events(self, since: int, wait_s: float) -> tuple[int, tuple[str, ...]]:
        """Sentences from number `since` on, at once or when there is one within `wait_s` seconds, and the number to
        ask for next. Begin with 0."""
        await self._open()
        return await self._log.after(since, wait_s)

    async def entry(self) -> PlatformEntry:
        """What there is, in the form of the registry of platforms. `pid` is the hub's own."""
        await self._open()
        members = (*self._routers.members(), *self._kubelet.members())
        url = self._settings.url or self._routers.url() or ""
        pid = os.getpid()
        return PlatformEntry(
            url=url, run_directory="", control="", members=members, pid=pid, began=process_start(pid) or 0
        )

    # -- Replicas -------------------------------------------------------------------------------------------------

    async def report(self, told: WorkerTold) -> Orders:
        """Take over a worker's report. A worker that has not reported for 5 s counts as gone."""
        await self._open()
        if told.gang and told.rank == 0 and told.address and not told.gone:
            self._keeper.meet(told.gang, told.address.rpartition(":")[0].strip("[]"))
        return Orders(self._keeper.epoch, await self._kubelet.report(told))

    async def router(self, told: RouterTold) -> None:
        """Take over a router's report. A router that has not reported for 10 s counts as gone."""
        await self._open()
        self._routers.report(told)

    async def key(self) -> str:
        """The ticket key of all routers and workers, in hexadecimal digits; drawn once per cluster."""
        await self._open()
        return self._keeper.state.key

    async def started_serve(self, started: bool | None = None) -> bool:
        """Whether Serve was started for Tandem; with `started`, note that it was or was not."""
        await self._open()
        if started is not None and started != self._keeper.state.started_serve:
            self._keeper.state.started_serve = started
            self._keeper.touch()
            await self._keeper.save()
        return self._keeper.state.started_serve

    async def rendezvous(self, gang: str, rank: int, address: str, wait_s: float) -> str:
        """The address of a gang's rank 0: rank 0 gives its own, the others wait for it at most `wait_s` seconds.
        Raises `deadline_exceeded`."""
        await self._open()
        if rank == 0:
            self._keeper.meet(gang, address)
            await self._keeper.save()
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    if gang in self._keeper.state.gangs:
                        return self._keeper.state.gangs[gang]
                    await asyncio.sleep(LOOK_EVERY_S / 2)
        except TimeoutError:
            problem = f"rank 0 of gang {gang} has not come within {wait_s:g} s"
            raise TandemError("deadline_exceeded", problem) from None

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        """As `tandem.kube.cluster.Cluster.list_page`."""
        await self._open()
        return await self._cluster.list_page(selector, limit, token)

    async def changes(self, selector: Selector, version: str, wait_s: float) -> tuple[WatchEvent, ...]:
        """Changes after `version`, as soon as there is one; after `wait_s` seconds without any, a bookmark. Raises
        `Expired`."""
        await self._open()
        # What is written from here on is delivered, by this call or the next.
        seen, found = self._cluster.version, list[WatchEvent]()
        async with aclosing(self._cluster.watch(selector, version)) as stream:
            with suppress(TimeoutError, StopAsyncIteration):
                async with asyncio.timeout(wait_s):
                    found.append(await anext(stream))
                # What is there by now comes without waiting.
                async with asyncio.timeout(0.0):
                    while len(found) < _CHANGES_MAX:
                        found.append(await anext(stream))
        return tuple(found) or (WatchEvent("bookmark", {"metadata": {"resourceVersion": seen}}),)

    # -- Within ---------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        try:
            await self._keeper.open()
        except TandemError as error:
            if error.code == "bad_setting":
                self._unreadable = error
                self._opened.set()
                await asyncio.sleep(REFUSE_S)
            raise
        self._log.begin(self._keeper.epoch)
        self._kubelet.adopt()
        self._wanted.epoch = self._keeper.epoch
        self._wanted.end = HubEnd(self._clock.now(), self._keeper.state.routers_seen)
        self._opened.set()

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(OPEN_S):
                await self._opened.wait()
        except TimeoutError:
            raise TandemError("link_lost", f"the hub has not begun within {OPEN_S:g} s") from None
        if self._unreadable is not None:
            raise TandemError(self._unreadable.code, self._unreadable.message)
        self._wanted.check_over()
        if self._keeper.superseded:
            await self._keeper.check()

    async def _look_for_end(self) -> None:
        try:
            there: bool | None = bool(await self._serving.routers())
        except TandemError:
            there = None
        await self._wanted.look(there, self._idle_s())
        if self._wanted.end.seen and not self._keeper.state.routers_seen:
            self._keeper.state.routers_seen = True
            self._keeper.touch()

    def _idle_s(self) -> float:
        """Seconds for which there has been no service and no application; 0 while there is any."""
        return 0.0 if self._empty_since is None else self._clock.now() - self._empty_since

    async def _changed(self) -> None:
        """Keep what was changed, and have it acted on at once."""
        await self._keeper.save()
        self._stirred.set()

    def _left(self, service: str) -> list[str]:
        """What there still is of a service, by name."""
        found = [] if self._cluster.peek(Ref(MODEL_SERVICE, NAMESPACE, service)) is None else [service]
        found += [
            obj["metadata"]["name"] for obj in self._cluster.objects(POD) if labels_of(obj).get(SERVICE) == service
        ]
        return found + self._kubelet.apps_of(service)

    async def _look_for_ever(self) -> None:
        while True:
            self._stirred.clear()
            self._gates.look()
            with self._log.guarding("Serve"):
                await self._kubelet.look()
            if not self._kubelet.empty:
                self._empty_since = None
            elif self._empty_since is None:
                self._empty_since = self._clock.now()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._stirred.wait()

    async def _expire_for_ever(self) -> None:
        """Apart from the looks, which last for as long as Serve does not answer."""
        while True:
            await self._kubelet.expire()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _save_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            if self._cluster.writes - self._compacted_at >= _HISTORY_MAX:
                self._compacted_at = self._cluster.writes
                self._cluster.compact()
            with self._log.guarding("the store"):
                await self._keeper.save()


def _first(group: BaseExceptionGroup[TandemError]) -> TandemError:
    """The first error of nested groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, TandemError)
    return error
