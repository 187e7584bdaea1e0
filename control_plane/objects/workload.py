"""What runs a pool's pods in one revision: a Deployment, or a LeaderWorkerSet where one worker spans nodes."""

from typing import Any, Final

from control_plane.objects.names import (
    POOL,
    REVISION,
    ROLE,
    labels_of,
    owner_reference,
    pool_labels,
    selector,
    workers_name,
)
from control_plane.objects.pods import CONTAINER
from control_plane.objects.revisions import PoolRecord
from tandem.kube.kinds import DEPLOYMENT, LEADER_WORKER_SET, Json

_PACKED: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"
_SIZE_MAX: Final = 2**31 - 1


def workload(service: str, record: PoolRecord, revision: str, replicas: int, engine_pool: Json) -> Json:
    """The Deployment or LeaderWorkerSet with `replicas` workers."""
    kind = DEPLOYMENT if record.nodes == 1 else LEADER_WORKER_SET
    labels = {**pool_labels(service, record.name, record.role), REVISION: revision}
    spec = _deployment(service, record, revision) if record.nodes == 1 else _group(record)
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": workers_name(service, record.name, revision),
            "namespace": engine_pool["metadata"]["namespace"],
            "labels": labels,
            "ownerReferences": [owner_reference(engine_pool)],
        },
        "spec": {"replicas": replicas, **spec},
    }


def record_of(workers: Json) -> PoolRecord:
    """What is known of workers whose ControllerRevision is gone: enough to go on scaling them."""
    labels, spec = labels_of(workers), workers["spec"]
    group = spec.get("leaderWorkerTemplate")
    template = spec["template"] if group is None else group["leaderTemplate"]
    nodes = 1 if group is None else int(group["size"])
    return PoolRecord(labels[POOL], labels.get(ROLE, ""), nodes, template, {}, None)


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
    template = record.template
    if record.pack is not None:
        metadata = template["metadata"]
        annotations = {**metadata.get("annotations", {}), _PACKED: record.pack}
        template = {**template, "metadata": {**metadata, "annotations": annotations}}
    group = {
        "size": record.nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": _leading(template, record.nodes),
        "workerTemplate": _following(template, record.nodes),
    }
    return {"leaderWorkerTemplate": group, "startupPolicy": "LeaderCreated"}


def _leading(template: Json, nodes: int) -> Json:
    def lead(container: Json) -> Json:
        ranks = ["--vllm.extra.nnodes", str(nodes), "--vllm.extra.node_rank", "0"]
        address = ["--vllm.extra.master_addr", "$(LWS_LEADER_ADDRESS)"]
        return {**container, "args": [*container.get("args", ()), *ranks, *address]}

    return _with_worker(template, lead)


def _following(template: Json, nodes: int) -> Json:
    """vLLM's own program for ranks without a front. It has no links and no readiness: it is a part of the first pod's
    worker, so it does not bear the role by which routers find workers."""

    def follow(container: Json) -> Json:
        kept = ("startupProbe", "livenessProbe", "readinessProbe", "ports")
        bare = {key: value for key, value in container.items() if key not in kept}
        command = ["vllm", "serve", "$(TANDEM_MODEL)", "--headless"]
        shards = [
            *("--tensor-parallel-size", "$(TANDEM_VLLM__PARALLELISM__TENSOR)"),
            *("--pipeline-parallel-size", "$(TANDEM_VLLM__PARALLELISM__PIPELINE)"),
            *("--data-parallel-size", "$(TANDEM_VLLM__PARALLELISM__DATA)"),
        ]
        ranks = ["--nnodes", str(nodes), "--node-rank", "$(LWS_WORKER_INDEX)"]
        return {**bare, "command": command, "args": [*shards, *ranks, "--master-addr", "$(LWS_LEADER_ADDRESS)"]}

    metadata = template["metadata"]
    labels = {key: value for key, value in metadata["labels"].items() if key != ROLE}
    return _with_worker({**template, "metadata": {**metadata, "labels": labels}}, follow)


def _with_worker(template: Json, change: Any) -> Json:
    spec = template["spec"]
    containers = [change(each) if each["name"] == CONTAINER else each for each in spec["containers"]]
    return {**template, "spec": {**spec, "containers": containers}}
