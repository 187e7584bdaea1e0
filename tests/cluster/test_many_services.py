"""Many services on a real control plane: how long until all are settled, and what that and peace cost."""

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.scenario.platform import TANDEM, Platform, condition, simulated

_ASLEEP = {"pools": [{"name": "all", "role": "unified", "replicas": 0}]}
_REQUESTS = "apiserver_request_total{"
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
_MADE = (
    "modelservices",
    "enginepools",
    "deployments",
    "services",
    "poddisruptionbudgets",
    "configmaps",
    "controllerrevisions",
    "events",
)
EACH = 7
"""The user's ModelService, EnginePool, Service, PodDisruptionBudget and ControllerRevision, and two statuses."""

_CONTROLLERS = (
    ("PUT", "poddisruptionbudgets", "status"),
    ("PUT", "deployments", "status"),
    ("POST", "events", ""),
    ("PATCH", "events", ""),
)
"""What Kubernetes's own controllers write about the same objects: a budget's status, and that it matches no pod. The
operator applies its Events."""

Writes = Counter[tuple[str, str, str]]
"""Requests by verb, resource and subresource."""


@pytest.fixture
def many(platform: Platform, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Names of services without a pod; they are gone afterwards."""
    names = [f"m-{number}" for number in range(request.param)]
    yield names
    collection = f"{TANDEM}/{platform.namespace}/modelservices"
    for name in names:
        platform.admin.ask("DELETE", f"{collection}/{name}")


def writes_told(metrics: str) -> Writes:
    """The requests that wrote an object of the kinds that are made for a service, as an API server counts them."""
    found: Writes = Counter()
    for line in metrics.splitlines():
        if not line.startswith(_REQUESTS):
            continue
        head, _, count = line.rpartition("} ")
        label = dict(_LABEL.findall(head))
        if label["verb"] in _WRITES and label["resource"] in _MADE:
            found[label["verb"], label["resource"], label["subresource"]] += round(float(count))
    return found


def writes(platform: Platform) -> Writes:
    """Those so far, by anyone."""
    return writes_told(platform.admin.ask("GET", "/metrics").body["text"])


def operators(platform: Platform) -> dict[int, tuple[float, float]]:
    """Processor seconds and MiB of resident memory of each operator, by process."""
    used = {}
    for pod in platform.pods(component="operator"):
        pid = int(pod["status"]["containerStatuses"][0]["containerID"].removeprefix("process://"))
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        used[pid] = seconds, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return used


def test_writes_are_told_apart_by_verb_and_subresource() -> None:
    label = 'code="200",group="tandem.dev",resource="modelservices",scope="resource"'
    told = writes_told(
        f'apiserver_request_total{{{label},subresource="status",verb="APPLY",version="v1alpha1"}} 2\n'
        f'apiserver_request_total{{{label},subresource="",verb="APPLY",version="v1alpha1"}} 1e+02\n'
        f'apiserver_request_total{{{label},subresource="",verb="LIST",version="v1alpha1"}} 9\n'
        'apiserver_request_total{code="201",resource="leases",subresource="",verb="POST"} 9\n'
    )
    assert told == {("APPLY", "modelservices", "status"): 2, ("APPLY", "modelservices", ""): 100}


@pytest.mark.parametrize(
    ("many", "calm_s"),
    [
        pytest.param(12, 6.0, id="a dozen"),
        pytest.param(1000, 30.0, id="a thousand", marks=[pytest.mark.long, pytest.mark.timeout(1500)]),
    ],
    indirect=["many"],
)
def test_many_services_settle_and_then_nothing_is_written(platform: Platform, many: list[str], calm_s: float) -> None:
    before, processors = writes(platform), operators(platform)
    begun = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: platform.apply(simulated(name, _ASLEEP)), many))
    applied_s = time.monotonic() - begun
    collection = f"{TANDEM}/{platform.namespace}/modelservices"

    def settled() -> bool:
        services = [one for one in platform.admin.items(collection) if one["metadata"]["name"] in set(many)]
        return len(services) == len(many) and all(condition(one, "Reconciling") == "False" for one in services)

    platform.until(settled, "not all services are settled", 900.0)
    took_s = time.monotonic() - begun
    # The last status may be followed by its Event, and by those of its pools.
    time.sleep(min(20.0, calm_s))
    written = writes(platform) - before
    told = written["APPLY", "events", ""]
    # What is deleted is of services of an earlier test.
    ours = {each: count for each, count in written.items() if each not in _CONTROLLERS and each[0] != "DELETE"}
    others = sum(ours.values()) - told
    after = operators(platform)
    cost = {pid: (seconds - processors.get(pid, (0.0, 0.0))[0], memory) for pid, (seconds, memory) in after.items()}
    sys.stdout.write(
        f"{len(many)} services: applied in {applied_s:.0f} s, settled after {took_s:.0f} s, "
        f"{others / len(many):.2f} writes and {told / len(many):.2f} Events each; operators (processor s, MiB): "
        + ", ".join(f"{seconds:.0f}, {memory:.0f}" for seconds, memory in cost.values())
        + "\n"
    )
    assert others <= EACH * len(many), written
    assert told <= len(many), written
    calm = writes(platform)
    time.sleep(calm_s)
    assert writes(platform) == calm, "something writes although nothing changes"


def test_a_storm_of_statuses_would_be_seen(platform: Platform) -> None:
    service = platform.apply(simulated("stormy", _ASLEEP))
    path = f"{TANDEM}/{platform.namespace}/modelservices/stormy/status?fieldManager=storm"
    status = {"conditions": [], "observedGeneration": 1, "url": "http://nowhere"}
    before = writes(platform)
    platform.admin.patch(path, {"metadata": {"uid": service["metadata"]["uid"]}, "status": status})
    assert (writes(platform) - before)["PATCH", "modelservices", "status"] == 1
    platform.delete("stormy")
