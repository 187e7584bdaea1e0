"""Why pods do not come up: the phrase for each cause, and when it counts as new."""

from typing import Any

import pytest

from control_plane.objects.names import GATE, POOL, REVISION, SERVICE
from control_plane.observe.gates import read_gate
from control_plane.observe.observed import DesiredSpec, Gate, Pod
from control_plane.observe.pods import pod_of
from control_plane.observe.reading import ReportedInputs, observe
from control_plane.reconcile.causes import (
    gate_verdict,
    news,
    next_due_s,
    phrases,
    pod_causes,
    told,
    worker_causes,
)
from tandem.kube.kinds import POD, Json
from tandem.kube.store import Store
from tandem.kube.times import timestamp

NOW = 1_800_000_000.0


def pod(name: str = "a", conditions: tuple[Json, ...] = (), spec: Json | None = None, **container: Any) -> Pod:
    """A pod of which the kubelet says so much about its container `worker`."""
    statuses = [{"name": "worker", "image": "vllm:1", **container}] if container else []
    metadata = {"name": name, "uid": name, "creationTimestamp": timestamp(NOW - 100.0)}
    status = {"containerStatuses": statuses, "conditions": list(conditions)}
    return pod_of({"metadata": metadata, "spec": spec or {}, "status": status}, "decode", "abc")


def waiting(reason: str, message: str = "") -> Json:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def ended(code: int, reason: str = "Error", message: str = "", at: float = NOW) -> Json:
    return {"exitCode": code, "reason": reason, "message": message, "finishedAt": timestamp(at)}


def said(*pods: Pod, before: str = "", now: float = NOW) -> str:
    return told(pod_causes(pods, before, now), before)


@pytest.mark.parametrize(
    ("container", "phrase"),
    [
        (waiting("ContainerCreating"), ""),
        ({"state": {"running": {}}, "ready": True}, ""),
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "vllm:1": ErrImagePull: not found'),
            "image vllm:1 cannot be pulled: not found",
        ),
        (waiting("ImagePullBackOff", 'Back-off pulling image "vllm:1"'), "image vllm:1 cannot be pulled"),
        (waiting("InvalidImageName", "couldn't parse it"), "image vllm:1 cannot be pulled: couldn't parse it"),
        (waiting("CreateContainerError", "no such device"), "CreateContainerError: no such device"),
        (waiting("CrashLoopBackOff", "back-off 5m0s"), "it ends again and again"),
        (
            {**waiting("CrashLoopBackOff"), "lastState": {"terminated": ended(2, message="a\nbad_setting: b.\n\n")}},
            "it ended: status 2: bad_setting: b",
        ),
        (
            {"state": {"running": {}}, "lastState": {"terminated": ended(137, "OOMKilled")}},
            "it was killed for using more memory than its limit",
        ),
    ],
)
def test_a_container_that_does_not_work_has_a_phrase(container: Json, phrase: str) -> None:
    assert said(pod(**container)) == (f"Pod a, container worker: {phrase}" if phrase else "")


def test_what_ended_before_the_pod_was_last_ready_is_no_matter() -> None:
    unready: Json = {"type": "Ready", "status": "False", "lastTransitionTime": timestamp(NOW - 10.0)}
    running = {"state": {"running": {}}}
    long_ago, just_now = ended(1, at=NOW - 9000.0), ended(1, at=NOW - 12.0)
    assert said(pod(conditions=(unready,), **running, lastState={"terminated": long_ago})) == ""
    assert "status 1" in said(pod(conditions=(unready,), **running, lastState={"terminated": just_now}))


def test_volumes_that_do_not_come_are_told_of_with_what_they_are_made_from() -> None:
    placed: Json = {"type": "PodScheduled", "status": "True"}
    begun: Json = {
        "type": "PodReadyToStartContainers",
        "status": "False",
        "lastTransitionTime": timestamp(NOW - 15.0),
    }
    at_hand = {"volumes": [{"secret": {"secretName": "kv"}}, {"configMap": {"name": "settings"}}, {"emptyDir": {}}]}
    claimed = {"volumes": [*at_hand["volumes"], {"persistentVolumeClaim": {"claimName": "models"}}]}
    late = pod(conditions=(placed, begun), spec=at_hand, **waiting("ContainerCreating"))
    assert (said(late), next_due_s([late], NOW)) == ("", 5.0)
    needs = "it needs ConfigMap settings, Secret kv"
    assert said(late, now=NOW + 6.0) == f"Pod a: its volumes or its network are not ready: {needs}"
    assert next_due_s([late], NOW + 6.0) is None
    attached = pod(conditions=(placed, begun), spec=claimed, **waiting("ContainerCreating"))
    assert said(attached, now=NOW + 6.0) == "", "a disk takes its time to be attached"


def test_the_pod_that_was_named_goes_on_being_named() -> None:
    first = said(pod("b", **waiting("ErrImagePull", "not found")))
    both = (pod("a", **waiting("ErrImagePull", "not found")), pod("b", **waiting("ErrImagePull", "not found")))
    assert said(*both, before=first) == first
    assert news(pod_causes(both, first, NOW), first) == ()
    assert "Pod a," in said(*both)


def test_a_reason_stays_as_it_was_said_where_only_numbers_differ_or_it_is_left_out() -> None:
    first = said(pod(**waiting("ErrImagePull", "401 from 10.0.0.1:443")))
    for again in ("401 from 10.0.0.2:443", ""):
        assert said(pod(**waiting("ErrImagePull", again)), before=first) == first
    assert "not found" in said(pod(**waiting("ErrImagePull", "not found")), before=first)


def test_a_container_that_ends_with_one_status_and_then_another_is_no_news() -> None:
    def ends(code: int) -> Pod:
        return pod(**waiting("CrashLoopBackOff"), lastState={"terminated": ended(code, message="lost its peer")})

    first = said(ends(1))
    assert first == "Pod a, container worker: it ended: status 1: lost its peer"
    assert news(pod_causes([ends(134)], first, NOW), first) == ()
    assert said(ends(134), before=first) == first


def test_causes_are_few_and_short_and_the_worst_is_first() -> None:
    many = [pod("a", **waiting("CrashLoopBackOff")), pod("b", **waiting("ErrImagePull", "x; y " * 300))]
    text = said(*many)
    worst, other = phrases(text)
    assert "image" in worst
    assert "ends again" in other
    assert len(text) < 500


def test_the_other_pods_of_a_worker_that_spans_nodes_are_looked_at_too() -> None:
    labels = {SERVICE: "chat", POOL: "whole", REVISION: "abc"}
    status = {"containerStatuses": [{"name": "worker", "image": "vllm:1", **waiting("ErrImagePull", "not found")}]}
    metadata = {"name": "chat-whole-abc-0-1", "namespace": "llm", "uid": "f1", "labels": labels}
    pods = Store()
    pods.put({"metadata": metadata, "status": status})
    service: Json = {"metadata": {"name": "chat", "namespace": "llm"}}
    observed = observe(service, DesiredSpec(None), {POD: pods}, ReportedInputs())
    assert observed.pods == (), "it is no worker by itself"
    (cause,) = worker_causes(observed, "", NOW, pool="whole", revision="abc")
    assert cause.phrase == "Pod chat-whole-abc-0-1, container worker: image vllm:1 cannot be pulled: not found"


def gate(**given: Any) -> Gate:
    return Gate("new", "old", "unknown", {"metadata": {"name": "chat-gate-new"}}, since=NOW, **given)


def test_a_gate_that_something_keeps_from_starting_gives_up_after_a_while() -> None:
    unpulled = gate(pods=(pod(**waiting("ErrImagePull", "not found")),))
    assert gate_verdict(unpulled, "", NOW + 599.0)[0] == "unknown"
    result, why = gate_verdict(unpulled, "", NOW + 600.0)
    assert (result, why) == ("not_compared", "Pod a, container worker: image vllm:1 cannot be pulled: not found")
    slow = gate(pods=(pod(**waiting("ContainerCreating")),))
    assert gate_verdict(slow, "", NOW + 900.0) == ("unknown", ""), "a large image may take its time"
    again = gate(pods=(pod(**waiting("CrashLoopBackOff"), lastState={"terminated": ended(1)}),))
    assert gate_verdict(again, "", NOW + 900.0)[0] == "unknown", "it has asked, and its Job asks again"


def test_a_gate_whose_pod_is_not_even_made_says_who_may_refuse_it() -> None:
    assert gate_verdict(gate(), "", NOW + 10.0) == ("unknown", "")
    assert "Job chat-gate-new: it may not make a pod, as a quota" in gate_verdict(gate(), "", NOW + 30.0)[1]
    assert gate_verdict(gate(), "", NOW + 601.0)[0] == "not_compared"


def of_job(status: Json | None = None, *, suspend: bool = False, pods: tuple[Json, ...] = ()) -> Gate:
    """The gate of a Job that was made at NOW."""
    labels, when = {GATE: "new"}, timestamp(NOW)
    metadata = {"name": "chat-gate-new", "labels": labels, "annotations": {}, "creationTimestamp": when}
    return read_gate({"metadata": metadata, "spec": {"suspend": suspend}, "status": status or {}}, pods)


@pytest.mark.parametrize(
    "status",
    [{"active": 1, "ready": 1}, {"terminating": 1}, {"failed": 1}, {"uncountedTerminatedPods": {"failed": ["a"]}}],
)
def test_a_gate_whose_pod_is_gone_is_not_given_up_where_its_job_knows_of_it(status: Json) -> None:
    assert gate_verdict(of_job(status), "", NOW + 900.0) == ("unknown", ""), "its node is drained"
    unpulled = {"name": "verify", "image": "vllm:1", **waiting("ErrImagePull", "not found")}
    again = {"metadata": {"name": "b", "uid": "b"}, "status": {"containerStatuses": [unpulled]}}
    assert gate_verdict(of_job(status, pods=(again,)), "", NOW + 900.0)[0] == "unknown", "it has asked before"


def test_a_gate_whose_job_says_nothing_of_pods_is_given_up() -> None:
    nothing = {"active": 0, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {}}
    assert gate_verdict(of_job(nothing), "", NOW + 600.0)[0] == "not_compared"
    assert gate_verdict(of_job({"active": 1}), "", NOW + 30.0) == ("unknown", ""), "its pod is not seen yet"


def test_a_gate_that_a_queue_holds_back_waits_for_it() -> None:
    assert gate_verdict(of_job(suspend=True), "", NOW + 9000.0) == ("unknown", "")
    let_go = of_job({"startTime": timestamp(NOW + 9000.0)})
    assert gate_verdict(let_go, "", NOW + 9010.0) == ("unknown", "")
    assert gate_verdict(let_go, "", NOW + 9600.0)[0] == "not_compared"
