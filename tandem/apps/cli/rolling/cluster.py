"""A service as the control plane sees it, where workers are processes: its objects are in memory, and each look at
them is the reconcile of a cluster's operator."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from control_plane.objects.installation import Installation
from control_plane.objects.names import HANDOVER_MANAGER, REVISION, SPEC_MANAGER, STATUS_MANAGER, pool_labels
from control_plane.observe.observed import DesiredSpec
from control_plane.observe.reading import CHILDREN, ReportedInputs, observe
from control_plane.reconcile import Plan, reconcile
from tandem.core.clock import Clock
from tandem.kube.cluster import NotFound
from tandem.kube.kinds import DEPLOYMENT, MODEL_SERVICE, POD, Json, Kind, Ref
from tandem.kube.memory_cluster import MemoryCluster
from tandem.kube.store import Store
from tandem.kube.times import timestamp
from tandem.spec.revision import revision_of
from tandem.spec.service import ModelService
from tandem.spec.status import ModelServiceStatus

NAMESPACE: Final = "local"
_KUBELET: Final = "tandem-up"
_INSTALLATION: Final = Installation(key_secret=None, in_cluster=False)


@dataclass(frozen=True)
class LocalWorker:
    """A process as a pod. `leaving` ones count for nothing any more."""

    name: str
    pool: str
    role: str
    revision: str
    ready: bool
    leaving: bool


@dataclass(frozen=True)
class ReconcileOutcome:
    """The result of one look: workers wanted by (pool, revision), percent of new requests by revision, and what to
    report. `settled` means that nothing is left to do, whether it went as wished or `failed`."""

    wanted: dict[tuple[str, str], int]
    weights: dict[str, int]
    sentences: tuple[str, ...]
    settled: bool
    failed: bool


class LocalCluster:
    """The objects of one service. `want` sets its specification, `look` gives what is to be done next."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cluster = MemoryCluster(clock)
        self._service: ModelService | None = None
        self._revision = ""
        self._shown: dict[str, bool] = {}

    async def want(self, service: ModelService) -> str:
        """The service's specification is this from now on; gives its revision."""
        self._service, self._revision = service, revision_of(service.spec)
        spec = msgspec.to_builtins(service.spec)
        plain = {key: value for key, value in spec.items() if value is not None}
        await self._cluster.apply({**_named(MODEL_SERVICE, service.metadata.name), "spec": plain}, "user")
        return self._revision

    async def look(self, workers: Sequence[LocalWorker]) -> ReconcileOutcome:
        """One reconcile over these workers, carried out as far as it is about objects."""
        assert self._service is not None, "something is wanted first"
        await self._show(workers)
        stores = {kind: self._store(kind) for kind in (*CHILDREN, POD)}
        (obj,) = self._cluster.objects(MODEL_SERVICE)
        observed = observe(obj, DesiredSpec(self._service, self._revision), stores, ReportedInputs())
        plan = reconcile(observed, self._clock.wall(), _INSTALLATION)
        await self._carry_out(plan)
        (after,) = self._cluster.objects(MODEL_SERVICE)
        return self._looked(after, plan, workers)

    def _looked(self, obj: Json, plan: Plan, workers: Sequence[LocalWorker]) -> ReconcileOutcome:
        status = msgspec.convert(obj.get("status") or {}, ModelServiceStatus)
        wanted: dict[tuple[str, str], int] = {}
        for each in self._cluster.objects(DEPLOYMENT):
            labels = each["metadata"]["labels"]
            wanted[labels["tandem.dev/pool"], labels[REVISION]] = int(each["spec"]["replicas"])
        there: dict[tuple[str, str], int] = {}
        for worker in workers:
            counted = there.get((worker.pool, worker.revision), 0)
            there[worker.pool, worker.revision] = counted + (worker.ready and not worker.leaving)
        stalled = any(each.type == "Stalled" and each.status == "True" for each in status.conditions)
        as_wanted = {key: count for key, count in wanted.items() if count} == {k: n for k, n in there.items() if n}
        calm = plan.quiet and as_wanted and not any(worker.leaving for worker in workers)
        return ReconcileOutcome(
            wanted,
            {each.name: each.weight for each in status.revisions},
            tuple(note.sentence for note in plan.notes),
            settled=calm and (stalled or (status.current_revision == self._revision and not status.update_revision)),
            failed=stalled,
        )

    async def _carry_out(self, plan: Plan) -> None:
        """All but what pods cost: nothing here looks at that."""
        for obj in plan.handovers:
            await self._cluster.apply(obj, HANDOVER_MANAGER)
        for obj in plan.apply:
            await self._cluster.apply(obj, SPEC_MANAGER)
        for deletion in plan.delete:
            with suppress(NotFound):
                await self._cluster.delete(deletion.ref, uid=deletion.uid)
        for obj in plan.statuses:
            await self._cluster.apply_status(obj, STATUS_MANAGER)

    async def _show(self, workers: Sequence[LocalWorker]) -> None:
        """Make the pods match the processes. A process that leaves has no pod any more: nothing waits for its end."""
        here = {worker.name: worker for worker in workers if not worker.leaving}
        for name in [name for name in self._shown if name not in here]:
            del self._shown[name]
            await self._cluster.delete(Ref(POD, NAMESPACE, name))
        for name, worker in here.items():
            if self._shown.get(name) == worker.ready:
                continue
            assert self._service is not None
            labels = {
                **pool_labels(self._service.metadata.name, worker.pool, worker.role),
                REVISION: worker.revision,
            }
            pod = _named(POD, name)
            if name not in self._shown:
                await self._cluster.apply({**pod, "metadata": {**pod["metadata"], "labels": labels}}, _KUBELET)
            self._shown[name] = worker.ready
            now = timestamp(self._clock.wall())
            ready = {"type": "Ready", "status": "True" if worker.ready else "False", "lastTransitionTime": now}
            await self._cluster.apply_status({**pod, "status": {"phase": "Running", "conditions": [ready]}}, _KUBELET)

    def _store(self, kind: Kind) -> Store:
        store = Store()
        store.replace(self._cluster.objects(kind))
        return store


def _named(kind: Kind, name: str) -> Json:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
    }
