"""One service from the mirrors of the cluster's objects."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from control_plane.objects.names import GATE, POOL, REVISION, SERVICE, labels_of
from control_plane.objects.revisions import RevisionRecord, read_revision
from control_plane.observe.gates import read_gate
from control_plane.observe.observed import DesiredSpec, Extensions, Gate, ModelFacts, Observed, Pod, Workers
from control_plane.observe.pods import PodLoad, read_follower, read_pod
from tandem.kube.kinds import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    ENGINE_POOL,
    JOB,
    LEADER_WORKER_SET,
    POD,
    POD_DISRUPTION_BUDGET,
    SCALED_OBJECT,
    TRIGGER_AUTHENTICATION,
    Json,
    Kind,
    Ref,
    ref_of,
)
from tandem.kube.kinds import SERVICE as KUBE_SERVICE
from tandem.kube.store import Store

CHILDREN = (
    ENGINE_POOL,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    KUBE_SERVICE,
    POD_DISRUPTION_BUDGET,
    CONFIG_MAP,
    JOB,
)
"""Kinds that every cluster has, of which a service consists, besides pods."""
OPTIONAL = (SCALED_OBJECT, TRIGGER_AUTHENTICATION, LEADER_WORKER_SET)

Stores = Mapping[Kind, Store]


@dataclass(frozen=True)
class ReportedInputs:
    """Inputs that are not in the cluster: load per pod, from routers; facts about the model. Health is added
    later."""

    loads: Mapping[str, PodLoad] = field(default_factory=dict)
    model: ModelFacts | None = None


def observe(
    obj: Json,
    wish: DesiredSpec,
    stores: Stores,
    told: ReportedInputs,
    record_from: Callable[[Json], RevisionRecord] = read_revision,
) -> Observed:
    """The service of the ModelService `obj`. A store that is absent is of a kind that the cluster does not have."""
    namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
    children = {
        ref_of(each, kind): each
        for kind in (*CHILDREN, *OPTIONAL)
        if kind in stores
        for each in stores[kind].labelled(SERVICE, name, namespace)
    }
    of_kind = _by_kind(children)
    pods = stores[POD].labelled(SERVICE, name, namespace)
    records = (record_from(each) for each in of_kind.get(CONTROLLER_REVISION, ()) if REVISION in labels_of(each))
    return Observed(
        object=obj,
        wish=wish,
        extensions=Extensions({SCALED_OBJECT, TRIGGER_AUTHENTICATION} <= stores.keys(), LEADER_WORKER_SET in stores),
        model=told.model,
        engine_pools={labels_of(each)[POOL]: each for each in of_kind.get(ENGINE_POOL, ())},
        workers=_workers((*of_kind.get(DEPLOYMENT, ()), *of_kind.get(LEADER_WORKER_SET, ()))),
        records={record.name: record for record in records},
        pods=_pods(pods, told.loads),
        followers=tuple(follower for each in pods if (follower := read_follower(each)) is not None),
        gates=_gates(of_kind.get(JOB, ()), pods),
        children=children,
    )


def _by_kind(children: Mapping[Ref, Json]) -> dict[Kind, list[Json]]:
    found: dict[Kind, list[Json]] = {}
    for ref, obj in children.items():
        found.setdefault(ref.kind, []).append(obj)
    return found


def _workers(objects: Iterable[Json]) -> tuple[Workers, ...]:
    found = []
    for obj in objects:
        labels = labels_of(obj)
        if POOL in labels and REVISION in labels and "deletionTimestamp" not in obj["metadata"]:
            replicas = int(obj["spec"].get("replicas", 1))
            found.append(Workers(labels[POOL], labels[REVISION], replicas, obj, _refused(obj)))
    return tuple(found)


def _refused(workload: Json) -> str:
    stated = (workload.get("status") or {}).get("conditions") or ()
    failure = (each for each in stated if each.get("type") == "ReplicaFailure" and each.get("status") == "True")
    return next((str(each.get("message") or each.get("reason") or "refused") for each in failure), "")


def _pods(objects: Iterable[Json], loads: Mapping[str, PodLoad]) -> tuple[Pod, ...]:
    return tuple(pod for each in objects if (pod := read_pod(each, loads)) is not None)


def _gates(jobs: Iterable[Json], pods: Iterable[Json]) -> dict[str, Gate]:
    by_gate: dict[str, list[Json]] = {}
    for pod in pods:
        if GATE in labels_of(pod):
            by_gate.setdefault(labels_of(pod)[GATE], []).append(pod)
    gates = (read_gate(job, by_gate.get(labels_of(job)[GATE], ())) for job in jobs if GATE in labels_of(job))
    return {gate.revision: gate for gate in gates}
