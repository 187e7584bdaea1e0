"""What the operator's mirrors keep of each kind: what decisions read, and what tells that an object is as applied.

Of objects that the operator applies the specification stays whole, since it is compared with what is to be applied.
A pod is made by others from a template and takes the most memory: of it only what is read stays.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from control_plane.objects.names import DELETION_COST
from control_plane.observe.pods import awaits_volumes
from tandem.kube.kinds import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    ENGINE_POOL,
    JOB,
    LEADER_WORKER_SET,
    MODEL_SERVICE,
    POD,
    POD_DISRUPTION_BUDGET,
    SCALED_OBJECT,
    SERVICE,
    TRIGGER_AUTHENTICATION,
    Json,
    Kind,
)
from tandem.kube.projection import ALL, PRESENT, Fields, Projection, only, with_status, without_bookkeeping

_ENDED: Final[Fields] = {"exitCode": ALL, "reason": ALL, "message": ALL, "finishedAt": ALL}
_BEFORE: Final[Fields] = {"waiting": {"reason": ALL, "message": ALL}, "running": PRESENT, "terminated": _ENDED}
_STATE: Final[Fields] = {
    **_BEFORE,
    "running": {"startedAt": ALL},
    "terminated": {**_ENDED, "startedAt": ALL},
}
_CONTAINERS: Final[Fields] = {"name": ALL, "image": ALL, "ready": ALL, "state": _STATE, "lastState": _BEFORE}
_CONDITIONS: Final[Fields] = {"type": ALL, "status": ALL, "reason": ALL, "message": ALL, "lastTransitionTime": ALL}
_POD: Final[Fields] = {
    "apiVersion": ALL,
    "kind": ALL,
    "metadata": {
        "name": ALL,
        "namespace": ALL,
        "uid": ALL,
        "resourceVersion": ALL,
        "creationTimestamp": ALL,
        "deletionTimestamp": ALL,
        "labels": ALL,
        "annotations": {DELETION_COST: ALL},
    },
    "status": {
        "phase": ALL,
        "podIP": ALL,
        "conditions": _CONDITIONS,
        "initContainerStatuses": _CONTAINERS,
        "containerStatuses": _CONTAINERS,
    },
}
_VOLUMES: Final[Fields] = {
    "volumes": {
        "configMap": {"name": ALL},
        "secret": {"secretName": ALL},
        "emptyDir": PRESENT,
        "projected": PRESENT,
        "downwardAPI": PRESENT,
        "hostPath": PRESENT,
    }
}
_OF_JOB: Final[Fields] = {
    "conditions": _CONDITIONS,
    "startTime": ALL,
    "active": ALL,
    "ready": ALL,
    "succeeded": ALL,
    "failed": ALL,
    "terminating": ALL,
    "uncountedTerminatedPods": ALL,
}


def pod(obj: Json) -> Json:
    """A pod with what is read of it. Its volumes are read only while it waits for them."""
    found: Json = only(obj, _POD)
    if awaits_volumes(obj.get("status") or {}):
        found["spec"] = only(obj.get("spec"), _VOLUMES)
    return found


_conditions: Final = with_status({"conditions": _CONDITIONS})
_no_status: Final = with_status(PRESENT)

KEPT: Final[Mapping[Kind, Projection]] = MappingProxyType(
    {
        MODEL_SERVICE: without_bookkeeping,
        ENGINE_POOL: without_bookkeeping,
        POD: pod,
        DEPLOYMENT: _conditions,
        LEADER_WORKER_SET: _conditions,
        SCALED_OBJECT: _conditions,
        JOB: with_status(_OF_JOB),
        SERVICE: _no_status,
        POD_DISRUPTION_BUDGET: _no_status,
        TRIGGER_AUTHENTICATION: _no_status,
        CONFIG_MAP: without_bookkeeping,
        CONTROLLER_REVISION: without_bookkeeping,
    }
)
"""What is kept of each kind that the operator mirrors."""
