"""Routers for the operator: where they are, and what they reported, in the form that decisions read."""

from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlsplit

from control_plane.observe.pods import PodLoad
from control_plane.reports.aggregator import ReportAggregate
from control_plane.reports.http_get import Endpoint
from control_plane.reports.poller import Poller
from control_plane.rollout import Health
from tandem.kube.kinds import Json

_NIXL: Final = "nixl: "
"""How workers begin what they say of this transport."""

Key = tuple[str, str]


def endpoints_of_urls(urls: Iterable[str]) -> dict[str, Endpoint]:
    """Routers that were given, by their addresses."""
    return {urlsplit(url).netloc: Endpoint.parse(url) for url in urls}


def endpoints_of_pods(pods: Iterable[Json], port: int, *, secure: bool) -> dict[str, Endpoint]:
    """Routers of pods that have an address, by pod name; those that leave included, since they still count."""
    found = {}
    for pod in pods:
        status = pod.get("status") or {}
        if status.get("phase") == "Running" and status.get("podIP"):
            found[pod["metadata"]["name"]] = Endpoint(status["podIP"], port, secure)
    return found


def serving(pods: Iterable[Json]) -> frozenset[str]:
    """Names of the router pods that take requests."""
    return frozenset(
        pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"] and _is_ready(pod)
    )


def _is_ready(pod: Json) -> bool:
    stated = (pod.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in stated)


class RouterReports:
    """Results of the last round of polls, by service. `serving` names the routers that take requests now."""

    def __init__(self, poller: Poller, serving: Callable[[], Iterable[str]]) -> None:
        self._poller = poller
        self._serving = serving
        self._of: ReportAggregate | None = None
        self._loads: dict[str, dict[str, PodLoad]] = {}
        self._sharing: dict[str, dict[str, frozenset[str]]] = {}

    def health(self, key: Key, revision: str) -> Health:
        """Totals of a revision."""
        counted = self._poller.books.health("/".join(key), revision)
        return Health(counted.requests, counted.errors, counted.slo_misses)

    def loads(self, key: Key) -> dict[str, PodLoad]:
        """Loads of a service's workers, by pod."""
        self._read()
        return self._loads.get("/".join(key), {})

    def routers(self, key: Key) -> dict[str, frozenset[str]]:
        """Routers that take requests, each with the revisions of a service to which it gives new requests."""
        self._read()
        told = self._sharing.get("/".join(key), {})
        return {name: told.get(name, frozenset()) for name in self._serving()}

    def _read(self) -> None:
        """Once per round."""
        if self._of is not self._poller.books:
            self._of = self._poller.books
            self._loads, self._sharing = _by_service(self._of), self._of.sharing()


def _by_service(books: ReportAggregate) -> dict[str, dict[str, PodLoad]]:
    found: dict[str, dict[str, PodLoad]] = {}
    for name, worker in books.workers().items():
        load = worker.load
        if load is not None:
            told = PodLoad(
                load.running + load.waiting,
                load.queued_prompt_tokens,
                load.kv_used,
                worker.kv_path,
                "; ".join(each for each in worker.problems if each.startswith(_NIXL)),
            )
            found.setdefault(worker.service, {})[name] = told
    return found
