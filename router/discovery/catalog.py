"""The services and workers of a cluster as they are now, kept up by one object at a time.

Of a change only what it touches is read and told: of 10,000 pods and 1,000 services one is not a reading of all. What
comes out is what a reading of all objects gives. Services are bound to each other by the names that they want, so
that a change concerns those alone that share a name with it, or with one that does.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from router.discovery.model_service import DiscoveredService, by_model, service_of
from router.discovery.pods import WorkerPod, worker_of
from tandem.core.errors import TandemError
from tandem.kube.kinds import Json
from tandem.kube.store import Key
from tandem.spec.tenants import EVERYBODY, Tenants

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class CatalogChanges:
    """What is another one since the last changes were taken: services by the name of their model, workers by address.
    None stands for what is gone. `problems` are sentences that were not there before."""

    services: Mapping[str, DiscoveredService | None]
    members: Mapping[str, WorkerPod | None]
    problems: tuple[str, ...] = ()


class Catalog:
    """`named` are the services by the model's name that they hold, `members` the workers of these by address. What
    `tenants` refuses is no service."""

    def __init__(self, tenants: Tenants = EVERYBODY) -> None:
        self._tenants = tenants
        self.named: dict[str, DiscoveredService] = {}
        self.members: dict[str, WorkerPod] = {}
        self._found: dict[str, DiscoveredService] = {}
        """Every service as last understood: one written by a newer version stays as it was."""
        self._wanting: dict[str, dict[str, None]] = {}
        """By each name of a model, the services that want it."""
        self._pods: dict[Key, WorkerPod] = {}
        self._of_service: dict[str, dict[Key, None]] = {}
        self._at: dict[str, dict[Key, None]] = {}
        self._said: dict[str, tuple[str, ...]] = {}
        self._unread: dict[str, str] = {}
        self._touched: set[str] = set()
        """Names of models to settle anew."""
        self._moved: set[str] = set()
        """Addresses to settle anew."""
        self._news: dict[str, None] = {}

    # -- Objects --------------------------------------------------------------------------------------------------

    def take_pod(self, key: Key, pod: Json | None) -> bool:
        """Take over a pod as it is now, or (None) that it is gone. Whether that is of interest."""
        old, new = self._pods.get(key), None if pod is None else worker_of(pod)
        if old == new:
            return False
        if old is not None:
            del self._pods[key]
            _leave(self._of_service, old.service, key)
            _leave(self._at, old.address, key)
            self._moved.add(old.address)
        if new is not None:
            self._pods[key] = new
            self._of_service.setdefault(new.service, {})[key] = None
            self._at.setdefault(new.address, {})[key] = None
            self._moved.add(new.address)
        return True

    def take_service(self, key: Key, obj: Json | None) -> bool:
        """Take over a ModelService as it is now, or (None) that it is gone. Whether that is of interest."""
        name = "/".join(key)
        old = self._found.get(name)
        problem = ""
        try:
            refused = None if obj is None else self._tenants.refused(obj)
            new = None if obj is None or refused is not None else service_of(obj)
            problem = "" if refused is None else f"{name} is not served: {refused}"
        except TandemError as error:
            new, problem = old, error.message
        if problem and self._unread.get(name) != problem:
            self._news[problem] = None
        _put(self._unread, name, problem or None)
        if old == new:
            return bool(problem)
        if old is not None:
            del self._found[name]
            for each in dict.fromkeys(_names(old)):
                _leave(self._wanting, each, name)
        if new is not None:
            self._found[name] = new
            for each in _names(new):
                self._wanting.setdefault(each, {})[name] = None
        else:
            self._said.pop(name, None)
        self._touched.update(each for one in (old, new) if one is not None for each in _names(one))
        return True

    # -- What comes of them ---------------------------------------------------------------------------------------

    def take_changes(self) -> CatalogChanges:
        """What has changed since the last call."""
        services = self._settle_names() if self._touched else {}
        members = {}
        for address in sorted(self._moved):
            new = self._worker_at(address)
            if self.members.get(address) == new:
                continue
            members[address] = new
            _put(self.members, address, new)
        self._moved.clear()
        problems, self._news = tuple(self._news), {}
        return CatalogChanges(services, members, problems)

    def _settle_names(self) -> dict[str, DiscoveredService | None]:
        names, group = self._bound(self._touched)
        self._touched = set()
        named, problems = by_model(group.values())
        said: dict[str, list[str]] = {}
        for problem in problems:
            said.setdefault(problem.service, []).append(problem.sentence)
            if problem.sentence not in self._said.get(problem.service, ()):
                self._news[problem.sentence] = None
        changed: dict[str, DiscoveredService | None] = {}
        for model in sorted(names):
            old, new = self.named.get(model), named.get(model)
            if old == new:
                continue
            changed[model] = new
            _put(self.named, model, new)
            for each in {one.facts.name for one in (old, new) if one is not None}:
                self._moved.update(self._pods[key].address for key in self._of_service.get(each, ()))
        for service in group:
            _put(self._said, service, tuple(said[service]) if service in said else None)
        return changed

    def _bound(self, touched: Iterable[str]) -> tuple[set[str], dict[str, DiscoveredService]]:
        """All names, and all services, that are bound to these names."""
        names, group, open_ = set[str](), dict[str, DiscoveredService](), list(touched)
        while open_:
            name = open_.pop()
            if name in names:
                continue
            names.add(name)
            for service in self._wanting.get(name, ()):
                if service not in group:
                    group[service] = self._found[service]
                    open_.extend(_names(self._found[service]))
        return names, group

    def _worker_at(self, address: str) -> WorkerPod | None:
        """The worker at an address. An address that a pod had may be another's by now: the newest pod's it is."""
        there = [key for key in self._at.get(address, ()) if self._is_served(self._pods[key].service)]
        return self._pods[max(there, key=lambda key: (self._pods[key].since, key))] if there else None

    def _is_served(self, service: str) -> bool:
        found = self._found.get(service)
        holder = None if found is None else self.named.get(found.facts.model)
        return holder is not None and holder.facts.name == service


def _names(service: DiscoveredService) -> tuple[str, ...]:
    return service.facts.model, *service.facts.aliases


def _leave(index: dict[str, dict[K, None]], at: str, key: K) -> None:
    index[at].pop(key, None)
    if not index[at]:
        del index[at]


def _put(there: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        there.pop(key, None)
    else:
        there[key] = value
