"""What the operator's mirrors keep: everything that is read, and little besides."""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.pod_objects import INSTALLATION, running, settled
from control_plane.objects.names import GATE, POOL, REVISION, ROLE, SERVICE
from control_plane.observe.desired_spec import read_desired_spec
from control_plane.observe.gates import read_gate
from control_plane.observe.kept import KEPT
from control_plane.observe.observed import Observed
from control_plane.observe.pods import pod_of, read_follower, read_pod
from control_plane.observe.reading import CHILDREN, OPTIONAL, ReportedInputs, observe
from control_plane.operator.apply_diff import fingerprint, holds, signed
from control_plane.operator.condition_figures import condition_figures
from control_plane.operator.routers import endpoints_of_pods, serving
from control_plane.operator.start_figures import start_figures
from control_plane.operator.status_throttle import interim
from control_plane.reconcile import reconcile
from tandem.kube.kinds import (
    DEPLOYMENT,
    ENGINE_POOL,
    JOB,
    MODEL_SERVICE,
    POD,
    Json,
    kind_of,
)
from tandem.kube.store import Store
from tandem.kube.times import timestamp

NOW = 1_800_000_000.0
KEPT_MAX = 6_500
"""Bytes of Python objects that a mirror keeps of a running pod, which takes 60,000 and more when it comes."""

times = st.floats(NOW - 9_000.0, NOW).map(timestamp)
words = st.sampled_from(["", "ErrImagePull", "ContainerCreating", "PodInitializing", "CrashLoopBackOff", "OOMKilled"])
states = st.fixed_dictionaries(
    {},
    optional={
        "waiting": st.fixed_dictionaries({"reason": words}, optional={"message": st.text(max_size=9)}),
        "running": st.fixed_dictionaries({"startedAt": times}),
        "terminated": st.fixed_dictionaries(
            {"exitCode": st.integers(0, 255), "startedAt": times},
            optional={"reason": words, "message": st.text(max_size=9), "finishedAt": times, "signal": st.just(9)},
        ),
    },
)
containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["worker", "fetch"]), "image": st.just("vllm:1"), "imageID": st.just("sha256:1")},
        optional={"ready": st.booleans(), "state": states, "lastState": states, "restartCount": st.integers(0, 9)},
    ),
    max_size=2,
)
conditions = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                ["Ready", "PodScheduled", "PodReadyToStartContainers", "Initialized", "Complete", "Failed"]
            ),
            "status": st.sampled_from(["True", "False"]),
        },
        optional={
            "reason": st.sampled_from(["Unschedulable", "PodFailurePolicy", "x"]),
            "message": st.text(max_size=9),
            "lastTransitionTime": times,
            "lastProbeTime": st.none(),
        },
    ),
    max_size=6,
)
mounting = st.just(
    [
        {"type": "PodScheduled", "status": "True"},
        {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": timestamp(NOW - 30.0)},
    ]
)
volumes = st.lists(
    st.sampled_from(
        [
            {"name": "kv", "secret": {"secretName": "kv", "defaultMode": 288}},
            {"name": "settings", "configMap": {"name": "chat", "defaultMode": 420}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "models", "persistentVolumeClaim": {"claimName": "models"}},
            {"name": "host", "hostPath": {"path": "/models"}},
            {"name": "image", "image": {"reference": "models:1"}},
            {"name": "all", "projected": {"sources": []}},
        ]
    ),
    max_size=4,
)
labels = st.fixed_dictionaries(
    {SERVICE: st.just("chat")},
    optional={POOL: st.just("decode"), REVISION: st.just("r1"), ROLE: st.just("decode"), GATE: st.just("r2")},
)
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["a", "b"]),
                "namespace": st.just("llm"),
                "uid": st.just("u"),
                "resourceVersion": st.just("7"),
                "labels": labels,
                "managedFields": st.just([{"manager": "kubelet"}]),
            },
            optional={
                "creationTimestamp": times,
                "deletionTimestamp": times,
                "annotations": st.fixed_dictionaries(
                    {"k8s.v1.cni.cncf.io/network-status": st.just("[]")},
                    optional={"controller.kubernetes.io/pod-deletion-cost": st.just("7")},
                ),
            },
        ),
        "spec": st.fixed_dictionaries({"nodeName": st.just("n"), "volumes": volumes}),
    },
    optional={
        "status": st.fixed_dictionaries(
            {},
            optional={
                "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
                "podIP": st.just("10.0.0.1"),
                "conditions": st.one_of(mounting, conditions),
                "containerStatuses": containers,
                "initContainerStatuses": containers,
            },
        )
    },
)
jobs = st.fixed_dictionaries(
    {
        "metadata": st.just(
            {
                "name": "gate",
                "namespace": "llm",
                "uid": "j",
                "resourceVersion": "8",
                "labels": {SERVICE: "chat", GATE: "r2"},
                "annotations": {"tandem.dev/baseline": "r1"},
                "creationTimestamp": timestamp(NOW - 50.0),
            }
        ),
        "spec": st.fixed_dictionaries({"suspend": st.booleans()}),
    },
    optional={
        "status": st.fixed_dictionaries(
            {},
            optional={
                "conditions": conditions,
                "startTime": times,
                "active": st.integers(0, 1),
                "ready": st.integers(0, 1),
                "succeeded": st.integers(0, 1),
                "failed": st.integers(0, 1),
                "terminating": st.integers(0, 1),
                "uncountedTerminatedPods": st.sampled_from([{}, {"failed": ["x"]}]),
            },
        )
    },
)


class Noted(dict[str, Any]):
    """An object that notes which of its fields are looked at."""

    def __init__(self, obj: Json, path: tuple[str, ...], seen: set[tuple[str, ...]]) -> None:
        super().__init__({key: noted(value, (*path, key), seen) for key, value in obj.items()})
        self._path, self._seen = path, seen

    def __getitem__(self, key: str) -> Any:
        self._seen.add((*self._path, key))
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._seen.add((*self._path, key))
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._seen.add((*self._path, str(key)))
        return super().__contains__(key)


def noted(value: Any, path: tuple[str, ...], seen: set[tuple[str, ...]]) -> Any:
    if isinstance(value, dict):
        return Noted(value, path, seen)
    return [noted(each, (*path, "[]"), seen) for each in value] if isinstance(value, list) else value


def at(obj: Any, path: tuple[str, ...]) -> list[Any]:
    """What is at a path, in every item of the lists on its way."""
    if not path:
        return [{} if isinstance(obj, dict) else [] if isinstance(obj, list) else obj]
    if path[0] == "[]":
        return [found for each in obj or () for found in at(each, path[1:])]
    return at(obj[path[0]], path[1:]) if isinstance(obj, dict) and path[0] in obj else []


def read(pod: Json) -> tuple[Any, ...]:
    """Everything that is read of a pod."""
    return (
        read_pod(pod, {}),
        read_follower(pod),
        pod_of(pod, "decode", "r1"),
        endpoints_of_pods([pod], 8000, secure=False),
        serving([pod]),
        start_figures([pod], {"llm/chat"}),
    )


@given(pods)
def test_a_pod_reads_the_same_as_a_whole_one(pod: Json) -> None:
    assert read(KEPT[POD](pod)) == read(pod)
    assert KEPT[POD](pod)["metadata"]["resourceVersion"] == "7"


@given(pods)
def test_every_field_of_a_pod_that_is_looked_at_is_kept(pod: Json) -> None:
    """Also one whose value makes no difference here, so that a new reader cannot read what is not there."""
    seen: set[tuple[str, ...]] = set()
    read(noted(pod, (), seen))
    kept = KEPT[POD](pod)
    assert {path: at(kept, path) for path in seen} == {path: at(pod, path) for path in seen}


@given(jobs, st.lists(pods, max_size=2))
def test_a_gate_reads_the_same(job: Json, of_gate: list[Json]) -> None:
    whole, kept = read_gate(job, of_gate), read_gate(KEPT[JOB](job), [KEPT[POD](pod) for pod in of_gate])
    assert [getattr(whole, name) for name in FIELDS] == [getattr(kept, name) for name in FIELDS]


FIELDS = ("revision", "baseline", "result", "since", "ended", "pods", "suspended", "had_pod", "had_run")


def fleet() -> list[Json]:
    """All objects of a settled service, as an API server gives them."""
    cluster = asyncio.run(settled(1, 2, 3))
    kinds = (MODEL_SERVICE, POD, *CHILDREN, *OPTIONAL)
    objects = [obj for kind in kinds for obj in cluster.objects(kind)]
    return [_served(running(obj, number) if obj["kind"] == "Pod" else obj) for number, obj in enumerate(objects)]


def _served(obj: Json) -> Json:
    """With the bookkeeping that every object has, and as if decoded."""
    metadata = {"managedFields": [{"manager": "x", "fieldsV1": {"f:spec": {}}}], **obj["metadata"]}
    whole: Json = msgspec.json.decode(msgspec.json.encode({**obj, "metadata": metadata}))
    return whole


@pytest.fixture(scope="module")
def objects() -> list[Json]:
    return fleet()


def observed(objects: list[Json], *, kept: bool) -> Observed:
    stores = {kind: Store() for kind in (MODEL_SERVICE, POD, *CHILDREN)}
    for obj in objects:
        kind = kind_of(obj)
        stores[kind].put(KEPT[kind](obj) if kept else obj)
    (service,) = stores[MODEL_SERVICE]
    wish = read_desired_spec(service, INSTALLATION)
    return observe(service, wish, stores, ReportedInputs())


@given(data=st.data())
def test_plans_are_the_same_as_from_whole_objects(objects: list[Json], data: st.DataObject) -> None:
    """Also where pods are in trouble, Deployments may make none, and fields were changed by others."""
    shaken = [msgspec.json.decode(msgspec.json.encode(obj)) for obj in objects]
    for obj in shaken:
        if obj["kind"] == "Pod" and data.draw(st.booleans()):
            obj["status"] = data.draw(pods).get("status", {})
        if obj["kind"] == "Deployment" and data.draw(st.booleans()):
            refused = {"type": "ReplicaFailure", "status": "True", "message": 'pods "a" is forbidden'}
            obj["status"] = {"conditions": [refused], "replicas": 3}
            obj["spec"]["replicas"] = data.draw(st.integers(0, 4))
    whole, kept = observed(shaken, kept=False), observed(shaken, kept=True)
    found, wanted = (reconcile(each, NOW, INSTALLATION) for each in (kept, whole))
    assert found.apply == wanted.apply
    assert found.statuses == wanted.statuses
    assert found.delete == wanted.delete
    assert found.costs == wanted.costs
    assert found.handovers == wanted.handovers
    assert found.requeue_after_s == wanted.requeue_after_s
    assert [note.sentence for note in found.notes] == [note.sentence for note in wanted.notes]


def test_whether_an_object_is_as_applied_is_told_the_same(objects: list[Json]) -> None:
    whole = observed(objects, kept=False)
    wanted = reconcile(whole, NOW, INSTALLATION).apply
    stored = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}
    assert len(wanted) >= 6
    for obj in wanted:
        there = stored.get((obj["kind"], obj["metadata"]["name"]))
        if there is not None:
            kept = KEPT[kind_of(there)](there)
            assert holds(kept, signed(obj)[0])
            assert holds(kept, obj) == holds(there, obj)
            assert fingerprint(kept) == fingerprint(there)


def test_statuses_that_are_read_are_kept(objects: list[Json]) -> None:
    services = [obj for obj in objects if obj["kind"] == "ModelService"]
    pools = [obj for obj in objects if obj["kind"] == "EnginePool"]
    kept_services = [KEPT[MODEL_SERVICE](obj) for obj in services]
    kept_pools = [KEPT[ENGINE_POOL](obj) for obj in pools]
    assert condition_figures(kept_services, kept_pools) == condition_figures(services, pools) != {}
    for whole, kept in zip((*services, *pools), (*kept_services, *kept_pools), strict=True):
        assert kept["status"] == whole["status"]
        assert interim(kept, whole) == interim(whole, whole)


def test_bookkeeping_goes_from_every_kind(objects: list[Json]) -> None:
    for obj in objects:
        annotations = obj["metadata"].setdefault("annotations", {})
        annotations["kubectl.kubernetes.io/last-applied-configuration"] = "{}"
        kept = KEPT[kind_of(obj)](obj)
        assert "managedFields" in obj["metadata"]
        assert "managedFields" not in kept["metadata"]
        assert not any("last-applied" in key for key in kept["metadata"].get("annotations", {}))
    assert set(KEPT) == {MODEL_SERVICE, POD, *CHILDREN, *OPTIONAL}
    assert "replicas" not in KEPT[DEPLOYMENT]({"metadata": {}, "status": {"replicas": 3}})["status"]


def test_a_running_pod_takes_little(objects: list[Json]) -> None:
    """Counted in bytes of Python objects, so that it is the same on every machine."""
    pod = next(obj for obj in objects if obj["kind"] == "Pod")
    sent = [msgspec.json.encode(running(pod, number)) for number in range(50)]
    whole = [msgspec.json.decode(each) for each in sent]
    kept = [KEPT[POD](msgspec.json.decode(each)) for each in sent]
    assert bytes_of(whole) / len(sent) > 10 * KEPT_MAX
    assert bytes_of(kept) / len(sent) < KEPT_MAX


def bytes_of(objects: list[Json]) -> int:
    """What objects take, each counted once."""
    return sum(sys.getsizeof(each) for each in {id(each): each for each in within(objects)}.values())


def within(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict):
        for each in (*value, *value.values()):
            yield from within(each)
    elif isinstance(value, list):
        for each in value:
            yield from within(each)
