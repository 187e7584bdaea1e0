"""What Serve is told next, from what is wanted and what is there."""

from control_plane.objects.names import POOL, REVISION, SERVICE
from tandem.apps.ray.serving import AppState, AppStatus, DeploymentState
from tandem.apps.ray.serving_plan import (
    FAILED_S,
    ORPHANED_S,
    ServingObserved,
    ServingPlan,
    Workload,
    orphans,
    serving_plan,
    workloads_of,
)
from tandem.kube.kinds import Json
from tests.unit.tandem.apps.ray.test_placing import service

OLD, NEW = "chat-0000000000", "chat-1111111111"
FOUND = service({"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"})


def work(app: str, **counts: int) -> tuple[Workload, ...]:
    name, _, revision = app.rpartition("-")
    return tuple(Workload(name, pool, revision, count) for pool, count in counts.items())


def state(status: AppStatus = "running", **running: int) -> AppState:
    return AppState(status, {pool: DeploymentState(running=count) for pool, count in running.items()})


def plan(
    workloads: tuple[Workload, ...],
    running: dict[str, AppState] | None = None,
    *,
    present: frozenset[str] = frozenset(),
    orphaned: dict[str, float] | None = None,
    leaving: frozenset[str] = frozenset(),
) -> ServingPlan:
    services = {app: (FOUND, app.rpartition("-")[2]) for app in (OLD, NEW)}
    return serving_plan(ServingObserved(workloads, services, running or {}, present, orphaned or {}, leaving=leaving))


def test_what_is_wanted_and_not_there_is_deployed_with_its_first_counts() -> None:
    found = plan(work(NEW, p=1, d=2))
    (app,) = found.deploy
    assert (app.name, app.revision) == (NEW, "1111111111")
    assert {each.pool: each.first for each in app.pools} == {"p": 1, "d": 2}
    assert found.table == {NEW: {"p": 1, "d": 2}}


def test_an_application_has_all_pools_though_one_has_no_workload_yet() -> None:
    (app,) = plan(work(NEW, d=1)).deploy
    assert {each.pool: each.first for each in app.pools} == {"p": 0, "d": 1}


def test_what_is_there_is_never_deployed_again() -> None:
    for status in ("deploying", "running", "unhealthy", "failed", "deleting"):
        assert not plan(work(NEW, p=1, d=1), {NEW: state(status, p=0, d=0)}).deploy


def test_what_is_wanted_with_no_workers_is_not_deployed() -> None:
    found = plan(work(NEW, p=0, d=0))
    assert not found.deploy
    assert found.table == {NEW: {"p": 0, "d": 0}}


def test_what_has_no_record_cannot_be_deployed() -> None:
    assert not plan(work("other-2222222222", p=1)).deploy


def test_an_annotation_that_cannot_be_read_holds_up_its_own_application_alone() -> None:
    broken = service({"name": "d", "role": "decode"}, annotations={"ray.tandem.dev/d.cpus": "x"})
    services = {OLD: (broken, "0000000000"), NEW: (FOUND, "1111111111")}
    found = serving_plan(ServingObserved(work(OLD, d=1) + work(NEW, p=1, d=1), services, {}))
    assert [app.name for app in found.deploy] == [NEW]
    assert "ray.tandem.dev/d.cpus" in found.problems[OLD]


def test_an_orphan_loses_its_workers_first_and_is_deleted_then() -> None:
    running = {OLD: state(p=1, d=1), NEW: state(p=1, d=1)}
    found = plan(work(NEW, p=1, d=1), running, present=frozenset({OLD, NEW}))
    assert found.table[OLD] == {"p": 0, "d": 0}
    assert not found.delete
    running[OLD] = state(p=0, d=0)
    assert not plan(work(NEW, p=1, d=1), running, present=frozenset({OLD})).delete, "its workers still report"
    assert plan(work(NEW, p=1, d=1), running).delete == (OLD,)


def test_an_orphan_is_not_waited_for_longer_than_its_time() -> None:
    running = {OLD: state(p=1, d=1)}
    assert not plan((), running, orphaned={OLD: ORPHANED_S - 0.1}).delete
    assert plan((), running, orphaned={OLD: ORPHANED_S}).delete == (OLD,)
    assert not plan((), {OLD: state("deleting", p=1)}, orphaned={OLD: ORPHANED_S}).delete, "once is enough"


def test_an_application_that_serve_gave_up_is_deleted_to_be_made_anew() -> None:
    services = {NEW: (FOUND, "1111111111")}

    def given_up(since_s: float, **running: int) -> tuple[str, ...]:
        there = {NEW: state("failed", **running)}
        return serving_plan(ServingObserved(work(NEW, p=1, d=1), services, there, failed={NEW: since_s})).delete

    assert given_up(FAILED_S, p=1, d=0) == (NEW,)
    assert given_up(FAILED_S) == (NEW,)
    assert not given_up(FAILED_S - 0.1, p=1, d=0)
    assert not given_up(FAILED_S, p=1, d=1), "it can be used"
    there = {NEW: state("failed")}
    kept = ServingObserved(work(NEW, p=1, d=1), {}, there, failed={NEW: FAILED_S})
    assert not serving_plan(kept).delete, "without its record it could not be made again"
    asleep = ServingObserved(work(NEW, p=0, d=0), services, there, failed={NEW: FAILED_S})
    assert not serving_plan(asleep).delete


def test_a_service_that_leaves_has_no_workers() -> None:
    found = plan(work(OLD, p=1, d=2), {OLD: state(p=1, d=2)}, leaving=frozenset({"chat"}))
    assert found.table == {OLD: {"p": 0, "d": 0}}
    assert not found.delete
    assert not plan(work(OLD, p=1, d=2), leaving=frozenset({"chat"})).deploy


def test_orphans_are_what_runs_and_nothing_wants() -> None:
    seen = ServingObserved(work(NEW, p=1), {}, {OLD: state(), NEW: state()})
    assert orphans(seen) == {OLD}


def test_workloads_are_read_from_objects_that_stay() -> None:
    labels = {SERVICE: "chat", POOL: "d", REVISION: "1111111111"}

    def obj(replicas: int | None, **metadata: object) -> Json:
        return {
            "metadata": {"labels": labels, **metadata},
            "spec": {} if replicas is None else {"replicas": replicas},
        }

    objects = [obj(3), obj(None), obj(5, deletionTimestamp="now"), obj(7, labels={SERVICE: "chat"})]
    found = workloads_of(objects)
    assert [each.replicas for each in found] == [3, 1]
    assert found[0].app == NEW
