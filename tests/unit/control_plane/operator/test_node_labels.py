"""What nodes tell of their accelerators is read again and again, and what may not be read is not missed."""

import asyncio

from control_plane.operator.node_labels import NodeLabels
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.errors import TandemError
from tandem.kube.cluster import Page, Selector
from tandem.kube.kinds import NODE, Json
from tandem.kube.memory_cluster import MemoryCluster

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-PCIe", "nvidia.com/gpu.memory": "81559"}
MI300X = {"amd.com/gpu.vram": "192G", "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}
_MORE_S = 601.0


class Guarded(MemoryCluster):
    """A cluster whose nodes may be read while `open`, with a small page."""

    open = True

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        if selector.kind == NODE and not self.open:
            raise TandemError("not_allowed", "list nodes: forbidden")
        return await super().list_page(selector, min(limit, 2), token)


def node(name: str, labels: dict[str, str]) -> Json:
    told = {**labels, "kubernetes.io/hostname": name, "zone": "a"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": told}}


def test_each_kind_of_node_is_known_once_and_changes_are_told() -> None:
    changes = []

    async def main(loop: VirtualLoop) -> None:
        cluster = Guarded(LoopClock(loop))
        for number in range(5):
            await cluster.create(node(f"h{number}", {**H100, "tier": "big"}))
        await cluster.create(node("m", MI300X))
        await cluster.create(node("cpu", {}))
        labels = NodeLabels(cluster, "tier", lambda: changes.append(1))
        reading = asyncio.create_task(labels.run())
        await asyncio.sleep(1.0)
        assert sorted(map(len, labels.known)) == [2, 3]
        assert {**H100, "tier": "big"} in labels.known
        assert MI300X in labels.known
        await asyncio.sleep(_MORE_S)
        assert len(changes) == 1, "nothing is told anew while nothing changes"
        # What was known is kept while nodes may not be read.
        cluster.open = False
        await asyncio.sleep(_MORE_S)
        assert len(labels.known) == 2
        cluster.open = True
        await cluster.create(node("t", {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}))
        await asyncio.sleep(_MORE_S)
        assert len(labels.known) == 3
        assert len(changes) == 2
        reading.cancel()

    run(main)


def test_an_operator_that_may_not_read_nodes_knows_nothing_of_them_and_goes_on() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Guarded(LoopClock(loop))
        cluster.open = False
        await cluster.create(node("h", H100))
        labels = NodeLabels(cluster, None, lambda: None)
        reading = asyncio.create_task(labels.run())
        await asyncio.sleep(_MORE_S)
        assert labels.known == ()
        assert not reading.done()
        reading.cancel()

    run(main)
