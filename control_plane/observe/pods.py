"""Pods of workers from their objects."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from control_plane.objects.names import DELETION_COST, POOL, REVISION, ROLE, annotations_of, labels_of
from control_plane.observe.observed import Container, Pod
from tandem.kube.kinds import Json

_UNSCHEDULABLE: Final = "Unschedulable"
_SANDBOX: Final = "PodReadyToStartContainers"
_OVER: Final = ("Succeeded", "Failed")
_STARTS: Final = ("ContainerCreating", "PodInitializing")
"""What containers wait for that are only starting."""
_AT_HAND: Final = ("configMap", "secret", "emptyDir", "projected", "downwardAPI", "hostPath")
"""Volumes that a node mounts at once, where what they are made from is there."""
_BEFORE_S: Final = 60.0
"""A pod stops being ready at most this much before it is known that its container ended."""


@dataclass(frozen=True)
class PodLoad:
    """One worker as routers know it; see `Pod`."""

    running: int = 0
    queued_tokens: int = 0
    kv_used: float = 0.0
    kv_path: str | None = None
    kv_problem: str = ""


_IDLE: Final = PodLoad()


def read_pod(obj: Json, loads: Mapping[str, PodLoad]) -> Pod | None:
    """None for a pod that is no worker's, or that has ended. `loads` are by pod name."""
    labels = labels_of(obj)
    over = (obj.get("status") or {}).get("phase") in _OVER
    if POOL not in labels or REVISION not in labels or ROLE not in labels or over:
        return None
    return pod_of(obj, labels[POOL], labels[REVISION], loads.get(obj["metadata"]["name"], _IDLE))


def read_follower(obj: Json) -> Pod | None:
    """A pod that is a part of a worker and not its first; None for any other, or for one that has ended."""
    labels = labels_of(obj)
    over = (obj.get("status") or {}).get("phase") in _OVER
    if POOL not in labels or REVISION not in labels or ROLE in labels or over:
        return None
    return pod_of(obj, labels[POOL], labels[REVISION])


def pod_of(obj: Json, pool: str, revision: str, load: PodLoad = _IDLE) -> Pod:
    """Any pod, as one of this pool and revision."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    conditions = _by_type(status)
    ready, placed = conditions.get("Ready", {}), conditions.get("PodScheduled", {})
    is_ready = ready.get("status") == "True"
    unplaced = placed.get("status") == "False" and placed.get("reason") == _UNSCHEDULABLE
    begun = conditions.get(_SANDBOX, {})
    unmounted = _unmounted(conditions)
    volumes = ((obj.get("spec") or {}).get("volumes") or ()) if unmounted else ()
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        pool=pool,
        revision=revision,
        created_s=seconds(metadata.get("creationTimestamp")) or 0.0,
        ready=is_ready,
        ready_s=seconds(ready.get("lastTransitionTime")) if is_ready else None,
        leaving="deletionTimestamp" in metadata,
        unplaced_s=seconds(placed.get("lastTransitionTime")) if unplaced else None,
        unplaced_why=str(placed.get("message", "")) if unplaced else "",
        unmounted_s=seconds(begun.get("lastTransitionTime")) if unmounted else None,
        mounts=tuple(sorted(_mounts(volumes))),
        attaches=any(not any(kind in volume for kind in _AT_HAND) for volume in volumes),
        ran=any("running" in each or "terminated" in each for one in _statuses(status) for each in _states(one)),
        failing=() if is_ready else tuple(_failing(status, seconds(ready.get("lastTransitionTime")) or 0.0)),
        cost=annotations_of(obj).get(DELETION_COST, ""),
        running=load.running,
        queued_tokens=load.queued_tokens,
        kv_used=load.kv_used,
        kv_path=load.kv_path,
        kv_problem=load.kv_problem,
    )


def awaits_volumes(status: Json) -> bool:
    """Whether the pod with this status has a node and cannot begin there, as while its volumes are not mounted."""
    return _unmounted(_by_type(status))


def _by_type(status: Json) -> dict[str, Json]:
    return {each["type"]: each for each in status.get("conditions") or ()}


def _unmounted(conditions: Mapping[str, Json]) -> bool:
    begun, placed = conditions.get(_SANDBOX, {}), conditions.get("PodScheduled", {})
    return begun.get("status") == "False" and placed.get("status") == "True"


def _statuses(status: Json) -> list[Json]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _states(container: Json) -> tuple[Json, Json]:
    return container.get("state") or {}, container.get("lastState") or {}


def _failing(status: Json, unready_s: float) -> Iterator[Container]:
    """The containers that wait for more than their start, or that ended and are not ready again. What ended before
    the pod was last ready, until `unready_s`, is no matter now."""
    for each in _statuses(status):
        if each.get("ready"):
            continue
        now, last = _states(each)
        waiting: Json = now.get("waiting") or {}
        reason = str(waiting.get("reason", ""))
        ended: Json = now.get("terminated") or last.get("terminated") or {}
        if (seconds(ended.get("finishedAt")) or unready_s) < unready_s - _BEFORE_S:
            ended = {}
        if (reason and reason not in _STARTS) or ended:
            yield Container(
                name=str(each["name"]),
                image=str(each.get("image", "")),
                waiting="" if reason in _STARTS else reason,
                waiting_why=str(waiting.get("message", "")),
                ended=str(ended.get("reason") or "Ended") if ended else "",
                exit_code=int(ended.get("exitCode", 0)),
                last_words=str(ended.get("message", "")),
            )


def _mounts(volumes: Any) -> Iterator[str]:
    for volume in volumes:
        if name := (volume.get("configMap") or {}).get("name"):
            yield f"ConfigMap {name}"
        if name := (volume.get("secret") or {}).get("secretName"):
            yield f"Secret {name}"


def seconds(timestamp: Any) -> float | None:
    """Seconds since the epoch of an RFC 3339 time."""
    if not isinstance(timestamp, str):
        return None
    try:
        return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
