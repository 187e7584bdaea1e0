"""The cluster contract, kept by the one in memory, and the misfortunes that only it can bring about."""

from contextlib import aclosing

import pytest

from tandem.kube.cluster import Expired, Selector
from tandem.kube.kinds import CONFIG_MAP
from tandem.kube.memory_cluster import MemoryCluster
from tandem.process.system import SystemClock
from tests.contract.cluster import ClusterStage, TestApplying, TestReading, TestReplacingAndDeleting, following

__all__ = ["TestApplying", "TestReading", "TestReplacingAndDeleting"]


@pytest.fixture
def stage() -> ClusterStage:
    return ClusterStage(MemoryCluster(SystemClock()), "test", collects_garbage=True)


async def test_versions_before_a_compaction_have_expired(stage: ClusterStage) -> None:
    cluster = stage.cluster
    assert isinstance(cluster, MemoryCluster)
    for name in ("a", "b", "c"):
        await cluster.create(stage.config_map(name, {}))
    selector = Selector(CONFIG_MAP, stage.namespace)
    page = await cluster.list_page(selector, 2)
    await cluster.create(stage.config_map("d", {}))
    cluster.compact()
    with pytest.raises(Expired):
        await cluster.list_page(selector, 2, page.token)
    async with aclosing(cluster.watch(selector, page.version)) as stream:
        with pytest.raises(Expired):
            await following(stream)


async def test_bookmarks_tell_a_watch_how_far_it_is(stage: ClusterStage) -> None:
    cluster = stage.cluster
    assert isinstance(cluster, MemoryCluster)
    async with aclosing(cluster.watch(Selector(CONFIG_MAP), "1")) as stream:
        made = await cluster.create(stage.config_map("a", {}))
        await following(stream)
        cluster.bookmark()
        # A bookmark sent before the stream waits is not for it, so one change brings it along.
        cluster.disconnect()
        events = [event async for event in stream]
    assert all(event.type == "bookmark" for event in events)
    assert made["metadata"]["resourceVersion"] == "2"
