"""Whose pods lack room, and whether a pod of the other revision that gives way would make it."""

from typing import Any

import pytest

from control_plane.objects.revisions import PoolRecord, RevisionRecord
from control_plane.observe.observed import DesiredSpec, Observed, Pod, Workers
from control_plane.reconcile.lacking_room import no_room
from control_plane.rollout import NoRoom
from tandem.kube.kinds import Json

NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 3 No victims."


def record(name: str, nodes: int = 1, *, init: Json | None = None, spec: Json | None = None, **limits: str) -> Any:
    containers = [{"name": "worker", "resources": {"limits": {"nvidia.com/gpu": "4", **limits}}}]
    template = {"spec": {"containers": containers, "initContainers": [init] if init else [], **(spec or {})}}
    return RevisionRecord(name, 1, {"decode": PoolRecord("decode", "decode", nodes, template, {})}, {})


def pod(name: str, why: str, since: float = 100.0, revision: str = "new", **fields: Any) -> Pod:
    return Pod(name, name, "decode", revision, 0.0, unplaced_s=since, unplaced_why=why, **fields)


def found(*pods: Pod, new: Any = None, old: Any = None, followers: tuple[Pod, ...] = ()) -> dict[str, NoRoom]:
    workers = tuple(Workers("decode", name, 2, {}) for name in ("new", "old"))
    observed = Observed({}, DesiredSpec(None), workers=workers, pods=pods, followers=followers)
    records = {"new": new or record("new"), "old": old or record("old")}
    return no_room(observed, records, "new", "old")


def test_the_pool_has_waited_since_its_first_pod_has() -> None:
    assert found(pod("a", NO_GPU, 130.0), pod("b", NO_GPU, 110.0)) == {"decode": NoRoom(110.0)}


def test_a_follower_without_a_node_counts_as_its_worker() -> None:
    assert found(followers=(pod("a-1", NO_GPU),)) == {"decode": NoRoom(100.0)}


@pytest.mark.parametrize(
    "why",
    [
        "0/3 nodes are available: 3 Too many pods.",
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {a: b}.",
        "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.",
        "0/1 nodes are available: 1 cannot allocate all claims.",
    ],
)
def test_what_is_used_up_counts(why: str) -> None:
    assert found(pod("a", why)) == {"decode": NoRoom(100.0)}


@pytest.mark.parametrize(
    "why",
    [
        "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
        "0/3 nodes are available: 3 node(s) had untolerated taint {nvidia.com/gpu: present}.",
        "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        "0/1 nodes are available: 1 node(s) had a taint. preemption: 1 Insufficient cpu.",
        "",
    ],
)
def test_nodes_that_would_never_take_the_pod_count_for_nothing(why: str) -> None:
    assert found(pod("a", why)) == {}


def test_pods_that_leave_or_are_of_another_revision_count_for_nothing() -> None:
    assert found(pod("a", NO_GPU, leaving=True), pod("b", NO_GPU, revision="old")) == {}


@pytest.mark.parametrize(
    ("new", "old", "said"),
    [
        ({"nvidia.com/gpu": "8"}, {}, "a new worker needs 8 nvidia.com/gpu, an old one frees 4"),
        ({"nvidia.com/gpu": "2"}, {}, ""),
        ({"nodes": 2}, {}, "a new worker spans 2 nodes, an old one 1"),
        ({"spec": {"nodeSelector": {"gpu": "h200"}}}, {}, "new workers ask for other nodes than old ones"),
        (
            {"spec": {"affinity": {"nodeAffinity": {"a": "b"}}}},
            {"spec": {"affinity": {"podAntiAffinity": {"c": "d"}}}},
            "new workers ask for other nodes than old ones",
        ),
        ({"spec": {"affinity": {"podAntiAffinity": {"c": "e"}}}}, {}, ""),
        ({"memory": "64Gi"}, {"memory": "32Gi"}, ""),
    ],
)
def test_a_pod_that_would_give_way_in_vain_is_told(new: dict[str, Any], old: dict[str, Any], said: str) -> None:
    assert found(pod("a", NO_GPU), new=record("new", **new), old=record("old", **old))["decode"].in_vain == said


@pytest.mark.parametrize(
    ("new", "old", "said"),
    [
        ({"memory": "64Gi"}, {"memory": "65536Mi"}, ""),
        (
            {"memory": "65Gi"},
            {"memory": "65536Mi"},
            "a new worker needs 65Gi memory, an old one frees 64Gi",
        ),
        ({"memory": "65Gi"}, {}, "a new worker needs 65Gi memory, an old one frees 0"),
        ({}, {"memory": "1Gi"}, ""),
    ],
)
def test_memory_is_compared_in_bytes(new: dict[str, str], old: dict[str, str], said: str) -> None:
    lacks = pod("a", "0/1 nodes are available: 1 Insufficient memory.")
    assert found(lacks, new=record("new", **new), old=record("old", **old))["decode"].in_vain == said


def test_processors_are_compared_in_thousandths_and_with_the_largest_init_container() -> None:
    init = {"name": "fetch", "resources": {"requests": {"cpu": "2500m"}}}
    lacks = pod("a", "0/1 nodes are available: 1 Insufficient cpu.")
    told = found(lacks, new=record("new", init=init, cpu="500m"), old=record("old", cpu="2"))["decode"].in_vain
    assert told == "a new worker needs 2.5 cpu, an old one frees 2"


def test_a_revision_without_a_record_is_given_the_benefit_of_the_doubt() -> None:
    workers = (Workers("decode", "new", 2, {}),)
    observed = Observed({}, DesiredSpec(None), workers=workers, pods=(pod("a", NO_GPU),))
    assert no_room(observed, {}, "new", "old") == {"decode": NoRoom(100.0)}
