"""A store in a cluster: which pods are workers whose blocks it keeps."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from kv_store.pods import ServicePods, address_of, kept
from kv_store.settings import StoreSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.kube.cluster import Cluster
from tandem.kube.kinds import POD, Json, Ref
from tandem.kube.memory_cluster import MemoryCluster
from tandem.process.settings import load_settings
from tandem.process.workers_file import Member
from tests.worlds.loop_clock import LoopClock


def pod(name: str, ip: str | None = "192.0.2.1", *, service: str = "llama", **labels: str) -> Json:
    metadata = {
        "name": name,
        "namespace": "llm",
        "labels": {"tandem.dev/service": service, "tandem.dev/role": "decode", **labels},
        "annotations": {"tandem.dev/link-port": "7400"},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"podIP": ip} if ip else {}}


async def begin(cluster: MemoryCluster, obj: Json) -> None:
    """What the kubelet does with a new pod."""
    await cluster.create(obj)
    await cluster.apply_status(obj, "kubelet")


def test_where_a_pods_worker_listens() -> None:
    assert address_of(pod("a")) == address_of(kept(pod("a"))) == "tcp://192.0.2.1:7400"
    assert address_of(pod("a", "2001:db8::1")) == "tcp://[2001:db8::1]:7400"


def test_pods_that_are_no_workers() -> None:
    ended, leaving, closed, strange = (pod("a") for _ in range(4))
    ended["status"]["phase"] = "Failed"
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    del closed["metadata"]["annotations"]
    strange["metadata"]["annotations"]["tandem.dev/link-port"] = "70000"
    second = pod("a", **{"leaderworkerset.sigs.k8s.io/worker-index": "1"})
    store = pod("a", **{"tandem.dev/role": "store"})
    for each in (ended, leaving, closed, strange, second, store, pod("a", None)):
        assert address_of(each) is None
        assert address_of(kept(each)) is None


def test_members_follow_the_pods_of_the_one_service() -> None:
    told: list[tuple[str, ...]] = []

    def tell(members: Sequence[Member]) -> None:
        told.append(tuple(member.address for member in members))

    async def scenario(loop: VirtualLoop) -> None:
        clock = LoopClock(loop)
        cluster = MemoryCluster(clock)

        async def connect() -> Cluster:
            return cluster

        await begin(cluster, pod("a"))
        await begin(cluster, pod("other", "192.0.2.9", service="qwen"))
        pods = ServicePods(connect, "llm/llama", tell, clock, SeededEntropy(1))
        pods.look()
        running = asyncio.get_running_loop().create_task(pods.run())
        await asyncio.sleep(1.0)
        await begin(cluster, pod("b", "192.0.2.2"))
        await asyncio.sleep(1.0)
        await cluster.delete(Ref(POD, "llm", "a"))
        await asyncio.sleep(1.0)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    run(scenario)
    one, two = "tcp://192.0.2.1:7400", "tcp://192.0.2.2:7400"
    assert told == [(one,), (one, two), (two,)]


async def test_a_cluster_out_of_reach_is_said() -> None:
    async def connect() -> Cluster:
        raise TandemError("bad_setting", "no access to a cluster")

    pods = ServicePods(
        connect, "llm/llama", lambda members: None, LoopClock(asyncio.get_running_loop()), SeededEntropy(1)
    )
    with pytest.raises(TandemError, match="no access"):
        async with asyncio.timeout(60.0):
            await pods.run()


def test_a_store_has_a_file_or_a_service() -> None:
    settings = load_settings(StoreSettings, ["--ticket_key_file=k", "--kubernetes=llm/llama"])
    assert settings.kubernetes == "llm/llama"
    for argv in (
        ["--ticket_key_file=k", "--kubernetes=llama"],
        ["--ticket_key_file=k", "--kubernetes=llm/"],
        ["--ticket_key_file=k", "--kubernetes=llm/llama", "--workers_file=w"],
    ):
        with pytest.raises(TandemError) as problem:
            load_settings(StoreSettings, argv)
        assert problem.value.code == "bad_setting"
