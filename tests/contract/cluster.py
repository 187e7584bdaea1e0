"""What every `Cluster` promises: the in-memory one, and a real API server where there is one.

A stage gives the cluster, a namespace of the test's own, and whether dependents are collected (a bare API server has
no garbage collector). The classes are collected where a test module imports them and has a fixture `stage`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import pytest

from tandem.kube.cluster import Cluster, Conflict, NotFound, Selector, WatchEvent
from tandem.kube.kinds import CONFIG_MAP, DEPLOYMENT, Json, Kind, Ref

WAIT_S = 20.0


@dataclass(frozen=True)
class ClusterStage:
    """One implementation under test."""

    cluster: Cluster
    namespace: str
    collects_garbage: bool

    def ref(self, name: str, kind: Kind = CONFIG_MAP) -> Ref:
        return Ref(kind, self.namespace, name)

    def config_map(self, name: str, data: dict[str, str], **metadata: object) -> Json:
        named = {"name": name, "namespace": self.namespace, **metadata}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": data}

    def deployment(self, name: str, replicas: int | None, image: str = "tandem:1") -> Json:
        labels = {"app": name}
        container = {"name": "main", "image": image}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        spec: Json = {"selector": {"matchLabels": labels}, "template": template}
        if replicas is not None:
            spec["replicas"] = replicas
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


async def following(stream: AsyncGenerator[WatchEvent, None]) -> WatchEvent:
    """The next event that is no bookmark."""
    async with asyncio.timeout(WAIT_S):
        while True:
            event = await anext(stream)
            if event.type != "bookmark":
                return event


class TestReading:
    async def test_pages_make_up_the_whole_list(self, stage: ClusterStage) -> None:
        names = [f"page-{number}" for number in range(5)]
        for name in names:
            await stage.cluster.apply(stage.config_map(name, {}, labels={"of": "pages"}), "a")
        selector, found, token = Selector(CONFIG_MAP, stage.namespace, "of=pages"), [], None
        for _ in range(3):
            page = await stage.cluster.list_page(selector, 2, token)
            assert len(page.items) <= 2
            found += [item["metadata"]["name"] for item in page.items]
            token = page.token
        assert token is None
        assert found == names

    async def test_what_is_not_there_is_not_found(self, stage: ClusterStage) -> None:
        with pytest.raises(NotFound):
            await stage.cluster.get(stage.ref("nobody"))
        with pytest.raises(NotFound):
            await stage.cluster.delete(stage.ref("nobody"))

    async def test_a_watch_goes_on_from_the_list(self, stage: ClusterStage) -> None:
        selector = Selector(CONFIG_MAP, stage.namespace, "of=watch")
        page = await stage.cluster.list_page(selector, 10)
        async with aclosing(stage.cluster.watch(selector, page.version)) as stream:
            await stage.cluster.apply(stage.config_map("w", {"k": "1"}, labels={"of": "watch"}), "a")
            added = await following(stream)
            assert (added.type, added.object["data"]) == ("added", {"k": "1"})
            await stage.cluster.apply(stage.config_map("w", {"k": "2"}, labels={"of": "watch"}), "a")
            assert (await following(stream)).object["data"] == {"k": "2"}
            await stage.cluster.delete(stage.ref("w"))
            assert (await following(stream)).type == "deleted"

    async def test_losing_its_label_deletes_an_object_from_a_watch(self, stage: ClusterStage) -> None:
        selector = Selector(CONFIG_MAP, stage.namespace, "of=leaving")
        await stage.cluster.apply(stage.config_map("l", {}, labels={"of": "leaving"}), "a")
        page = await stage.cluster.list_page(selector, 10)
        async with aclosing(stage.cluster.watch(selector, page.version)) as stream:
            await stage.cluster.apply(stage.config_map("l", {}), "a")
            assert (await following(stream)).type == "deleted"


class TestApplying:
    async def test_what_a_manager_leaves_out_goes_and_the_rest_stays(self, stage: ClusterStage) -> None:
        await stage.cluster.apply(stage.config_map("m", {"mine": "1", "too": "1"}), "a")
        await stage.cluster.apply(stage.config_map("m", {"theirs": "1"}), "b")
        left = await stage.cluster.apply(stage.config_map("m", {"mine": "2"}), "a")
        assert left["data"] == {"mine": "2", "theirs": "1"}

    async def test_a_field_of_another_manager_is_a_conflict_without_force(self, stage: ClusterStage) -> None:
        await stage.cluster.apply(stage.config_map("c", {"k": "1"}), "a")
        await stage.cluster.apply(stage.config_map("c", {"k": "1"}), "b", force=False)
        with pytest.raises(Conflict):
            await stage.cluster.apply(stage.config_map("c", {"k": "2"}), "b", force=False)
        forced = await stage.cluster.apply(stage.config_map("c", {"k": "2"}), "b")
        assert forced["data"] == {"k": "2"}

    async def test_an_apply_that_changes_nothing_keeps_the_version(self, stage: ClusterStage) -> None:
        first = await stage.cluster.apply(stage.config_map("n", {"k": "1"}), "a")
        again = await stage.cluster.apply(stage.config_map("n", {"k": "1"}), "a")
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]

    async def test_scaled_replicas_survive_an_apply_that_does_not_name_them(self, stage: ClusterStage) -> None:
        ref = stage.ref("d", DEPLOYMENT)
        await stage.cluster.apply(stage.deployment("d", None), "a")
        await stage.cluster.scale(ref, 4)
        applied = await stage.cluster.apply(stage.deployment("d", None, image="tandem:2"), "a")
        assert applied["spec"]["replicas"] == 4
        assert applied["spec"]["template"]["spec"]["containers"][0]["image"] == "tandem:2"

    async def test_generation_counts_changes_of_the_spec_alone(self, stage: ClusterStage) -> None:
        first = await stage.cluster.apply(stage.deployment("g", 1), "a")
        ref = stage.ref("g", DEPLOYMENT)
        status = {"status": {"observedGeneration": 1}}
        named = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "g", "namespace": stage.namespace},
        }
        reported = await stage.cluster.apply_status({**named, **status}, "s")
        assert reported["status"]["observedGeneration"] == 1
        assert reported["metadata"]["generation"] == first["metadata"]["generation"] == 1
        await stage.cluster.scale(ref, 2)
        assert (await stage.cluster.get(ref))["metadata"]["generation"] == 2

    async def test_an_apply_for_another_uid_is_a_conflict(self, stage: ClusterStage) -> None:
        made = await stage.cluster.apply(stage.config_map("u", {}), "a")
        await stage.cluster.delete(stage.ref("u"))
        with pytest.raises(Conflict):
            await stage.cluster.apply(stage.config_map("u", {}, uid=made["metadata"]["uid"]), "a")

    async def test_a_status_of_nothing_is_not_found(self, stage: ClusterStage) -> None:
        metadata = {"name": "nobody", "namespace": stage.namespace}
        nobody = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "status": {"replicas": 1}}
        with pytest.raises(NotFound):
            await stage.cluster.apply_status(nobody, "s")


class TestReplacingAndDeleting:
    async def test_creating_twice_is_a_conflict(self, stage: ClusterStage) -> None:
        await stage.cluster.create(stage.config_map("t", {}))
        with pytest.raises(Conflict):
            await stage.cluster.create(stage.config_map("t", {}))

    async def test_of_two_updates_of_one_version_the_second_is_a_conflict(self, stage: ClusterStage) -> None:
        made = await stage.cluster.create(stage.config_map("r", {"k": "1"}))
        updated = await stage.cluster.update({**made, "data": {"k": "2"}})
        assert updated["data"] == {"k": "2"}
        with pytest.raises(Conflict):
            await stage.cluster.update({**made, "data": {"k": "3"}})

    async def test_preconditions_of_a_delete_are_kept(self, stage: ClusterStage) -> None:
        made = await stage.cluster.create(stage.config_map("p", {"k": "1"}))
        with pytest.raises(Conflict):
            await stage.cluster.delete(stage.ref("p"), uid="another")
        await stage.cluster.delete(stage.ref("p"), uid=made["metadata"]["uid"])

    async def test_an_object_with_a_finalizer_waits_for_it(self, stage: ClusterStage) -> None:
        ref = stage.ref("f")
        await stage.cluster.apply(stage.config_map("f", {}, finalizers=["tandem.dev/test"]), "a")
        await stage.cluster.delete(ref)
        assert (await stage.cluster.get(ref))["metadata"]["deletionTimestamp"]
        await stage.cluster.apply(stage.config_map("f", {}), "a")
        with pytest.raises(NotFound):
            await stage.cluster.get(ref)

    async def test_dependents_go_with_their_owner(self, stage: ClusterStage) -> None:
        if not stage.collects_garbage:
            pytest.skip("no garbage collector runs here")
        owner = await stage.cluster.create(stage.config_map("owner", {}))
        named = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        await stage.cluster.apply(stage.config_map("child", {}, ownerReferences=[named]), "a")
        await stage.cluster.delete(stage.ref("owner"))
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    await stage.cluster.get(stage.ref("child"))
                except NotFound:
                    return
                await asyncio.sleep(0.05)
