"""The Job of a rollout's gate on the real API server and Job controller. What its pods say is written by the test."""

import sys
import time
from dataclasses import dataclass

import pytest

from control_plane.objects.gate import gate_job, gate_prompts
from control_plane.objects.installation import Installation
from control_plane.observe.gates import read_gate
from control_plane.reconcile.causes import gate_verdict
from tandem.kube.times import timestamp
from tandem.spec.rollout import TOO_DIFFERENT, Gate
from tests.cluster.lab.admin import Admin
from tests.cluster.lab.http import Json
from tests.cluster.lab.lab import Lab

pytestmark = pytest.mark.timeout(300)
SIDE_NOT_REACHED = 1
WORKERS: Json = {"spec": {"containers": [{"name": "worker", "image": "worker:1"}]}}
WAITS_S = 10.0
"""What the Job controller waits at least before it tries again, the first time."""


@dataclass(frozen=True)
class Tried:
    """How a gate went: its pods, when and why its Job failed, when its verdict was known, and which one it is."""

    pods: int
    failed_s: float
    reason: str
    known_s: float
    verdict: str
    why: str


def gate(admin: Admin, namespace: str, status: int) -> Tried:
    """Every pod of the gate ends with this exit status at once."""
    metadata = {"name": "chat", "namespace": namespace, "uid": "00000000-0000-4000-8000-000000000001"}
    owner: Json = {"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService", "metadata": metadata}
    job = gate_job(owner, Gate(), "chat", "old", "new", WORKERS, Installation())
    for obj in (gate_prompts(owner, "new"), job):
        # Its owner is not there: the garbage collector would take it away.
        del obj["metadata"]["ownerReferences"]
        admin.applied(obj, namespace)
    begun, known_s, ended = time.monotonic(), 0.0, set[str]()
    pods_path = f"/api/v1/namespaces/{namespace}/pods"
    job_path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{job['metadata']['name']}"
    while time.monotonic() < begun + 200.0:
        pods = admin.items(pods_path, {"tandem.dev/gate": "new"})
        for name in {pod["metadata"]["name"] for pod in pods} - ended:
            admin.patch(f"{pods_path}/{name}/status", {"status": ends_with(status)})
            ended.add(name)
        now = admin.done("GET", job_path)
        found = read_gate(now, admin.items(pods_path, {"tandem.dev/gate": "new"}))
        known = found.result != "unknown"
        known_s = known_s or (time.monotonic() - begun if known else 0.0)
        for condition in (now.get("status") or {}).get("conditions") or ():
            if condition["type"] == "Failed" and condition["status"] == "True":
                verdict, why = gate_verdict(found, "", time.time())
                return Tried(len(ended), time.monotonic() - begun, condition["reason"], known_s, verdict, why)
        time.sleep(0.1)
    raise AssertionError(f"the Job has not failed: {now.get('status')}")


def ends_with(status: int) -> Json:
    """Of a pod as a kubelet writes it."""
    ended = {"exitCode": status, "reason": "Error", "startedAt": None, "finishedAt": timestamp(time.time())}
    container = {"name": "verify", "state": {"terminated": ended}, "ready": False, "restartCount": 0}
    return {
        "phase": "Failed",
        "containerStatuses": [{**container, "image": "worker:1", "imageID": ""}],
    }


def test_a_gate_that_refused_is_not_asked_again(complete_lab: Lab, admin: Admin, namespace: str) -> None:
    tried = gate(admin, namespace, TOO_DIFFERENT)
    assert (tried.pods, tried.reason, tried.verdict) == (1, "PodFailurePolicy", "failed")
    sys.stdout.write(f"refused: {tried}\n")
    assert 0.0 < tried.known_s <= tried.failed_s, "its one pod is the verdict, however long the Job controller takes"


def test_a_gate_that_could_not_ask_is_tried_again(complete_lab: Lab, admin: Admin, namespace: str) -> None:
    tried = gate(admin, namespace, SIDE_NOT_REACHED)
    sys.stdout.write(f"not asked: {tried}\n")
    assert (tried.pods, tried.reason, tried.verdict) == (3, "BackoffLimitExceeded", "not_compared")
    assert "container verify: it ended: status 1" in tried.why
    assert tried.failed_s > 2 * WAITS_S, "it waits before each try"
    assert tried.failed_s - tried.known_s < 1.0, "an answer that nobody got is no verdict"
