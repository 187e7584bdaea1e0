"""The workload that runs a pool's pods in one revision: a Deployment, or a LeaderWorkerSet where one worker spans
nodes."""

from typing import Any, Final

from control_plane.objects.names import (
    LINK_PORT_ANNOTATION,
    POOL,
    REVISION,
    ROLE,
    annotations_of,
    labels_of,
    owner_reference,
    pool_labels,
    selector,
    workers_name,
)
from control_plane.objects.pods import CONTAINER
from control_plane.objects.revisions import PoolRecord
from tandem.kube.kinds import DEPLOYMENT, LEADER_WORKER_SET, Json
from tandem.spec.worker_settings import as_flags

_PACKED: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"
"""Annotation of the set itself: its controller passes it on to the first pods, and looks for it when it places the
others."""
_PROBED: Final = "health"
_SIZE_MAX: Final = 2**31 - 1


def workload(service: str, record: PoolRecord, revision: str, replicas: int, engine_pool: Json) -> Json:
    """The Deployment or LeaderWorkerSet with `replicas` workers."""
    kind = DEPLOYMENT if record.nodes == 1 else LEADER_WORKER_SET
    labels = {**pool_labels(service, record.name, record.role), REVISION: revision}
    packed = {} if record.pack is None or record.nodes == 1 else {"annotations": {_PACKED: record.pack}}
    spec = _deployment(service, record, revision) if record.nodes == 1 else _group(record)
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": workers_name(service, record.name, revision),
            "namespace": engine_pool["metadata"]["namespace"],
            "labels": labels,
            **packed,
            "ownerReferences": [owner_reference(engine_pool)],
        },
        "spec": {"replicas": replicas, **spec},
    }


def record_of(workers: Json) -> PoolRecord:
    """The record of workers whose ControllerRevision is gone, read from their workload: enough to go on scaling
    them."""
    labels, spec = labels_of(workers), workers["spec"]
    group = spec.get("leaderWorkerTemplate")
    template = spec["template"] if group is None else group["leaderTemplate"]
    nodes = 1 if group is None else int(group["size"])
    pack = annotations_of(workers).get(_PACKED)
    return PoolRecord(labels[POOL], labels.get(ROLE, ""), nodes, template, {}, pack)


def _deployment(service: str, record: PoolRecord, revision: str) -> Json:
    return {
        "selector": {"matchLabels": selector(service, record.name, revision)},
        "template": record.template,
        # A revision's template never changes, so that nothing is ever rolled within a Deployment.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "revisionHistoryLimit": 0,
        "progressDeadlineSeconds": _SIZE_MAX,
    }


def _group(record: PoolRecord) -> Json:
    """One pod per node. The first is the worker; the others only have ranks of its engine."""
    group = {
        "size": record.nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": _on_node(record.template, record.nodes, "0"),
        "workerTemplate": _following(record.template, record.nodes),
    }
    return {"leaderWorkerTemplate": group, "startupPolicy": "LeaderCreated"}


def _following(template: Json, nodes: int) -> Json:
    """The template of a group's other pods: the same program with the same settings, which finds its leader. It has
    no links: it is a part of the first pod's worker, so it bears neither the role nor the port by which routers find
    workers."""

    def follow(container: Json) -> Json:
        ports = [port for port in container.get("ports", ()) if port["name"] == _PROBED]
        return {**container, "ports": ports}

    metadata = template["metadata"]
    labels = {key: value for key, value in metadata["labels"].items() if key != ROLE}
    annotations = {
        key: value for key, value in metadata.get("annotations", {}).items() if key != LINK_PORT_ANNOTATION
    }
    apart = {**template, "metadata": {**metadata, "labels": labels, "annotations": annotations}}
    return _with_worker(_on_node(apart, nodes, "$(LWS_WORKER_INDEX)"), follow)


def _on_node(template: Json, nodes: int, rank: str) -> Json:
    """The template with the flags that place its worker on a node. The `LWS_` variables are set by the
    LeaderWorkerSet controller in every pod of a group. A template read from such a set already has the flags and gets
    them only once."""

    where = {"count": nodes, "rank": rank, "leader": "$(LWS_LEADER_ADDRESS)", "host": "$(POD_IP)"}
    added = as_flags({f"vllm.nodes.{key}": value for key, value in where.items()})

    def told(container: Json) -> Json:
        args = list(container.get("args", ()))
        known = args[: -len(added)] if args[-len(added) :: 2] == added[::2] else args
        return {**container, "args": [*known, *added]}

    return _with_worker(template, told)


def _with_worker(template: Json, change: Any) -> Json:
    spec = template["spec"]
    containers = [change(each) if each["name"] == CONTAINER else each for each in spec["containers"]]
    return {**template, "spec": {**spec, "containers": containers}}
