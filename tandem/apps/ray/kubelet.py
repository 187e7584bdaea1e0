"""Between the hub's objects and Ray Serve: workloads become applications of Serve, reports of replicas become Pods.

The operator's parts write Deployments and LeaderWorkerSets and read Pods, as they do on Kubernetes; this is what
stands in for its controllers and kubelets.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from control_plane.objects.names import POOL, REVISION, SERVICE, annotations_of, labels_of
from control_plane.objects.revisions import read_revision
from tandem.apps.cli.registry import MemberEntry
from tandem.apps.ray.pods import NAMESPACE, named, pod_of, status_of
from tandem.apps.ray.serving import AppState, RevisionApp, Serving, WorkerTold, app_name, state_of
from tandem.apps.ray.serving_plan import ServingObserved, Workload, orphans, serving_plan, workloads_of
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.kube.cluster import Conflict, NotFound
from tandem.kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    LEADER_WORKER_SET,
    MODEL_SERVICE,
    POD,
    Json,
    Ref,
)
from tandem.kube.memory_cluster import MemoryCluster
from tandem.kube.times import timestamp
from tandem.spec.service import API_VERSION, KIND, Metadata, ModelService, Spec

SILENT_S: Final = 5.0
"""Seconds without a report after which a worker's Pod is removed."""
LEAVING: Final = "ray.tandem.dev/leaving"
"""Annotation of a ModelService that is to go: the wall-clock second at which it goes although workers are there."""
MANAGER: Final = "tandem-ray"
"""The manager of Pods' fields."""
_STALLED_S: Final = 2.0
"""Seconds between two rounds of `expire` beyond which the hub itself has stood still, which is held against no
worker."""
_TABLE_AGAIN_S: Final = 10.0
"""Seconds after which an unchanged table is written again: one that is too old changes nothing."""
_DEPLOY_AGAIN_S: Final = 10.0
_ENDED_MAX: Final = 4096


@dataclass
class _Seen:
    app: str
    at: float
    told: WorkerTold | None = None


class Kubelet:
    """`allowed` is awaited before each call that changes something at Serve: it keeps the objects' state, and raises
    where another hub has taken over. `say` gets sentences for people."""

    def __init__(
        self,
        cluster: MemoryCluster,
        serving: Serving,
        clock: Clock,
        allowed: Callable[[], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._serving = serving
        self._clock = clock
        self._allowed = allowed
        self._say = say
        self._seen: dict[str, _Seen] = {}
        self._ended: deque[str] = deque(maxlen=_ENDED_MAX)
        self._showing, self._looking = asyncio.Lock(), asyncio.Lock()
        self._expired_at: float | None = None
        self._table: tuple[object, float] | None = None
        self._orphaned: dict[str, float] = {}
        self._failed: dict[str, float] = {}
        self._messages: dict[str, str] = {}
        self._not_before: dict[str, float] = {}
        self._wanted: frozenset[str] | None = None
        self._running: tuple[str, ...] | None = None
        self._problems: dict[str, str] = {}
        self.empty = False
        """Whether, at the last look, there was no service, no workload and no application."""

    # -- Workers --------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Count every Pod there is as reported now, at the start of a hub that has been restored."""
        now = self._clock.now()
        for pod in self._cluster.objects(POD):
            labels = labels_of(pod)
            if POOL in labels and REVISION in labels:
                app = app_name(labels[SERVICE], labels[REVISION])
                self._seen[pod["metadata"]["name"]] = _Seen(app, now)

    async def report(self, told: WorkerTold) -> bool:
        """Take over the report of one replica; whether workers of its revision are wanted."""
        async with self._showing:
            if told.name not in self._ended:
                await self._take(told)
        return self._wanted is None or told.app in self._wanted

    def members(self) -> list[MemberEntry]:
        """All replicas that have reported, as a registry of platforms names them."""
        return [
            MemberEntry(
                told.name,
                told.role,
                told.pid or None,
                state_of(told),
                told.address,
                told.metrics,
                0,
                told.service,
                told.pool,
                told.rank,
            )
            for told in (each.told for each in self._seen.values())
            if told is not None
        ]

    def apps_of(self, service: str) -> list[str]:
        """Names of a service's applications, as of the last look; those that end included."""
        if self._running is None:
            return ["applications, of which Serve has not been asked yet"]
        return [name for name in self._running if name.rpartition("-")[0] == service]

    async def _take(self, told: WorkerTold) -> None:
        if told.gone:
            self._ended.append(told.name)
            self._seen.pop(told.name, None)
            await self._remove(told.name)
            return
        seen = self._seen.setdefault(told.name, _Seen(told.app, self._clock.now()))
        seen.at = self._clock.now()
        if seen.told == told and self._pod(told.name) is not None:
            return
        # The other ranks of a gang are parts of the first one's worker.
        if told.rank == 0 and self._service(told.service) is not None:
            await self._show(told)
        seen.told = told

    async def _show(self, told: WorkerTold) -> None:
        before = self._pod(told.name)
        await self._cluster.apply(pod_of(told), MANAGER)
        await self._cluster.apply_status(status_of(told, before, timestamp(self._clock.wall())), MANAGER)
        leaves = told.leaving_s is not None
        if leaves and (before is None or "deletionTimestamp" not in before["metadata"]):
            await self._cluster.delete(Ref(POD, NAMESPACE, told.name))

    async def _remove(self, name: str) -> None:
        """Without its finalizer a Pod that is being deleted goes by itself."""
        if self._pod(name) is None:
            return
        await self._cluster.apply(named(name), MANAGER)
        with suppress(NotFound):
            await self._cluster.delete(Ref(POD, NAMESPACE, name))

    async def expire(self) -> None:
        """Remove the Pods of workers that do not report. To be called twice a second, whether or not Serve answers:
        seconds in which it is not called are seconds in which the hub itself stands still."""
        now = self._clock.now()
        stood_s = 0.0 if self._expired_at is None else now - self._expired_at
        self._expired_at = now
        if stood_s > _STALLED_S:
            for each in self._seen.values():
                each.at += stood_s
        async with self._showing:
            for name in [name for name, each in self._seen.items() if now - each.at > SILENT_S]:
                told = self._seen.pop(name).told
                await self._remove(name)
                if told is None or told.rank == 0:
                    self._say(f"{name} has not reported for {SILENT_S:g} s")

    # -- Serve ----------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Bring Serve to what the objects say, once. Raises `link_lost` while Serve does not answer, and whatever
        `allowed` raises."""
        async with self._looking:
            await self._finish_leaving()
            seen = await self._observed()
            plan = serving_plan(seen)
            self._complain(dict(plan.problems))
            await self._want({name: dict(counts) for name, counts in plan.table.items()})
            for app in plan.deploy:
                await self._deploy(app)
            for name in plan.delete:
                await self._allowed()
                await self._serving.delete(name)
                self._say(f"application {name} is deleted")
            self.empty = not (seen.running or seen.workloads or self._cluster.objects(MODEL_SERVICE))

    async def _observed(self) -> ServingObserved:
        running = await self._serving.running()
        self._running = tuple(running)
        now = self._clock.now()
        seen = ServingObserved(
            workloads=self._workloads(),
            services=self._recorded(),
            running=running,
            present=frozenset(each.app for each in self._seen.values()),
            leaving=frozenset(each["metadata"]["name"] for each, _ in self._leaving()),
        )
        self._wanted = frozenset(each.app for each in seen.workloads)
        self._orphaned = {name: self._orphaned.get(name, now) for name in orphans(seen)}
        failed = [name for name, state in running.items() if state.status == "failed"]
        self._failed = {name: self._failed.get(name, now) for name in failed}
        self._tell(running)
        return replace(
            seen,
            orphaned={name: now - at for name, at in self._orphaned.items()},
            failed={name: now - at for name, at in self._failed.items()},
        )

    def _tell(self, running: Mapping[str, AppState]) -> None:
        """Say what is new in Serve's own words about applications that do not run."""
        said = {}
        for name, state in running.items():
            parts = (
                state.message,
                *(f"{pool}: {each.message}" for pool, each in state.deployments.items() if each.message),
            )
            told = " ".join(filter(None, parts))
            if told and state.status in ("unhealthy", "failed"):
                said[name] = told
        for name, told in said.items():
            if self._messages.get(name) != told:
                self._say(f"application {name} is {running[name].status}: {told}")
        self._messages = said

    async def _want(self, table: dict[str, dict[str, int]]) -> None:
        now = self._clock.now()
        if self._table is not None and self._table[0] == table and now - self._table[1] < _TABLE_AGAIN_S:
            return
        await self._allowed()
        await self._serving.want(table)
        self._table = (table, now)

    async def _deploy(self, app: RevisionApp) -> None:
        """One application that Serve refuses holds up no other one."""
        if self._clock.now() < self._not_before.get(app.name, 0.0):
            return
        await self._allowed()
        # Until it is seen: also one whose deployment is not heard of may be there.
        self._running = (*(self._running or ()), app.name)
        try:
            await self._serving.deploy(app)
        except TandemError as error:
            if error.code == "link_lost":
                raise
            self._not_before[app.name] = self._clock.now() + _DEPLOY_AGAIN_S
            self._complain({**self._problems, app.name: error.message})
            return
        self._not_before.pop(app.name, None)
        self._say(f"application {app.name} is deployed")

    def _complain(self, problems: dict[str, str]) -> None:
        for name, problem in problems.items():
            if self._problems.get(name) != problem:
                self._say(f"application {name} cannot be deployed: {problem}")
        self._problems = problems

    # -- Objects --------------------------------------------------------------------------------------------------

    async def _finish_leaving(self) -> None:
        """Delete services that leave, once they have no workers or no more time."""
        for service, until in self._leaving():
            name, version = service["metadata"]["name"], service["metadata"]["resourceVersion"]
            theirs = {each.app for each in self._workloads() if each.service == name}
            present = any(each.app in theirs for each in self._seen.values())
            if not present or self._clock.wall() >= until:
                # One that is wanted again at this moment is another version.
                with suppress(NotFound, Conflict):
                    await self._cluster.delete(Ref(MODEL_SERVICE, NAMESPACE, name), version=version)

    def _leaving(self) -> list[tuple[Json, float]]:
        marked = ((obj, annotations_of(obj).get(LEAVING)) for obj in self._cluster.objects(MODEL_SERVICE))
        return [(obj, float(until)) for obj, until in marked if until is not None]

    def _workloads(self) -> tuple[Workload, ...]:
        objects = (*self._cluster.objects(DEPLOYMENT), *self._cluster.objects(LEADER_WORKER_SET))
        return workloads_of(objects)

    def _recorded(self) -> dict[str, tuple[ModelService, str]]:
        """The specification of every revision, by application: as it was recorded, so that it stays what it was."""
        found = {}
        for obj in self._cluster.objects(CONTROLLER_REVISION):
            service = self._service(labels_of(obj).get(SERVICE, ""))
            revision = labels_of(obj).get(REVISION)
            if service is None or revision is None:
                continue
            app = app_name(str(service["metadata"]["name"]), revision)
            try:
                found[app] = (_of_record(obj, service), revision)
            except msgspec.ValidationError as error:
                # Of another version of Tandem: what runs of it goes on.
                self._say(f"revision {revision} cannot be read: {error}")
        return found

    def _service(self, name: str) -> Json | None:
        return self._cluster.peek(Ref(MODEL_SERVICE, NAMESPACE, name))

    def _pod(self, name: str) -> Json | None:
        return self._cluster.peek(Ref(POD, NAMESPACE, name))


def _of_record(obj: Json, service: Json) -> ModelService:
    """The specification of a record, with the annotations that its service has now."""
    noted = annotations_of(service)
    metadata = Metadata(str(service["metadata"]["name"]), NAMESPACE, annotations=dict(noted))
    return ModelService(API_VERSION, KIND, metadata, msgspec.convert(read_revision(obj).spec, Spec))
