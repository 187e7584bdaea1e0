"""Finds ModelServices that no operator looks at: accepted by the API server, and served by nobody."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from control_plane.observe.pods import seconds
from tandem.apps.cli.doctor.findings import Finding, ok, problem, unchecked
from tandem.core.errors import TandemError
from tandem.kube.cluster import Cluster, Selector
from tandem.kube.kinds import DEPLOYMENT, MODEL_SERVICE, Json, Kind

CHECK: Final = "services"
_OPERATORS: Final = "app.kubernetes.io/name=tandem-operator"
_FLAG: Final = "--namespace="
_PAGE: Final = 500
_SOON_S: Final = 60.0
"""Seconds that an operator may take until a new generation of a service has a status."""
_NAMED_MAX: Final = 5
_LIST_S: Final = 120.0


def unwatched(services: Iterable[Json], operators: Sequence[Json] | None, now: float) -> Finding:
    """`operators` are their Deployments, None where they may not be listed; `now` is wall-clock seconds. Pure."""
    named = sorted(services, key=_name)
    watched = None if operators is None else _watched(operators)
    ignored = [each for each in named if not _seen(each, now)]
    outside = [each for each in named if watched is not None and each["metadata"]["namespace"] not in watched]
    if watched == {""}:
        outside = []
    if operators is not None and not operators and named:
        said = f"no operator is installed, and there are {len(named)} ModelServices: {_listed(named)}"
        return problem(CHECK, "", said, "install the chart `tandem`")
    if outside:
        said = f"no operator looks after the namespace of {_listed(outside)}; watched are {_namespaces(watched)}"
        advice = "add it to `namespaces` in the chart's values, or make the service in one of these"
        return problem(CHECK, "", said, advice)
    if ignored:
        said = f"no operator has taken up the specification of {_listed(ignored)} within {_SOON_S:.0f} s"
        advice = "see `namespaces` in the chart's values and the operator's log"
        return problem(CHECK, "", said, advice)
    return ok(CHECK, "", f"an operator looks after each of {len(named)} ModelServices")


async def look_for_unwatched(cluster: Cluster, now: float) -> Finding:
    """Lists services and operators of the whole cluster, within 2 minutes."""
    try:
        async with asyncio.timeout(_LIST_S):
            services = await _all(cluster, MODEL_SERVICE)
            try:
                operators = await _all(cluster, DEPLOYMENT, _OPERATORS)
            except TandemError:
                operators = None
    except TimeoutError:
        return unchecked(CHECK, "", f"the API server did not answer within {_LIST_S:.0f} s")
    except TandemError as error:
        return unchecked(CHECK, "", f"ModelServices cannot be listed: {error.message}", "use rights to list them all")
    return unwatched(services, operators, now)


async def _all(cluster: Cluster, kind: Kind, labels: str = "") -> list[Json]:
    found, token = list[Json](), None
    while True:
        page = await cluster.list_page(Selector(kind, None, labels), _PAGE, token)
        found += page.items
        token = page.token
        if token is None:
            return found


def _seen(service: Json, now: float) -> bool:
    """Whether an operator has written a status for what the service says now, or may still do so."""
    metadata, status = service["metadata"], service.get("status") or {}
    if "deletionTimestamp" in metadata or status.get("observedGeneration", 0) >= metadata.get("generation", 1):
        return True
    since = [seconds(metadata.get("creationTimestamp"))]
    since += [
        seconds(each.get("time")) for each in metadata.get("managedFields") or () if not each.get("subresource")
    ]
    return now - max((each for each in since if each is not None), default=0.0) < _SOON_S


def _watched(operators: Iterable[Json]) -> set[str]:
    """Namespaces that operators look after; only the empty one where that is all of them."""
    found = set[str]()
    for arguments in _arguments(operators):
        given = [each.removeprefix(_FLAG) for each in arguments if each.startswith(_FLAG)]
        if not given:
            return {""}
        found |= {name for each in given for name in each.split(",")}
    return found


def _arguments(operators: Iterable[Json]) -> Iterator[list[str]]:
    for each in operators:
        for container in each["spec"]["template"]["spec"]["containers"]:
            yield [*container.get("command", ()), *container.get("args", ())]


def _namespaces(watched: set[str] | None) -> str:
    return ", ".join(sorted(watched or ()))


def _name(service: Json) -> str:
    return f"{service['metadata']['namespace']}/{service['metadata']['name']}"


def _listed(services: Sequence[Json]) -> str:
    more = f" and {len(services) - _NAMED_MAX} more" if len(services) > _NAMED_MAX else ""
    return ", ".join(_name(each) for each in services[:_NAMED_MAX]) + more
