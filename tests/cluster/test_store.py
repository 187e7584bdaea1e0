"""The chart's KV store on a real control plane: found by routers, fed by workers, and gone without harm."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.cluster.scenario.helm import CHARTS, Helm
from tests.cluster.scenario.platform import Platform, is_ready, simulated

pytestmark = pytest.mark.timeout(400)

_RELEASE: Final = ("tandem", str(CHARTS / "tandem"), "--namespace", "tandem", "--wait", "--timeout", "120s")


@pytest.fixture
def kept(platform: Platform, helm: Helm) -> Iterator[Platform]:
    """The platform with a service whose blocks are kept on every node."""
    helm("upgrade", *_RELEASE[:-3], "--set", "kvStore.enabled=true,kvStore.modelService=kept,kvStore.dram=64Mi")
    platform.apply(simulated("kept"))
    platform.until_ready("kept")
    yield platform
    helm("upgrade", *_RELEASE, "--reset-values")
    platform.delete("kept")


def test_a_store_on_each_node_keeps_what_workers_have(kept: Platform) -> None:
    stores = kept.pods(component="kv-store")
    assert len(stores) == 2, "one on each node"
    kept.until(lambda: all(is_ready(pod) for pod in kept.pods(component="kv-store")), "a store is not ready")

    def known() -> bool:
        return len([worker for worker in kept.workers("kept") if worker["role"] == "store"]) == 2

    kept.until(known, "routers do not know both stores")
    answer = kept.ask("kept", tokens=16)
    assert answer.status == 200, answer
    # The service is in the state that it was asked for: what is no worker of its pools is not counted as one.
    status = kept.get("kept")["status"]
    assert {pool["name"]: pool["readyReplicas"] for pool in status["pools"]} == {"prefill": 1, "decode": 1}
