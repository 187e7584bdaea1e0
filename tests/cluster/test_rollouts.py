"""Updates that must not go through, on a real control plane: by readiness, by the gate, by what clients see."""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from tests.cluster.lab.http import Json
from tests.cluster.scenario.load import Load
from tests.cluster.scenario.platform import PATIENCE_S, Platform, simulated, weights

pytestmark = pytest.mark.timeout(600)
DEADLINE_S = 60
GATE_S = 60.0
"""From the Job of a gate to the rollback, on a loaded machine: one comparison, without waiting for another try."""


@dataclass(frozen=True)
class Steady:
    """A service of the test's own that serves, and its first revision."""

    platform: Platform
    name: str
    old: str


_numbers = itertools.count(1)


@pytest.fixture
def steady(platform: Platform) -> Iterator[Steady]:
    name = f"rollout-{next(_numbers)}"
    platform.apply(updated(name))
    yield Steady(platform, name, platform.until_ready(name)["status"]["currentRevision"])
    platform.delete(name)


def updated(
    name: str, environment: dict[str, str] | None = None, command: list[str] | None = None, **rollout: Any
) -> Json:
    """The service with its workers changed by their environment or command, and a rollout of these settings."""
    worker: Json = {"name": "worker"}
    if environment:
        worker["env"] = [{"name": key, "value": value} for key, value in environment.items()]
    if command:
        worker["command"] = command
    changed = {"template": {"spec": {"containers": [worker]}}} if environment or command else {}
    pools = [{"name": role, "role": role, "drainSeconds": 10, **changed} for role in ("prefill", "decode")]
    return simulated(name, {"pools": pools, "rollout": {"progressDeadlineSeconds": DEADLINE_S, **rollout}})


def reasons(platform: Platform, name: str) -> set[str]:
    """Of the events about a service."""
    events = platform.admin.items(f"/apis/events.k8s.io/v1/namespaces/{platform.namespace}/events")
    return {str(event["reason"]) for event in events if event["regarding"]["name"] == name}


def gate_of(platform: Platform, name: str) -> Json:
    """The Job of a service's gate."""
    jobs = platform.admin.items(f"/apis/batch/v1/namespaces/{platform.namespace}/jobs")
    (job,) = (each for each in jobs if each["metadata"]["labels"].get("tandem.dev/service") == name)
    return job


def begun(obj: Json) -> float:
    """When an object was made."""
    return datetime.fromisoformat(obj["metadata"]["creationTimestamp"]).timestamp()


def told_at(platform: Platform, name: str, *wanted: str) -> float:
    """When the first event about a service with one of these reasons was written."""
    events = platform.admin.items(f"/apis/events.k8s.io/v1/namespaces/{platform.namespace}/events")
    return min(begun(each) for each in events if each["regarding"]["name"] == name and each["reason"] in wanted)


def only_old(platform: Platform, name: str, old: str) -> bool:
    """Nothing but the old revision, in traffic and in pods (those of a gate are of none)."""
    revisions = {pod["metadata"]["labels"].get("tandem.dev/revision", old) for pod in platform.pods(service=name)}
    return weights(platform.get(name)) == {old: 100} and revisions == {old}


def test_an_update_that_never_gets_ready_is_taken_back(steady: Steady) -> None:
    platform, name, old = steady.platform, steady.name, steady.old
    with Load(platform.routers(), name) as load:
        load.several()
        platform.apply(updated(name, command=["false"]))
        platform.until(lambda: "RolledBack" in reasons(platform, name), "not rolled back", DEADLINE_S + PATIENCE_S)
        platform.until(lambda: only_old(platform, name, old), "the new revision is still there")
        load.several()
    assert load.failures == []


def test_the_gate_keeps_out_a_revision_that_says_something_else(steady: Steady) -> None:
    platform, name, old = steady.platform, steady.name, steady.old
    with Load(platform.routers(), name) as load:
        load.several()
        seen: set[str] = set()
        platform.apply(updated(name, {"TANDEM_SIMULATED__SEED": "7"}, gate={}))

        def refused() -> bool:
            seen.update(weights(platform.get(name)))
            return "RolledBack" in reasons(platform, name)

        platform.until(refused, "the gate has not refused", 240.0)
        job, verdict = gate_of(platform, name), told_at(platform, name, "RollingBack", "RolledBack")
        platform.until(lambda: only_old(platform, name, old), "the new revision is still there")
        load.several()
    tries = job.get("status", {}).get("failed", 0)
    took_s = verdict - begun(job)
    sys.stdout.write(f"from the Job of the gate to the rollback {took_s:.0f} s, {tries} pods\n")
    assert tries <= 1, "what was compared once was compared again"
    assert took_s < GATE_S, "the rollback waited for more than one comparison"
    assert seen == {old}, "a revision got traffic before its gate"
    assert load.failures == []


def test_the_gate_lets_in_a_revision_that_says_the_same(steady: Steady) -> None:
    platform, name, old = steady.platform, steady.name, steady.old
    with Load(platform.routers(), name) as load:
        load.several()
        platform.apply(updated(name, {"SOME_OTHER": "setting"}, gate={}))
        platform.until(
            lambda: platform.get(name)["status"]["currentRevision"] != old, "the gate has not let it in", 240.0
        )
        platform.until_ready(name)
        load.several()
    assert load.failures == []


def test_a_revision_that_is_too_slow_for_its_clients_is_taken_back(steady: Steady) -> None:
    platform, name, old = steady.platform, steady.name, steady.old
    slo = {"slo": {"tpotMs": 120, "percentile": 90}}
    slow = updated(name, {"TANDEM_SIMULATED__BASE_S": "0.4"}, weight=50)
    with Load(platform.routers(), name, clients=8, tokens=12) as load:
        load.several()
        platform.apply({**slow, "spec": {**slow["spec"], **slo}})
        platform.until(lambda: len(weights(platform.get(name))) == 2, "the new revision gets no traffic")
        platform.until(lambda: "RolledBack" in reasons(platform, name), "not rolled back", 240.0)
        platform.until(lambda: only_old(platform, name, old), "the new revision is still there")
        load.several()
    assert load.failures == []
