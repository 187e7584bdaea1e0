"""A thousand services on a real control plane: how long until all are settled, and what that and peace cost."""

import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.scenario.platform import TANDEM, Platform, condition, simulated

SERVICES = 1000
_ASLEEP = {"pools": [{"name": "all", "role": "unified", "replicas": 0}]}
_REQUESTS = re.compile(r'^apiserver_request_total\{.*resource="(\w+)".*verb="(\w+)".*\} ([0-9.e+]+)$')
_WRITES = ("POST", "PUT", "PATCH", "APPLY")
_MADE = ("modelservices", "enginepools", "deployments", "services", "poddisruptionbudgets", "configmaps")
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.fixture
def many(platform: Platform) -> Iterator[list[str]]:
    """Names of services without a pod; they are gone afterwards."""
    names = [f"m-{number}" for number in range(SERVICES)]
    yield names
    collection = f"{TANDEM}/{platform.namespace}/modelservices"
    for name in names:
        platform.admin.ask("DELETE", f"{collection}/{name}")


def writes(platform: Platform) -> float:
    """Requests so far that wrote an object of the kinds that are made for a service, by anyone."""
    total = 0.0
    for line in platform.admin.ask("GET", "/metrics").body["text"].splitlines():
        found = _REQUESTS.match(line)
        if found and found[1] in _MADE and found[2] in _WRITES:
            total += float(found[3])
    return total


def operators(platform: Platform) -> dict[int, tuple[float, float]]:
    """Processor seconds and MiB of resident memory of each operator, by process."""
    used = {}
    for pod in platform.pods(component="operator"):
        pid = int(pod["status"]["containerStatuses"][0]["containerID"].removeprefix("process://"))
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        used[pid] = seconds, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return used


def test_a_thousand_services_settle_and_then_nothing_is_written(platform: Platform, many: list[str]) -> None:
    before, processors = writes(platform), operators(platform)
    begun = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: platform.apply(simulated(name, _ASLEEP)), many))
    applied_s = time.monotonic() - begun
    collection = f"{TANDEM}/{platform.namespace}/modelservices"

    def settled() -> bool:
        services = [one for one in platform.admin.items(collection) if one["metadata"]["name"] in set(many)]
        return len(services) == SERVICES and all(condition(one, "Reconciling") == "False" for one in services)

    platform.until(settled, "not all services are settled", 900.0)
    took_s, written = time.monotonic() - begun, writes(platform) - before
    after = operators(platform)
    cost = {pid: (seconds - processors.get(pid, (0.0, 0.0))[0], memory) for pid, (seconds, memory) in after.items()}
    sys.stdout.write(
        f"{SERVICES} services: applied in {applied_s:.0f} s, settled after {took_s:.0f} s, "
        f"{written / SERVICES:.1f} writes each; operators (processor s, MiB): "
        + ", ".join(f"{seconds:.0f}, {memory:.0f}" for seconds, memory in cost.values())
        + "\n"
    )
    time.sleep(20.0)
    calm = writes(platform)
    time.sleep(30.0)
    assert writes(platform) == calm, "something writes although nothing changes"
