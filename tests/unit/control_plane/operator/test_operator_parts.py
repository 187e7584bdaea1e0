"""The parts of the operator by themselves: conditions, gates, health, what needs a write, settings."""

import asyncio
import json
from typing import Any

import pytest
import yaml

from control_plane.__main__ import flags
from control_plane.crds.definitions import definitions
from control_plane.objects.installation import Installation
from control_plane.observe.desired_spec import read_desired_spec
from control_plane.observe.gates import read_gate
from control_plane.observe.observed import ModelFacts
from control_plane.observe.pods import PodLoad, read_pod
from control_plane.operator.apply_diff import fingerprint, holds, signature, signed
from control_plane.operator.health import RolloutHealth
from control_plane.operator.model_facts import ANNOTATION, HubFacts, annotated, facts_of, hub_id
from control_plane.operator.routers import endpoints_of_pods, endpoints_of_urls
from control_plane.operator.schema_check import check_schemas
from control_plane.operator.settings import OperatorSettings
from control_plane.reconcile.conditions import condition_update, conditions
from control_plane.rollout import Health
from tandem.core.errors import TandemError
from tandem.core.sizing import Shape
from tandem.kube.kinds import CUSTOM_RESOURCE, Json, Ref
from tandem.kube.memory_cluster import MemoryCluster
from tandem.process.settings import load_settings
from tandem.spec.model import Model
from tandem.spec.rollout import TOO_DIFFERENT
from tests.cluster.good_model_services import GOOD, SMALLEST

LLAMA_70B = Shape(80, 8192, 64, 8, 128, 28672, 128256)


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time


# -- Conditions -----------------------------------------------------------------------------------------------------


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    first = conditions((), [condition_update("Ready", False, "Progressing", "2 pods")], 1, 100.0)
    second = conditions(first, [condition_update("Ready", False, "Paused", "1 pod")], 2, 200.0)
    third = conditions(second, [condition_update("Ready", True, "Complete")], 2, 300.0)
    assert second[0].last_transition_time == first[0].last_transition_time
    assert (second[0].reason, second[0].observed_generation) == ("Paused", 2)
    assert third[0].last_transition_time != first[0].last_transition_time


def test_a_longer_time_alone_is_not_said_again() -> None:
    first = conditions((), [condition_update("Stalled", True, "Late", "nothing for 310 s")], 1, 100.0)
    assert conditions(first, [condition_update("Stalled", True, "Late", "nothing for 311 s")], 1, 101.0) == first
    other = conditions(first, [condition_update("Stalled", True, "Late", "2 pods for 311 s")], 1, 101.0)
    assert other[0].message == "2 pods for 311 s"


# -- Observing ------------------------------------------------------------------------------------------------------


def gate_pod(message: str, code: int = 1) -> Json:
    state = {"terminated": {"message": message, "exitCode": code}}
    return {
        "metadata": {"name": "chat-gate-new-x", "uid": "g1"},
        "status": {"containerStatuses": [{"name": "verify", "state": state}]},
    }


@pytest.mark.parametrize(
    ("status", "message", "result"),
    [
        ({}, "", "unknown"),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, "", "passed"),
        ({}, '{"passed": false, "agreement": 0.4}', "failed"),
        ({}, '{"passed": false, "first": [cut off', "failed"),
        ({}, "link_lost: A does not answer", "unknown"),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, "link_lost: A does not answer", "not_compared"),
        ({"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]}, "", "not_compared"),
        # Its pod is gone, and with it what it said.
        ({"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}]}, "", "failed"),
    ],
)
def test_a_gate_is_decided_by_its_report(status: Json, message: str, result: str) -> None:
    job = {"metadata": {"labels": {"tandem.dev/gate": "new"}, "annotations": {}}, "status": status}
    assert read_gate(job, [gate_pod(message)]).result == result


def test_a_gate_that_compared_and_refused_is_decided_by_its_exit_status() -> None:
    job = {"metadata": {"labels": {"tandem.dev/gate": "new"}, "annotations": {}}, "status": {"active": 1}}
    cut_off = '...}], "findings": []}'
    assert read_gate(job, [gate_pod(cut_off, TOO_DIFFERENT)]).result == "failed"
    assert read_gate(job, [gate_pod(cut_off, 1), gate_pod("", 137)]).result == "unknown"
    running = gate_pod("")
    running["status"] = {"containerStatuses": [{"name": "verify", "state": {"running": {}}}, {"name": "beside"}]}
    assert read_gate(job, [running]).result == "unknown"


def test_a_pod_tells_since_when_it_is_ready_or_finds_no_node() -> None:
    metadata = {
        "name": "p",
        "uid": "u",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"tandem.dev/pool": "all", "tandem.dev/role": "unified", "tandem.dev/revision": "r"},
    }
    late = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    waiting = read_pod(
        {"metadata": metadata, "status": {"conditions": [{**late, "lastTransitionTime": "2026-01-01T00:01:00Z"}]}}, {}
    )
    assert waiting is not None
    assert waiting.unplaced_s == waiting.created_s + 60
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:02:00Z"}
    serving = read_pod({"metadata": metadata, "status": {"conditions": [ready]}}, {"p": PodLoad(3, 9, 0.5)})
    assert serving is not None
    assert (serving.ready, serving.ready_s, serving.running) == (True, serving.created_s + 120, 3)
    assert read_pod({"metadata": metadata, "status": {"phase": "Failed"}}, {}) is None
    assert read_pod({"metadata": {**metadata, "labels": {}}}, {}) is None


def test_what_cannot_be_read_is_a_problem_and_no_error() -> None:
    plain = yaml.safe_load(SMALLEST)
    plain["metadata"]["namespace"] = "n"
    assert read_desired_spec(plain, Installation()).problem is None
    assert "pools" in (read_desired_spec({**plain, "spec": {}}, Installation()).problem or "")
    plain["status"] = {"conditions": "of a newer control plane"}
    assert read_desired_spec(plain, Installation()).problem is None


# -- Health ---------------------------------------------------------------------------------------------------------


def test_health_begins_with_the_rollout() -> None:
    book, totals = RolloutHealth(), {"old": Health(1000, 50, 20), "new": Health(0, 0, 0)}

    def seen(aim: str) -> dict[str, Health]:
        return book.since(("n", "s"), aim, totals, lambda name: totals[name])

    assert seen("new") == {"old": Health(0, 0, 0), "new": Health(0, 0, 0)}
    totals |= {"old": Health(1100, 51, 20), "new": Health(100, 30, 1)}
    assert seen("new") == {"old": Health(100, 1, 0), "new": Health(100, 30, 1)}
    assert seen("newer")["new"] == Health(0, 0, 0)


# -- Writing --------------------------------------------------------------------------------------------------------


def test_what_is_there_already_needs_no_write() -> None:
    obj: Json = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s", "namespace": "n", "labels": {"a": "b"}},
        "spec": {"ports": [{"name": "link", "port": 1}], "selector": {"x": "y"}, "none": []},
    }
    whole, digest = signed(obj)
    stored = {**whole, "metadata": {**whole["metadata"], "uid": "u", "resourceVersion": "7"}, "status": {"x": 1}}
    stored["spec"] = {**obj["spec"], "clusterIP": "None", "ports": [{"name": "link", "port": 1, "protocol": "TCP"}]}
    assert signature(stored) == digest
    assert holds(stored, obj)
    assert not holds({**stored, "spec": {**stored["spec"], "selector": {}}}, obj)
    newer = {**stored, "metadata": {**stored["metadata"], "resourceVersion": "8"}, "status": {}}
    assert fingerprint(newer) == fingerprint(stored), "status and versions do not count"
    assert fingerprint({**stored, "spec": {}}) != fingerprint(stored)
    assert signed({**obj, "spec": {}})[1] != digest


# -- Models ---------------------------------------------------------------------------------------------------------

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
}


def test_facts_come_from_the_config() -> None:
    facts = facts_of(CONFIG)
    assert facts == ModelFacts(LLAMA_70B, "bfloat16", 131072)
    unheard = facts_of({"architectures": ["Unheard"]})
    assert (unheard.shape, unheard.unread) == (
        None,
        "config.json: the parts of models of type '' are not known here",
    )
    told = {"metadata": {"annotations": {ANNOTATION: json.dumps(CONFIG)}}}
    assert annotated(told) == facts
    assert annotated({"metadata": {"annotations": {ANNOTATION: "{"}}}) is None


@pytest.mark.parametrize(
    ("source", "name"),
    [("hf://a/b", "a/b"), ("a/b", "a/b"), ("demo", None), ("/m/x", None), ("s3://b/p", None), ("file:///m", None)],
)
def test_only_the_hub_is_asked(source: str, name: str | None) -> None:
    assert hub_id(source) == name


async def test_the_hub_is_asked_once_and_again_after_a_failure() -> None:
    clock, asked, found = Hands(), list[str](), list[str]()
    loop, answered = asyncio.get_running_loop(), asyncio.Event()

    def fetch(repository: str, revision: str | None) -> dict[str, Any]:
        asked.append(repository)
        loop.call_soon_threadsafe(answered.set)
        if len(asked) == 1:
            raise OSError("no network")
        return CONFIG

    async def next_answer() -> None:
        await asyncio.wait_for(answered.wait(), 100)
        answered.clear()
        await asyncio.sleep(0.1)

    hub = HubFacts(clock, found.append, fetch)
    running = asyncio.create_task(hub.run())
    model = Model(source="a/b")
    assert hub.of(model) is None
    await next_answer()
    assert hub.of(model) is None
    await asyncio.sleep(0.05)
    assert len(asked) == 1, "a failure is not repeated at once"
    clock.time = 601.0
    assert hub.of(model) is None
    await next_answer()
    known = hub.of(model)
    assert known is not None
    assert known.shape == LLAMA_70B
    assert found == ["a/b"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


# -- Settings and start ---------------------------------------------------------------------------------------------


def test_flags_are_as_people_write_them() -> None:
    argv = ["--namespace", "a", "--namespace=b", "--router-url", "http://r:8000", "--worker-image", "w:1"]
    settings = load_settings(OperatorSettings, flags([*argv, "--events", "--log.level", "debug"]))
    assert settings.namespace == ("a", "b")
    assert settings.router_url == ("http://r:8000",)
    assert settings.installation.worker_image == "w:1"
    assert (settings.events, settings.log.level) == (True, "debug")
    with pytest.raises(TandemError, match="router_url"):
        load_settings(OperatorSettings, flags(["--router-url", "r:8000"]))
    with pytest.raises(TandemError, match="put the URL into a Secret and name that in redis_secret") as caught:
        load_settings(OperatorSettings, flags(["--redis-url", "redis://:hunter2@cache"]))
    assert "hunter2" not in caught.value.message


def test_routers_are_given_or_found() -> None:
    assert [place.authority for place in endpoints_of_urls(["http://10.0.0.1:8000"]).values()] == ["10.0.0.1:8000"]
    pods = [
        {"metadata": {"name": "r-1"}, "status": {"phase": "Running", "podIP": "10.0.0.2"}},
        {"metadata": {"name": "r-2"}, "status": {"phase": "Pending"}},
    ]
    found = endpoints_of_pods(pods, 8000, secure=True)
    assert {name: (place.authority, place.secure) for name, place in found.items()} == {
        "r-1": ("10.0.0.2:8000", True)
    }


async def test_without_its_kinds_the_operator_says_what_to_install() -> None:
    cluster = MemoryCluster(Hands())
    with pytest.raises(TandemError, match=r"no modelservices\.tandem\.dev: install the chart tandem-crds first"):
        await check_schemas(cluster)
    for definition in definitions().values():
        await cluster.apply(definition, "helm")
    await check_schemas(cluster)


async def test_another_schema_is_logged_and_served(caplog: pytest.LogCaptureFixture) -> None:
    cluster = MemoryCluster(Hands())
    for definition in definitions().values():
        metadata = {**definition["metadata"], "annotations": {"tandem.dev/schema": "older"}}
        await cluster.apply({**definition, "metadata": metadata}, "helm")
    caplog.set_level("WARNING")
    await check_schemas(cluster)
    assert [record.getMessage() for record in caplog.records] == ["schema_differs"] * 2
    assert await cluster.get(Ref(CUSTOM_RESOURCE, "", "modelservices.tandem.dev"))


@pytest.mark.parametrize("name", GOOD)
def test_good_services_have_a_revision(name: str) -> None:
    plain = yaml.safe_load(GOOD[name])
    plain["metadata"].setdefault("namespace", "n")
    wish = read_desired_spec(plain, Installation())
    assert wish.problem is None
    assert len(wish.revision) == 10
