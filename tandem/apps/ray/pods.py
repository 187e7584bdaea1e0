"""Reports of workers as Pods, which the operator and routers read. Pure."""

from typing import Any, Final

from control_plane.objects.names import LINK_PORT_ANNOTATION, REVISION, pool_labels
from router.discovery.pods import DRAIN_WITHIN
from tandem.apps.ray.serving import WorkerTold
from tandem.kube.kinds import POD, Json
from tandem.link.address import split_host

NAMESPACE: Final = "ray"
"""Of all objects of the hub."""
FINALIZER: Final = "ray.tandem.dev/worker"
"""Keeps the Pod of a worker that drains, until the worker says that it has ended."""
_MARGIN_S: Final = 30
"""By which a Pod's grace period exceeds its drain, as on Kubernetes."""


def pod_of(told: WorkerTold) -> Json:
    """The Pod without its status."""
    labels = {
        **pool_labels(told.service, told.pool, told.role),
        REVISION: told.revision,
        "app.kubernetes.io/name": "tandem-worker",
    }
    annotations = {}
    _, port = split_host(told.address) if told.address else ("", None)
    if port is not None:
        annotations[LINK_PORT_ANNOTATION] = str(port)
    metadata: Json = {**named(told.name)["metadata"], "labels": labels, "finalizers": [FINALIZER]}
    if told.leaving_s is not None:
        annotations[DRAIN_WITHIN] = f"{told.leaving_s:g}"
        metadata["deletionGracePeriodSeconds"] = int(told.leaving_s) + _MARGIN_S
    if annotations:
        metadata["annotations"] = annotations
    return {**named(told.name), "metadata": metadata}


def status_of(told: WorkerTold, before: Json | None, when: str) -> Json:
    """The Pod with nothing but its status; `before` is the Pod as it is, `when` the time of a change."""
    status = "True" if told.ready else "False"
    stated: list[Any] = ((before or {}).get("status") or {}).get("conditions") or []
    old = next((each for each in stated if each["type"] == "Ready"), None)
    since = when if old is None or old["status"] != status else old["lastTransitionTime"]
    found: Json = {
        "phase": "Running" if told.address else "Pending",
        "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": since}],
    }
    if told.address:
        found["podIP"] = split_host(told.address)[0]
    return {**named(told.name), "status": found}


def named(name: str) -> Json:
    """The Pod with nothing but its name."""
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": POD.api_version, "kind": POD.kind, "metadata": metadata}
