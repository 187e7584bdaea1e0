"""A pod as the router sees it: where its worker listens, whose it is, and whether it is to leave. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tandem.kube.kinds import Json
from tandem.kube.projection import ALL, Fields, only
from tandem.link.address import LinkAddress
from tandem.spec.service import API_GROUP

SERVICE: Final = f"{API_GROUP}/service"
POOL: Final = f"{API_GROUP}/pool"
LINK_PORT: Final = f"{API_GROUP}/link-port"
DRAIN_WITHIN: Final = f"{API_GROUP}/drain-within"
SELECTED: Final = f"app.kubernetes.io/managed-by=tandem,{SERVICE}"
"""Pods of the control plane's, of any service."""
_OF_GROUP: Final = "leaderworkerset.sigs.k8s.io/worker-index"
_ENDED: Final = ("Succeeded", "Failed")
_READ: Final[Fields] = {
    "metadata": {
        "name": ALL,
        "namespace": ALL,
        "uid": ALL,
        "resourceVersion": ALL,
        "creationTimestamp": ALL,
        "deletionTimestamp": ALL,
        "deletionGracePeriodSeconds": ALL,
        "labels": {SERVICE: ALL, POOL: ALL, _OF_GROUP: ALL},
        "annotations": {LINK_PORT: ALL, DRAIN_WITHIN: ALL},
    },
    "status": {"phase": ALL, "podIP": ALL, "conditions": {"type": ALL, "status": ALL}},
}
_MARGIN_S: Final = 30.0
"""Seconds between the end of a pod's drain and its kill, by which its grace period exceeds the drain."""


@dataclass(frozen=True)
class WorkerPod:
    """One worker. `service` is `namespace/name`; `drain_within_s` is None while the worker is not asked to leave."""

    address: str
    name: str
    service: str
    pool: str
    ready: bool
    drain_within_s: float | None
    since: str = ""
    """When the pod was made, as the API server writes times, which sort as text."""


def worker_of(pod: Json) -> WorkerPod | None:
    """The worker of a pod; None for one that has no address yet, has ended, or is not a worker's first."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    ip, port = status.get("podIP"), str(annotations.get(LINK_PORT, ""))
    if not ip or status.get("phase") in _ENDED or labels.get(_OF_GROUP, "0") != "0":
        return None
    if SERVICE not in labels or not port.isdecimal() or not 0 < int(port) <= 65535:
        return None
    return WorkerPod(
        address=str(LinkAddress(ip, int(port))),
        name=metadata["name"],
        service=f"{metadata.get('namespace', '')}/{labels[SERVICE]}",
        pool=labels.get(POOL, ""),
        ready=_is_ready(status),
        drain_within_s=_drain_within_s(metadata, annotations),
        since=str(metadata.get("creationTimestamp", "")),
    )


def kept(pod: Json) -> Json:
    """A pod with what is read of it here."""
    found: Json = only(pod, _READ)
    return found


def _is_ready(status: Json) -> bool:
    conditions = status.get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _drain_within_s(metadata: Json, annotations: Mapping[str, str]) -> float | None:
    """The seconds within which the worker is to drain: what the annotation says, or what a pod that is being deleted
    has left for its drain. The figure never changes by itself, since every change asks the worker again."""
    asked = _seconds(annotations.get(DRAIN_WITHIN))
    if "deletionTimestamp" not in metadata:
        return asked
    grace_s = max(0.0, float(metadata.get("deletionGracePeriodSeconds") or 0) - _MARGIN_S)
    return grace_s if asked is None else min(asked, grace_s)


def _seconds(text: str | None) -> float | None:
    try:
        found = float(text) if text is not None else None
    except ValueError:
        return None
    return found if found is not None and 0.0 <= found < float("inf") else None
