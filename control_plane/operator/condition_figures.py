"""Conditions of services and pools as figures that alerts are made from. Pure.

Whether it is ready and available is told of every service. Everything else is told only while it holds, so that a
healthy fleet has two figures for each service.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from control_plane.objects.names import POOL, SERVICE, labels_of
from tandem.kube.kinds import Json

SERVICES_MAX: Final = 5_000
"""Services whose figures are told, by their names; what Prometheus takes from one process has to have a bound."""
_ROLLED_BACK: Final = ("RollingBack", "RolledBack", "RolloutFailed")
_NOTICES: Final = ("KvOverTcp", "NetworkNotNamed")
_OF_POOLS: Final = ("DoesNotFit", "InsufficientCapacity", "WorkersFailing")

Figures = dict[tuple[str, ...], float]
"""By service (`namespace/name`), pool (empty for the service as a whole) and condition."""


def condition_figures(services: Iterable[Json], pools: Iterable[Json]) -> Figures:
    """What the statuses of ModelServices and EnginePools say."""
    told = {_name(obj, obj["metadata"]["name"]): obj for obj in services}
    kept = sorted(told)[:SERVICES_MAX]
    found: Figures = {(name, "", type_): value for name in kept for type_, value in _of_service(told[name])}
    for obj in pools:
        name = _name(obj, labels_of(obj).get(SERVICE, ""))
        if name in told and (name, "", "Ready") in found:
            for type_, each in _conditions(obj):
                if type_ in _OF_POOLS and each.get("status") == "True":
                    found[name, labels_of(obj).get(POOL, ""), type_] = 1.0
    return found


def _of_service(obj: Json) -> Iterator[tuple[str, float]]:
    conditions = dict(_conditions(obj))
    ready, stalled = conditions.get("Ready", {}), conditions.get("Stalled", {})
    yield "Ready", float(ready.get("status") == "True")
    if (available := conditions.get("Available")) is not None:
        # A service that sleeps is there for the first request.
        yield "Available", float(available.get("status") == "True" or available.get("reason") == "ScaledToZero")
    yield from ((each, 1.0) for each in _NOTICES if conditions.get(each, {}).get("status") == "True")
    if stalled.get("status") == "True":
        yield "Stalled", 1.0
        if stalled.get("reason") in _ROLLED_BACK:
            yield "RolledBack", 1.0
        if stalled.get("reason") == "NameConflict":
            yield "NameConflict", 1.0


def _conditions(obj: Json) -> Iterator[tuple[str, Any]]:
    for each in (obj.get("status") or {}).get("conditions") or ():
        yield str(each.get("type")), each


def _name(obj: Json, service: str) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{service}"
