"""KEDA itself, built from its module, scales two pools from zero and back to it under a recorded load.

The load is the first two minutes of the conversations that Azure published in 2023 (AzurePublicDataset, CC-BY 4.0;
P. Patel et al., Splitwise, ISCA 2024) with lengths quartered: 456 requests, at first three and then four per second.
"""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.lab.admin import Admin
from tests.cluster.lab.http import Json
from tests.cluster.lab.keda import METRICS, Keda
from tests.cluster.lab.nodes import log_of
from tests.cluster.scenario.platform import TANDEM, Platform, condition, simulated
from tests.cluster.scenario.timeline import State, Timeline
from tools import cluster_binaries

PROGRAMS = [path for path in map(cluster_binaries.find, ("keda", "keda-adapter")) if path is not None]
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        len(PROGRAMS) < 2, reason="KEDA is not built: python -m tools.cluster_binaries --only keda,keda-adapter"
    ),
]

POOLS = ("prefill", "decode")
REQUESTS = Path(__file__).parent / "data" / "azure_2023_conversations.csv"
REPLAY_S = 300.0
LOOKED_FOR_S = 90.0
"""The operator looks once a minute whether KEDA has been installed."""
SLEEP_S = 120.0
"""30 s without a request, KEDA's cooldown of 15 s, and the time it takes pods to go."""


COUNTED_S = 10.0


@pytest.fixture(scope="module")
def keda(platform: Platform, admin: Admin) -> Iterator[Keda]:
    """KEDA, installed into a cluster that has had the platform before."""
    keda = Keda(admin, PROGRAMS, cluster_binaries.left_by("keda"))
    keda.define()
    keda.install()
    yield keda
    keda.remove()


@pytest.fixture(scope="module")
def sleeper(keda: Keda, platform: Platform) -> Iterator[Platform]:
    """The platform with a service `sleeper`, which may have no workers at all; its steps are those of a 70B model."""
    scaled = {"minReplicas": 0, "maxReplicas": 3, "idleAfterSeconds": 30, "scaleDownStabilizationSeconds": 15}
    changed = {
        "engine": {"type": "simulated", "preset": "a100-llama-2-70b-tp8"},
        "pools": [{"name": role, "role": role, "drainSeconds": 20, "autoscaling": scaled} for role in POOLS],
        "slo": {"ttftMs": 2000, "tpotMs": 48, "percentile": 95},
        "routing": {"maxQueueSeconds": 120},
    }
    platform.apply(simulated("sleeper", changed))
    yield platform
    platform.delete("sleeper")


def test_keda_scales_pools_from_zero_with_the_load_and_back_to_zero(sleeper: Platform, tmp_path: Path) -> None:
    look, active = partial(state_of, sleeper), [f"{pool} active" for pool in POOLS]
    with Timeline(look) as timeline:
        try:
            sleeper.until(lambda: all(is_kept(sleeper, pool) for pool in POOLS), "KEDA is not asked", LOOKED_FOR_S)
            sleeper.until(lambda: has_none(sleeper), "it does not go to sleep", SLEEP_S)
            begun = timeline.now
            report = replayed(sleeper, tmp_path / "report.json")
            ended = timeline.now
            sleeper.until(lambda: has_none(sleeper), "it does not go to sleep again", SLEEP_S)
        finally:
            record(sleeper, f"{timeline}\n")
    record(sleeper, f"load from {begun:.0f} s to {ended:.0f} s: {json.dumps(report)}\n")
    assert report["succeeded"] == report["requests"] == 456, report["errors"]
    assert max(int(state["decode ready"]) for at, state in timeline.moments if begun < at) >= 2
    assert timeline.first(lambda state: all(state[name] == "True" for name in active), begun) is not None
    for pool in POOLS:
        assert condition(scaled_object(sleeper, pool), "Ready") == "True"
        assert condition(scaled_object(sleeper, pool), "Active") == "False"
    counted = partial(all_counted, sleeper)
    sleeper.until(counted, "the pools' statuses still count workers", COUNTED_S)


def all_counted(platform: Platform) -> bool:
    """Whether the statuses say that nobody is left: counts alone are written a second later, all together."""
    return all(engine_pool(platform, pool)["status"]["replicas"] == 0 for pool in POOLS)


def record(platform: Platform, text: str) -> None:
    """Leave it beside the logs of the lab, and in the report of pytest where that is shown (-s, -rP)."""
    with (platform.lab.directory / "keda-timeline.txt").open("a") as file:
        file.write(text)
    sys.stdout.write(text)


def is_kept(platform: Platform, pool: str) -> bool:
    """Whether KEDA has taken the pool on, and the operator says so."""
    conditions = engine_pool(platform, pool).get("status", {}).get("conditions") or ()
    said = [(one["status"], one["reason"]) for one in conditions if one["type"] == "ScalingActive"]
    return condition(scaled_object(platform, pool), "Ready") == "True" and said == [("True", "Keda")]


def has_none(platform: Platform) -> bool:
    """Whether the service has no workers, nor pods on their way out."""
    return not platform.pods(service="sleeper") and all(
        engine_pool(platform, pool)["spec"]["replicas"] == 0 for pool in POOLS
    )


def state_of(platform: Platform) -> State:
    """By pool: whether KEDA takes it to be busy, how many it is told, how many are wanted, how many are ready."""
    state = dict[str, str]()
    for pool in POOLS:
        held = engine_pool(platform, pool)
        known = condition(scaled_object(platform, pool), "Active")
        state[f"{pool} active"] = known or "unknown"
        state[f"{pool} told"] = told(platform, pool) if known else ""
        state[f"{pool} wanted"] = str(held["spec"]["replicas"])
        state[f"{pool} ready"] = str(held.get("status", {}).get("readyReplicas", 0))
    return state


def engine_pool(platform: Platform, pool: str) -> Json:
    return platform.admin.done("GET", f"{TANDEM}/{platform.namespace}/enginepools/sleeper-{pool}")


def scaled_object(platform: Platform, pool: str) -> Json:
    path = f"/apis/keda.sh/v1alpha1/namespaces/{platform.namespace}/scaledobjects/sleeper-{pool}"
    answer = platform.admin.ask("GET", path)
    return answer.body if answer.status == 200 else {}


def told(platform: Platform, pool: str) -> str:
    """What the API server passes on from KEDA to autoscalers, rounded up as they do; "" where there is nothing."""
    version, _, group = METRICS.partition(".")
    metric = f"/apis/{group}/{version}/namespaces/{platform.namespace}/s0-tandem-workers"
    answer = platform.admin.ask("GET", f"{metric}?labelSelector=scaledobject.keda.sh%2Fname%3Dsleeper-{pool}")
    values = [str(item["value"]) for item in answer.body.get("items") or ()]
    return str(math.ceil(sum(map(_amount, values)))) if values else ""


def _amount(quantity: str) -> float:
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


def replayed(platform: Platform, report: Path) -> Json:
    """What `tandem bench` says of the recorded requests, sent to the first router at their own times."""
    load = ("--model", "sleeper", "--csv", str(REQUESTS), "--scale", "0.25", "--json", str(report))
    done = subprocess.run(
        [str(Path(sys.prefix) / "bin" / "tandem"), "bench", "--url", platform.routers()[0], *load],
        capture_output=True,
        text=True,
        timeout=REPLAY_S,
    )
    assert done.returncode == 0, f"{done.stderr[-2000:]}\n{platform.story()}\n{keda_log(platform)}"
    found: Json = json.loads(report.read_text())
    return found


def keda_log(platform: Platform) -> str:
    """The end of what KEDA's operator has printed."""
    pods = platform.admin.items("/api/v1/namespaces/keda/pods", {"app": "keda-operator"})
    return "\n".join(log_of(platform.lab, pod["metadata"]["name"])[-3000:] for pod in pods)
