"""The API server that memory is measured with: an operator sees of it what it sees of a real one."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from benchmarks.discovery import pod
from benchmarks.object_server import ObjectServer
from benchmarks.operator_cluster import KeepingCluster
from tandem.kube.cluster import Expired, NotFound, Selector
from tandem.kube.kinds import CONFIG_MAP, CUSTOM_RESOURCE, POD, SCALED_OBJECT, Json, Ref
from tandem.kube.kube_cluster import connect


def config_map(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "n"}, "data": {}}


async def test_objects_are_listed_in_pages_watched_written_and_expire(tmp_path: Path) -> None:
    kept = KeepingCluster(frozenset({SCALED_OBJECT}))
    for number in range(3):
        kept.submit(pod(number, 0))
    server = ObjectServer(kept)
    async with server.kubeconfig(tmp_path) as kubeconfig:
        cluster = await connect(kubeconfig)
        first = await cluster.list_page(Selector(POD, None, "app.kubernetes.io/managed-by=tandem"), 2)
        rest = await cluster.list_page(Selector(POD, None), 2, first.token)
        assert (len(first.items), len(rest.items), rest.token, server.lists) == (2, 1, None, 1)
        assert first.items[0]["metadata"]["managedFields"]
        assert first.items[0]["status"]["phase"] == "Running"
        with pytest.raises(NotFound):
            await cluster.list_page(Selector(SCALED_OBJECT), 2)
        assert (await cluster.get(Ref(CUSTOM_RESOURCE, "", "modelservices.tandem.dev")))["kind"]
        async with aclosing(cluster.watch(Selector(CONFIG_MAP, "n"), "1")) as stream:
            coming = asyncio.ensure_future(anext(stream))
            for number in range(1000):  # A watch begins when the server has taken the request.
                await cluster.apply(config_map(f"map-{number}"), "test")
                await asyncio.sleep(0.02)
                if coming.done():
                    break
            event = await coming
            assert (event.type, event.object["kind"]) == ("added", "ConfigMap")
            server.expire()
            with pytest.raises(Expired):
                async for _ in stream:
                    pass
        await cluster.close()
