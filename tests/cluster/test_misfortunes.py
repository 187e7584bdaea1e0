"""Processes and nodes that go away while clients are served."""

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import pytest

from control_plane.autoscale.model import DecodeFit, PoolSpeed
from control_plane.autoscale.required_replicas import ExpectedSequences, Targets, required_decode
from tandem.spec.rollout import Slo
from tests.cluster.lab.http import Json
from tests.cluster.scenario.load import Heard, Load
from tests.cluster.scenario.platform import Platform, is_ready, simulated, url_of

pytestmark = pytest.mark.timeout(600)
TWICE = {
    "pools": [
        {"name": "prefill", "role": "prefill", "replicas": 2, "drainSeconds": 20},
        {"name": "decode", "role": "decode", "replicas": 2, "drainSeconds": 20},
    ]
}
SLO: Final = {"ttftMs": 3000, "tpotMs": 200, "percentile": 95}
STEP: Final = DecodeFit(base_s=0.06, sequence_s=0.02, seen=8.0)
"""Steps so slow that what this machine adds to them is little."""
TOKENS: Final = 40
ANSWERS: Final = 80
"""Since the loss: enough for the percentile."""


@pytest.fixture(scope="module")
def pair(platform: Platform) -> Iterator[Platform]:
    """A service with two workers of each kind."""
    platform.apply(simulated("pair", TWICE))
    platform.until_ready("pair")
    yield platform
    platform.delete("pair")


def kill(platform: Platform, pod: Json) -> None:
    """At once, as if its machine had lost power: no grace, no hook."""
    path = f"/api/v1/namespaces/{platform.namespace}/pods/{pod['metadata']['name']}"
    platform.admin.done("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})


def revisions(platform: Platform) -> set[str]:
    """Of the pods of the service."""
    return {pod["metadata"]["labels"]["tandem.dev/revision"] for pod in platform.pods(service="pair")}


def whole(platform: Platform) -> bool:
    """All four workers are ready at every router."""
    workers = platform.workers("pair")
    return len(workers) == 4 and all(worker["state"] == "ready" for worker in workers)


def test_operators_that_are_killed_in_the_middle_of_an_update_are_no_matter(pair: Platform) -> None:
    old = pair.get("pair")["status"]["currentRevision"]
    with Load(pair.routers(), "pair") as load:
        load.several()
        pair.apply(simulated("pair", {**TWICE, "engine": {"kvMemory": "96Mi"}}))
        pair.until(lambda: revisions(pair) - {old}, "the update has not begun")
        for operator in pair.pods(component="operator"):
            kill(pair, operator)
        pair.until(lambda: pair.get("pair")["status"]["currentRevision"] != old, "the update has not ended", 180.0)
        pair.until_ready("pair")
        load.several()
    assert load.failures == []
    # The last of the old revision may still drain.
    current = {pair.get("pair")["status"]["currentRevision"]}
    pair.until(lambda: revisions(pair) == current, "pods of the old revision stay", 180.0)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_that_dies_fails_no_request(pair: Platform, role: str) -> None:
    pair.until(lambda: whole(pair), "not all workers are ready")
    with Load(pair.routers(), "pair", clients=6, tokens=60) as load:
        load.several()
        kill(pair, pair.pods(service="pair", role=role)[0])
        load.several(30)
        pair.until(lambda: whole(pair), "its place is not taken")
        load.several()
    assert load.failures == []


def test_a_node_is_drained_without_a_failed_request(pair: Platform) -> None:
    pair.until(lambda: whole(pair), "not all workers are ready")
    routers = {pod["spec"]["nodeName"]: url_of(pod) for pod in pair.pods(component="router")}
    emptied = pair.pods(service="pair", role="decode")[0]["spec"]["nodeName"]
    # Clients of a Service would lose sight of a router that leaves; these ask one that stays.
    staying = [url for node, url in routers.items() if node != emptied]
    assert staying, "both routers are on one node"
    with Load(staying, "pair") as load:
        load.several()
        pair.admin.patch(f"/api/v1/nodes/{emptied}", {"spec": {"unschedulable": True}})
        try:
            pair.until(lambda: not evicted(pair, emptied), f"pods are left on {emptied}", 240.0)
            pair.until(lambda: whole(pair), "the evicted workers are not replaced")
            load.several()
        finally:
            pair.admin.patch(f"/api/v1/nodes/{emptied}", {"spec": {"unschedulable": None}})
    assert load.failures == []
    pair.until(lambda: all(is_ready(pod) for pod in pair.pods()), "not all pods are ready again")


def evicted(platform: Platform, node: str) -> list[str]:
    """Evict, as `kubectl drain` does, what a disruption budget allows now; who is still there."""
    left = [pod["metadata"]["name"] for pod in platform.pods() if pod["spec"].get("nodeName") == node]
    for name in left:
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": platform.namespace},
        }
        answer = platform.admin.ask("POST", f"/api/v1/namespaces/{platform.namespace}/pods/{name}/eviction", eviction)
        assert answer.status in (200, 201, 404, 429, 500), answer
    return left


def target_load(workers: int) -> int:
    """The most sequences at a time for which autoscaling wants no more than so many decode workers."""
    targets, speed = Targets.of(msgspec.convert(SLO, Slo)), PoolSpeed(decode=STEP)

    def wanted(sequences: int) -> float:
        need = required_decode(targets, speed, (sequences, 0.0), ExpectedSequences(float(sequences), 0.0, 1.0))
        assert need is not None
        return need.workers

    return max(number for number in range(1, 100) if wanted(number) <= workers)


def kill_process(pod: Json) -> None:
    """As the kernel does when memory runs out."""
    identity: str = pod["status"]["containerStatuses"][0]["containerID"]
    os.kill(int(identity.removeprefix("process://")), signal.SIGKILL)


def decoding(platform: Platform) -> int:
    """Decode workers of the service that the first router has ready."""
    workers = platform.workers("spared")
    return sum(worker["role"] == "decode" and worker["state"] == "ready" for worker in workers)


def test_one_worker_lost_at_target_load_keeps_the_slo_with_a_spare(platform: Platform) -> None:
    """Three decode workers, one of them spare, under what autoscaling gives to two."""
    step = [("TANDEM_SIMULATED__BASE_S", STEP.base_s), ("TANDEM_SIMULATED__SEQUENCE_S", STEP.sequence_s)]
    env = [{"name": name, "value": str(value)} for name, value in step]
    slow = {"spec": {"containers": [{"name": "worker", "env": env}]}}
    pools = [
        {"name": "prefill", "role": "prefill", "replicas": 2, "drainSeconds": 10},
        {"name": "decode", "role": "decode", "replicas": 3, "spare": 1, "drainSeconds": 10, "template": slow},
    ]
    clients = target_load(2)
    platform.apply(simulated("spared", {"pools": pools, "slo": SLO}))
    try:
        platform.until_ready("spared")
        platform.until(lambda: decoding(platform) == 3, "the router does not see all workers")
        with Load(platform.routers(), "spared", clients=clients, tokens=TOKENS, pause_s=0.0) as load:
            load.several(2 * clients, 120.0)
            began = len(load.heard)
            kill_process(platform.pods(service="spared", role="decode")[0])
            platform.until(lambda: decoding(platform) == 2, "nobody notices", 10.0)
            load.several(ANSWERS, 300.0)
            during = load.heard[began:]
        assert load.failures == []
        held = [each.first_s * 1e3 <= SLO["ttftMs"] and tpot_ms(each) <= SLO["tpotMs"] for each in during]
        first, token = (percentile(times) for times in ([h.first_s * 1e3 for h in during], map(tpot_ms, during)))
        sys.stdout.write(
            f"{clients} clients, {len(during)} answers since the kill: {sum(held) / len(held):.1%} hold the SLO; "
            f"p{SLO['percentile']} TTFT {first:.0f} ms, TPOT {token:.0f} ms\n"
        )
        assert sum(held) >= len(held) * SLO["percentile"] / 100
    finally:
        platform.delete("spared")


def tpot_ms(heard: Heard) -> float:
    """Mean time per token after the first, stalls included."""
    return 1e3 * (heard.whole_s - heard.first_s) / (TOKENS - 1)


def percentile(times: Iterable[float]) -> float:
    """That of the SLO."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, len(ordered) * SLO["percentile"] // 100)]


def alone(name: str, worker: Json | None = None, **spec: Json) -> Json:
    """A service of one worker, whose container and pod are changed so."""
    template = {"spec": {**spec, **({"containers": [{"name": "worker", **worker}]} if worker else {})}}
    pools = [{"name": "both", "role": "unified", "drainSeconds": 10, "template": template}]
    return simulated(name, {"pools": pools})


_LOOKS: Final = 6
MISFORTUNES: Final = {
    "no-config": (
        alone("no-config", {"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k"}}}]}),
        "ContainerNotStarted",
        ("Pod no-config-both-", ", container worker: CreateContainerConfigError: ", "none"),
    ),
    "crashes": (
        alone("crashes", {"env": [{"name": "TANDEM_SIMULATED__BASE_S", "value": "slow"}]}),
        "ContainerCrashes",
        ("Pod crashes-both-", ", container worker: it ended: status ", "base_s"),
    ),
    "no-quota": (
        alone("no-quota", {"resources": {"limits": {"example.com/part": "1"}}}),
        "PodsRefused",
        ("Deployment no-quota-both-", "the API server refuses its pods: forbidden: exceeded quota: parts"),
    ),
    "no-node": (
        alone("no-node", nodeSelector={"example.com/room": "nowhere"}),
        "InsufficientCapacity",
        ("Pod no-node-both-", "no node has room: node(s) didn't match Pod's node affinity/selector"),
    ),
}


def test_what_keeps_workers_from_coming_up_is_told_soon_and_once(platform: Platform) -> None:
    """As kubelet, scheduler, controllers and admission of a real cluster say it."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "parts"}}
    platform.admin.applied({**quota, "spec": {"hard": {"requests.example.com/part": "0"}}}, platform.namespace)
    begun, told_s = time.monotonic(), dict[str, float]()

    def all_told() -> bool:
        for name, (_, reason, words) in MISFORTUNES.items():
            ready = ready_of(platform.get(name))
            if ready.get("reason") == reason and all(word in ready["message"] for word in words):
                told_s.setdefault(name, time.monotonic() - begun)
        return len(told_s) == len(MISFORTUNES)

    try:
        for service, _, _ in MISFORTUNES.values():
            platform.apply(service)
        try:
            platform.until(all_told, "not everything is told", 300.0)
        except AssertionError as error:
            raise AssertionError(f"{error}: {[ready_of(platform.get(name)) for name in MISFORTUNES]}") from error
        sys.stdout.write(f"told after: { {name: round(after_s) for name, after_s in told_s.items()} }\n")
        # What is told last, of a pool or a rollout, may still come on a busy machine.
        assert any(_calm(platform) for _ in range(_LOOKS)), "nothing new is no news"
        events = platform.admin.items(f"/apis/events.k8s.io/v1/namespaces/{platform.namespace}/events")
        for name, (_, reason, _) in MISFORTUNES.items():
            about = [each for each in events if each["regarding"].get("name") == name and each["reason"] == reason]
            assert len(about) == 1, about
    finally:
        for name in MISFORTUNES:
            platform.delete(name)
        path = f"/api/v1/namespaces/{platform.namespace}/resourcequotas/parts"
        platform.admin.ask("DELETE", path)


def _calm(platform: Platform) -> bool:
    """Whether nobody writes to any of these services for ten seconds."""
    before = {name: platform.get(name)["metadata"]["resourceVersion"] for name in MISFORTUNES}
    time.sleep(10.0)
    return all(platform.get(name)["metadata"]["resourceVersion"] == before[name] for name in MISFORTUNES)


def ready_of(service: Json) -> Json:
    """The Ready condition of a service; empty before it has one."""
    stated = (service.get("status") or {}).get("conditions") or ()
    return next((each for each in stated if each["type"] == "Ready"), {})
