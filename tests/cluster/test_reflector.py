"""A mirror of a real API server through what happens to servers: restarts, forgotten versions."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from tandem.kube.backoff import Backoff
from tandem.kube.cluster import Expired, Selector
from tandem.kube.kinds import CONFIG_MAP, Json
from tandem.kube.kube_cluster import KubeCluster
from tandem.kube.reflector import Reflector, ReflectorSettings
from tandem.process.system import SystemClock, SystemEntropy
from tests.cluster.lab.admin import Admin
from tests.cluster.lab.lab import Lab

BOUND_S = 60.0
pytestmark = pytest.mark.timeout(300)


def config_map(name: str, namespace: str, value: str = "1") -> Json:
    metadata = {"name": name, "namespace": namespace, "labels": {"of": "mirror"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": value}}


@asynccontextmanager
async def mirror(cluster: KubeCluster, namespace: str, pause_s: float = 0.2) -> AsyncIterator[Reflector]:
    """A reflector that runs, and has its first list."""
    settings = ReflectorSettings(page=2, backoff=Backoff(pause_s, pause_s))
    reflector = Reflector(
        cluster, Selector(CONFIG_MAP, namespace, "of=mirror"), SystemClock(), SystemEntropy(), settings
    )
    task = asyncio.create_task(reflector.run())
    try:
        async with asyncio.timeout(BOUND_S):
            await reflector.synced()
        yield reflector
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], bool], bound_s: float = BOUND_S) -> None:
    async with asyncio.timeout(bound_s):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.05)


def held(reflector: Reflector) -> dict[str, str]:
    return {obj["metadata"]["name"]: obj["data"]["k"] for obj in reflector.store}


async def test_a_mirror_of_many_pages_follows_changes(admin: Admin, cluster: KubeCluster, namespace: str) -> None:
    for number in range(5):
        admin.applied(config_map(f"m-{number}", namespace))
    async with mirror(cluster, namespace) as reflector:
        assert held(reflector) == {f"m-{number}": "1" for number in range(5)}
        admin.applied(config_map("m-0", namespace, "2"))
        admin.done("DELETE", f"/api/v1/namespaces/{namespace}/configmaps/m-1")
        await until(lambda: held(reflector).get("m-0") == "2" and "m-1" not in held(reflector))


async def test_a_mirror_catches_up_after_the_api_server_crashed(
    lab: Lab, admin: Admin, cluster: KubeCluster, namespace: str
) -> None:
    admin.applied(config_map("a", namespace))
    async with mirror(cluster, namespace) as reflector:
        lab.api.stop(9)
        await until(lambda: reflector.last_error is not None)
        assert held(reflector) == {"a": "1"}, "what is known stays known while nobody answers"
        await asyncio.to_thread(lab.start_api)
        admin.applied(config_map("b", namespace))
        await until(lambda: held(reflector) == {"a": "1", "b": "1"})
        assert reflector.last_error is None


async def test_forgotten_versions_have_expired_and_a_mirror_lists_again(
    lab: Lab, admin: Admin, cluster: KubeCluster, namespace: str
) -> None:
    for name in ("a", "b", "c"):
        admin.applied(config_map(name, namespace))
    selector = Selector(CONFIG_MAP, namespace, "of=mirror")
    page = await cluster.list_page(selector, 2)
    assert page.token is not None
    # With a long pause the mirror comes back only when everything below has happened.
    async with mirror(cluster, namespace, pause_s=20.0) as reflector:
        lab.api.stop(9)
        await until(lambda: reflector.last_error is not None)
        await asyncio.to_thread(lab.start_api)
        admin.done("DELETE", f"/api/v1/namespaces/{namespace}/configmaps/a")
        admin.applied(config_map("d", namespace))
        lab.compact()
        await asyncio.to_thread(lab.restart_api)
        with pytest.raises(Expired):
            await cluster.list_page(selector, 2, page.token)
        async with aclosing(cluster.watch(selector, page.version)) as stream, asyncio.timeout(BOUND_S):
            with pytest.raises(Expired):
                await anext(stream)
        await until(lambda: held(reflector) == {"b": "1", "c": "1", "d": "1"}, 120.0)
