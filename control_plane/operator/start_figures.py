"""How long the stages of a worker's start took, from its pod: of each pool the worker that was ready last. Pure."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from control_plane.objects.names import POOL, ROLE, SERVICE, labels_of
from control_plane.objects.pods import CONTAINER, FETCH
from control_plane.observe.pods import seconds
from control_plane.operator.condition_figures import Figures
from tandem.kube.kinds import Json


def start_figures(pods: Iterable[Json], services: Collection[str]) -> Figures:
    """Seconds by service (`namespace/name`, only those in `services`), pool and stage."""
    newest: dict[tuple[str, str], tuple[str, Json]] = {}
    for obj in pods:
        labels = labels_of(obj)
        service = f"{obj['metadata'].get('namespace', '')}/{labels.get(SERVICE, '')}"
        ready = _conditions(obj).get("Ready", {})
        if ROLE in labels and POOL in labels and service in services and ready.get("status") == "True":
            since = str(ready.get("lastTransitionTime", ""))
            # Times of one form, so they sort as they are.
            if since > newest.get((service, labels[POOL]), ("",))[0]:
                newest[service, labels[POOL]] = since, obj
    return {
        (service, pool, stage): took for (service, pool), (_, obj) in newest.items() for stage, took in _stages(obj)
    }


def _stages(obj: Json) -> Iterator[tuple[str, float]]:
    conditions, status = _conditions(obj), obj["status"]
    created, placed = obj["metadata"].get("creationTimestamp"), conditions.get("PodScheduled", {})
    fetched = _state(status.get("initContainerStatuses"), FETCH).get("terminated") or {}
    running = _state(status.get("containerStatuses"), CONTAINER).get("running") or {}
    for stage, begin, end in (
        ("schedule", created, placed.get("lastTransitionTime")),
        ("fetch", fetched.get("startedAt"), fetched.get("finishedAt")),
        ("start", running.get("startedAt"), conditions["Ready"].get("lastTransitionTime")),
    ):
        began, ended = seconds(begin), seconds(end)
        if began is not None and ended is not None:
            yield stage, max(0.0, ended - began)


def _conditions(obj: Json) -> dict[str, Any]:
    return {str(each.get("type")): each for each in (obj.get("status") or {}).get("conditions") or ()}


def _state(statuses: Any, name: str) -> Json:
    return next((each.get("state") or {} for each in statuses or () if each.get("name") == name), {})
