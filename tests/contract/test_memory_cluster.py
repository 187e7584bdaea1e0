"""The cluster contract, kept by the one in memory, and the misfortunes that only it can bring about."""

from contextlib import aclosing

import pytest

from tandem.core.errors import TandemError
from tandem.kube.cluster import Conflict, Expired, NotFound, Selector
from tandem.kube.kinds import CONFIG_MAP, DEPLOYMENT
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


def restored(cluster: MemoryCluster) -> ClusterStage:
    """The stage of another process to which the cluster was brought as bytes."""
    other = MemoryCluster(SystemClock())
    other.restore(cluster.dump())
    return ClusterStage(other, "test", collects_garbage=True)


class TestRestoring:
    async def test_objects_are_as_they_were(self, stage: ClusterStage) -> None:
        cluster = stage.cluster
        assert isinstance(cluster, MemoryCluster)
        await cluster.apply(stage.deployment("d", 2), "a")
        await cluster.apply(stage.config_map("empty", {}, labels={"of": "dump"}), "a")
        await cluster.apply_status({**stage.deployment("d", 2), "status": {"conditions": [{"type": "A"}]}}, "s")
        after = restored(cluster).cluster
        assert isinstance(after, MemoryCluster)
        for kind in (DEPLOYMENT, CONFIG_MAP):
            assert after.objects(kind) == cluster.objects(kind)

    async def test_an_apply_that_changes_nothing_still_changes_nothing(self, stage: ClusterStage) -> None:
        cluster = stage.cluster
        assert isinstance(cluster, MemoryCluster)
        before = await cluster.apply(stage.deployment("d", 2), "a")
        again = await restored(cluster).cluster.apply(stage.deployment("d", 2), "a")
        assert again == before

    async def test_managers_keep_their_fields(self, stage: ClusterStage) -> None:
        cluster = stage.cluster
        assert isinstance(cluster, MemoryCluster)
        await cluster.apply(stage.config_map("m", {"mine": "1", "too": "1"}), "a")
        await cluster.apply(stage.config_map("m", {"theirs": "1"}), "b")
        after = restored(cluster)
        with pytest.raises(Conflict):
            await after.cluster.apply(stage.config_map("m", {"mine": "2"}), "b", force=False)
        left = await after.cluster.apply(stage.config_map("m", {"mine": "1"}), "a")
        assert left["data"] == {"mine": "1", "theirs": "1"}

    async def test_watches_from_before_have_expired_and_new_ones_go_on_from_a_list(self, stage: ClusterStage) -> None:
        cluster = stage.cluster
        assert isinstance(cluster, MemoryCluster)
        await cluster.create(stage.config_map("a", {}))
        after = restored(cluster)
        for _ in range(3):
            # Written after the dump, and lost.
            await cluster.create(stage.config_map(f"lost-{_}", {}))
        assert isinstance(after.cluster, MemoryCluster)
        selector = Selector(CONFIG_MAP, stage.namespace)
        for version in ("1", "2", cluster.version, str(int(after.cluster.version) + 1)):
            async with aclosing(after.cluster.watch(selector, version)) as stream:
                with pytest.raises(Expired):
                    await following(stream)
        page = await after.cluster.list_page(selector, 10)
        made = await after.cluster.create(stage.config_map("b", {}))
        async with aclosing(after.cluster.watch(selector, page.version)) as stream:
            assert (await following(stream)).object == made

    async def test_no_uid_is_given_twice(self, stage: ClusterStage) -> None:
        cluster = stage.cluster
        assert isinstance(cluster, MemoryCluster)
        await cluster.create(stage.config_map("a", {}))
        after = restored(cluster)
        lost = await cluster.create(stage.config_map("lost", {}))
        new = await after.cluster.create(stage.config_map("new", {}))
        assert new["metadata"]["uid"] != lost["metadata"]["uid"]

    async def test_dependents_go_with_an_owner_from_before(self, stage: ClusterStage) -> None:
        cluster = stage.cluster
        assert isinstance(cluster, MemoryCluster)
        owner = await cluster.create(stage.config_map("owner", {}))
        named = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        await cluster.apply(stage.config_map("child", {}, ownerReferences=[named]), "a")
        after = restored(cluster)
        await after.cluster.delete(after.ref("owner"))
        with pytest.raises(NotFound):
            await after.cluster.get(after.ref("child"))

    def test_what_is_no_dump_is_refused(self) -> None:
        for dump in (b"", b"nothing", b"\x81\xa6format\x09"):
            with pytest.raises(TandemError, match="state of the cluster"):
                MemoryCluster(SystemClock()).restore(dump)
