"""Pods of workers from their objects."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from control_plane.objects.names import DELETION_COST, POOL, REVISION, ROLE, annotations_of, labels_of
from control_plane.observe.observed import Pod
from tandem.kube.kinds import Json

_UNSCHEDULABLE: Final = "Unschedulable"
_OVER: Final = ("Succeeded", "Failed")


@dataclass(frozen=True)
class PodLoad:
    """Load of one worker as routers know it; see `Pod`."""

    running: int = 0
    queued_tokens: int = 0
    kv_used: float = 0.0


_IDLE: Final = PodLoad()


def read_pod(obj: Json, loads: Mapping[str, PodLoad]) -> Pod | None:
    """None for a pod that is no worker's, or that has ended. `loads` are by pod name."""
    labels, metadata, status = labels_of(obj), obj["metadata"], obj.get("status") or {}
    if POOL not in labels or REVISION not in labels or ROLE not in labels or status.get("phase") in _OVER:
        return None
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    ready, placed = conditions.get("Ready", {}), conditions.get("PodScheduled", {})
    unplaced = placed.get("status") == "False" and placed.get("reason") == _UNSCHEDULABLE
    load = loads.get(metadata["name"], _IDLE)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        pool=labels[POOL],
        revision=labels[REVISION],
        created_s=seconds(metadata.get("creationTimestamp")) or 0.0,
        ready=ready.get("status") == "True",
        ready_s=seconds(ready.get("lastTransitionTime")) if ready.get("status") == "True" else None,
        leaving="deletionTimestamp" in metadata,
        unplaced_s=seconds(placed.get("lastTransitionTime")) if unplaced else None,
        unplaced_why=str(placed.get("message", "")) if unplaced else "",
        cost=annotations_of(obj).get(DELETION_COST, ""),
        running=load.running,
        queued_tokens=load.queued_tokens,
        kv_used=load.kv_used,
    )


def seconds(timestamp: Any) -> float | None:
    """Seconds since the epoch of an RFC 3339 time."""
    if not isinstance(timestamp, str):
        return None
    try:
        return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
