"""Objects of a large fleet as an API server gives them: services like `deploy/examples/llama-70b-tp4.yaml`, settled
by the operator's own code, and pods with what scheduler, kubelet and the server itself write into them."""

import asyncio
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.operator_cluster import KeepingCluster
from benchmarks.operator_looks import NAMESPACE
from benchmarks.operator_scale import is_done, operator
from control_plane.objects.installation import Installation
from tandem.kube.kinds import LEADER_WORKER_SET, MODEL_SERVICE, SCALED_OBJECT, TRIGGER_AUTHENTICATION, Json
from tandem.kube.times import timestamp

INSTALLATION: Final = Installation(
    worker_image="tandem-worker:0.1.0", tls_secret="tandem-tls", cache_host_path="/var/cache/tandem"
)
"""Settings like those of the chart."""
_EXAMPLE: Final = Path(__file__).parents[1] / "deploy/examples/llama-70b-tp4.yaml"
_BEGAN: Final = timestamp(1_800_000_000.0)
_CONDITIONS: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
_LIST_KEYS: Final = ("name", "type", "mountPath", "uid", "containerPort", "ip")
_NODE: Final = "gpu-pool-h100-8x-zone-a"


def llama(number: int, prefills: int, decodes: int) -> Json:
    """One of many services like the example, with so many workers; its model has a name of its own."""
    service: Json = yaml.safe_load(_EXAMPLE.read_text("utf-8"))
    service["metadata"] |= {"name": f"llama-70b-{number:04}", "namespace": NAMESPACE}
    service["spec"]["model"] |= {"name": f"llama-{number:04}", "aliases": [f"chat-{number:04}"]}
    for pool, replicas in zip(service["spec"]["pools"], (prefills, decodes), strict=True):
        del pool["autoscaling"]
        pool["replicas"] = replicas
        pool.pop("spare", None)
    return service


async def settled(services: int, prefills: int, decodes: int) -> KeepingCluster:
    """A cluster with so many of these services, all of them done."""
    cluster = KeepingCluster(frozenset({SCALED_OBJECT, TRIGGER_AUTHENTICATION, LEADER_WORKER_SET}))
    for number in range(services):
        cluster.submit(llama(number, prefills, decodes))
    async with operator(cluster, INSTALLATION) as queue:
        while not (queue.idle and all(is_done(each, 1) for each in cluster.objects(MODEL_SERVICE))):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return cluster


def running(pod: Json, number: int) -> Json:
    """The pod as it is once it runs, with its bookkeeping. `number` gives it a node and an address."""
    metadata, spec = pod["metadata"], pod["spec"]
    node, ip = f"{_NODE}-{number // 2:05}", f"10.{number >> 16}.{(number >> 8) & 255}.{number & 255}"
    labels = {**metadata["labels"], "pod-template-hash": f"{number // 16:010x}"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": metadata["name"].rpartition("-")[0]}
    owner |= {"uid": _uid(number // 16), "controller": True, "blockOwnerDeletion": True}
    whole: Json = {
        **pod,
        "metadata": {
            **metadata,
            "uid": _uid(number),
            "generateName": f"{owner['name']}-",
            "labels": labels,
            "creationTimestamp": _BEGAN,
            "ownerReferences": [owner],
            "resourceVersion": metadata.get("resourceVersion") or str(700_000 + number),
            "generation": 1,
        },
        "spec": {
            **spec,
            "nodeName": node,
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "serviceAccount": "default",
            "serviceAccountName": "default",
            "schedulerName": "default-scheduler",
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
            "tolerations": [
                *spec.get("tolerations", ()),
                *(
                    {"key": f"node.kubernetes.io/{each}", "operator": "Exists", "effect": "NoExecute"}
                    for each in ("not-ready", "unreachable")
                ),
            ],
        },
        "status": _status(spec, node, ip, number),
    }
    made = {"metadata": {key: whole["metadata"][key] for key in ("labels", "annotations", "ownerReferences")}}
    whole["metadata"]["managedFields"] = [
        _managed("kube-controller-manager", {**made, "spec": spec}, ""),
        _managed("tandem-operator-cost", {"metadata": {"annotations": metadata["annotations"]}}, ""),
        _managed("kubelet", {"status": whole["status"]}, "status"),
    ]
    return whole


def _status(spec: Json, node: str, ip: str, number: int) -> Json:
    return {
        "phase": "Running",
        "observedGeneration": 1,
        "conditions": [
            {
                "type": each,
                "status": "True",
                "observedGeneration": 1,
                "lastProbeTime": None,
                "lastTransitionTime": _BEGAN,
            }
            for each in _CONDITIONS
        ],
        "hostIP": "10.128.0.1",
        "hostIPs": [{"ip": "10.128.0.1"}],
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": _BEGAN,
        "qosClass": "Burstable",
        "initContainerStatuses": [_container(each, node, number, True) for each in spec.get("initContainers", ())],
        "containerStatuses": [_container(each, node, number, False) for each in spec["containers"]],
    }


def _container(container: Json, node: str, number: int, ended: bool) -> Json:
    digest = f"{number:064x}"
    over = {"exitCode": 0, "reason": "Completed", "startedAt": _BEGAN, "finishedAt": _BEGAN}
    return {
        "name": container["name"],
        "state": {"terminated": over | {"containerID": f"containerd://{digest}"}}
        if ended
        else {"running": {"startedAt": _BEGAN}},
        "lastState": {},
        "ready": True,
        "started": not ended,
        "restartCount": 0,
        "image": container["image"],
        "imageID": f"{container['image']}@sha256:{digest}",
        "containerID": f"containerd://{digest}",
        "resources": container.get("resources", {}),
        "allocatedResources": (container.get("resources") or {}).get("requests", {}),
        "volumeMounts": [
            {**each, "recursiveReadOnly": "Disabled"} if each.get("readOnly") else each
            for each in container.get("volumeMounts", ())
        ],
        "user": {"linux": {"uid": 10001, "gid": 10001, "supplementalGroups": [10001]}},
    }


def _managed(manager: str, owned: Json, part: str) -> Json:
    found = {"manager": manager, "operation": "Apply", "apiVersion": "v1", "time": _BEGAN, "fieldsType": "FieldsV1"}
    return {**found, "fieldsV1": _fields(owned), **({"subresource": part} if part else {})}


def _fields(value: Any) -> Json:
    """The names of all fields, in the form in which the server keeps them."""
    if isinstance(value, dict):
        return {f"f:{key}": _fields(inner) for key, inner in value.items()}
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        found: Json = {}
        for each in value:
            key = next((name for name in _LIST_KEYS if name in each), None)
            if key is not None:
                found[f'k:{{"{key}":"{each[key]}"}}'] = {".": {}, **_fields(each)}
        return found
    return {}


def _uid(number: int) -> str:
    return f"{number:08x}-5b1c-4c57-9f6e-{number:012x}"
