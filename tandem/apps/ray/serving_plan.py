"""What Serve is to be told, from what the operator wants: the table of workers, applications to make and to delete.
Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from control_plane.objects.names import POOL, REVISION, SERVICE, labels_of
from tandem.apps.ray.placing import revision_app
from tandem.apps.ray.serving import AppState, RevisionApp, app_name
from tandem.core.errors import TandemError
from tandem.kube.kinds import Json
from tandem.spec.service import ModelService

ORPHANED_S: Final = 30.0
"""Seconds that an application which nothing wants any more gets to lose its workers one by one. Afterwards it is
deleted with them, and they drain then."""

FAILED_S: Final = 60.0
"""Seconds after which an application that Serve has given up deploying is deleted, to be deployed anew."""


@dataclass(frozen=True)
class Workload:
    """A Deployment or LeaderWorkerSet: the workers that one pool is to have in one revision."""

    service: str
    pool: str
    revision: str
    replicas: int

    @property
    def app(self) -> str:
        return app_name(self.service, self.revision)


@dataclass(frozen=True)
class ServingObserved:
    """`services` has the specification of each revision as it was recorded, by application. `present` are the
    applications of which workers report. `orphaned` are applications that nothing wants and `failed` those that Serve
    has given up, with the seconds since when. `leaving` are services that are to have no workers any more."""

    workloads: tuple[Workload, ...]
    services: Mapping[str, tuple[ModelService, str]]
    running: Mapping[str, AppState]
    present: frozenset[str] = frozenset()
    orphaned: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, float] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ServingPlan:
    """`table` is all of it. `problems` says, by application, why it cannot be made."""

    table: Mapping[str, Mapping[str, int]]
    deploy: tuple[RevisionApp, ...] = ()
    delete: tuple[str, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)


def workloads_of(objects: Iterable[Json]) -> tuple[Workload, ...]:
    """The workloads among Deployments and LeaderWorkerSets."""
    found = []
    for obj in objects:
        labels = labels_of(obj)
        if {SERVICE, POOL, REVISION} <= labels.keys() and "deletionTimestamp" not in obj["metadata"]:
            replicas = int(obj["spec"].get("replicas", 1))
            found.append(Workload(labels[SERVICE], labels[POOL], labels[REVISION], replicas))
    return tuple(found)


def serving_plan(seen: ServingObserved) -> ServingPlan:
    """The next thing to tell Serve. Counts are in the table before their application is made, and an application is
    made only once workers of it are wanted, and only where none of its name is there, one that ends included."""
    table = dict(_table(seen))
    deploy: list[RevisionApp] = []
    problems: dict[str, str] = {}
    for name, counts in table.items():
        if name in seen.running or name not in seen.services or not any(counts.values()):
            continue
        service, revision = seen.services[name]
        try:
            deploy.append(revision_app(service, revision, counts))
        except TandemError as error:
            problems[name] = error.message
    return ServingPlan(table, tuple(deploy), (*_over(seen), *_given_up(seen, table)), problems)


def orphans(seen: ServingObserved) -> frozenset[str]:
    """Applications that run and of which nothing is wanted any more."""
    wanted = {each.app for each in seen.workloads}
    return frozenset(name for name in seen.running if name not in wanted)


def _table(seen: ServingObserved) -> Iterator[tuple[str, dict[str, int]]]:
    by_app: dict[str, dict[str, int]] = {}
    for each in seen.workloads:
        counts = by_app.setdefault(each.app, _nothing(seen, each.app))
        counts[each.pool] = 0 if each.service in seen.leaving else each.replicas
    yield from by_app.items()
    for name in sorted(orphans(seen)):
        yield name, dict.fromkeys(seen.running[name].deployments, 0)


def _nothing(seen: ServingObserved, app: str) -> dict[str, int]:
    """No worker of any pool of the application."""
    found = seen.services.get(app)
    return {} if found is None else {pool.name: 0 for pool in found[0].spec.pools}


def _over(seen: ServingObserved) -> Iterator[str]:
    """Orphans without workers, or that have had long enough."""
    for name in sorted(orphans(seen)):
        state = seen.running[name]
        empty = name not in seen.present and not any(each.there for each in state.deployments.values())
        if state.status != "deleting" and (empty or seen.orphaned.get(name, 0.0) >= ORPHANED_S):
            yield name


def _given_up(seen: ServingObserved, table: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Applications that Serve starts no more, and that no request can use: a pool has no worker. Only a new
    application is tried again."""
    for name, since_s in sorted(seen.failed.items()):
        state, counts = seen.running[name], table.get(name, {})
        lacking = [pool for pool, count in counts.items() if count and not _running(state, pool)]
        if lacking and name in seen.services and since_s >= FAILED_S:
            yield name


def _running(state: AppState, pool: str) -> int:
    found = state.deployments.get(pool)
    return 0 if found is None else found.running
