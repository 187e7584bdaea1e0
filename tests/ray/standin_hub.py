"""A stand-in for the hub: it keeps the ticket key and makes Pods of reports, and decides nothing."""

import asyncio
import secrets
from typing import Any

from tandem.apps.ray.hub_client import HUB, NAMESPACE
from tandem.apps.ray.serving import Orders, RouterTold, WorkerTold
from tandem.kube.cluster import Page, Selector, WatchEvent
from tandem.kube.kinds import Json
from tandem.kube.memory_cluster import MemoryCluster
from tandem.link.address import split_host
from tandem.process.system import SystemClock

OURS = "ray"


class StandInHub:
    """One service, one revision, and what replicas report."""

    async def __init__(self, service: Json, revision: str) -> None:  # type: ignore[misc]  # Ray awaits it
        self._cluster = MemoryCluster(SystemClock())
        self._key = secrets.token_hex(32)
        self._told: dict[str, WorkerTold] = {}
        self._routers: dict[str, RouterTold] = {}
        await self._cluster.apply(service, "user")
        named = {"name": service["metadata"]["name"], "namespace": service["metadata"]["namespace"]}
        status = {"currentRevision": revision, "revisions": [{"name": revision, "weight": 100}]}
        kinds = {key: service[key] for key in ("apiVersion", "kind")}
        await self._cluster.apply_status({**kinds, "metadata": named, "status": status}, "operator")

    async def key(self) -> str:
        return self._key

    async def report(self, told: WorkerTold) -> Orders:
        self._told[told.name] = told
        if told.address:
            await self._show(told)
        return Orders(1)

    async def _show(self, told: WorkerTold) -> None:
        host, port = split_host(told.address)
        labels = {"service": told.service, "pool": told.pool, "role": told.role, "revision": told.revision}
        metadata: Json = {
            "name": told.name,
            "namespace": OURS,
            "labels": {
                "app.kubernetes.io/managed-by": "tandem",
                **{f"tandem.dev/{key}": value for key, value in labels.items()},
            },
            "annotations": {"tandem.dev/link-port": str(port)},
        }
        pod = {"apiVersion": "v1", "kind": "Pod"}
        ready = {"type": "Ready", "status": "True" if told.ready and not told.gone else "False"}
        await self._cluster.apply({**pod, "metadata": metadata}, "kubelet")
        named = {"name": told.name, "namespace": OURS}
        status = {"phase": "Running", "podIP": host, "conditions": [ready]}
        await self._cluster.apply_status({**pod, "metadata": named, "status": status}, "kubelet")

    async def router(self, told: RouterTold) -> None:
        self._routers[told.name] = told

    async def told(self) -> tuple[list[WorkerTold], list[RouterTold]]:
        return list(self._told.values()), list(self._routers.values())

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        return await self._cluster.list_page(selector, limit, token)

    async def changes(self, selector: Selector, version: str, wait_s: float) -> tuple[WatchEvent, ...]:
        stream = self._cluster.watch(selector, version)
        try:
            async with asyncio.timeout(wait_s):
                return (await anext(stream),)
        except TimeoutError:
            return ()
        finally:
            await stream.aclose()


def make_standin(service: Json, revision: str) -> Any:
    import ray

    options = {"name": HUB, "namespace": NAMESPACE, "num_cpus": 0, "max_concurrency": 100}
    return ray.remote(StandInHub).options(**options).remote(service, revision)
