"""Serve is shut down by somebody who knows nothing of Tandem: workers end, and the hub after them."""

import asyncio

import msgspec
import psutil

from tandem.apps.client.http import Target
from tandem.apps.ray.hub_client import HUB, NAMESPACE
from tandem.apps.ray.hub_store import STATE, HubState
from tandem.apps.ray.serving import ROUTERS
from tandem.spec.service import ModelService
from tests.ray.asking import answered, eventually
from tests.ray.conftest import HTTP_PORT, RayStage, begin_serve

SERVICE = {
    "apiVersion": "tandem.dev/v1alpha1",
    "kind": "ModelService",
    "metadata": {"name": "brief"},
    "spec": {
        "model": {"source": "demo", "name": "brief"},
        "engine": {"type": "simulated"},
        "pools": [{"name": "all", "role": "unified", "replicas": 2, "drainSeconds": 2}],
    },
}


async def test_the_hub_ends_after_serve_was_shut_down(ray_stage: RayStage) -> None:
    import ray
    from ray import serve

    from tandem.apps.ray.application import router_application
    from tandem.apps.ray.hub_actor import make_hub
    from tandem.apps.ray.hub_client import hub_of_this_cluster
    from tandem.apps.ray.options import RaySettings
    from tandem.apps.ray.router_replica import RouterPlan

    make_hub(RaySettings())
    hub = hub_of_this_cluster()
    await hub.call("want", msgspec.convert(SERVICE, ModelService), within_s=30)
    await asyncio.to_thread(serve.run, router_application(RouterPlan(drain_s=1.0), 1), name=ROUTERS)
    await answered(Target("127.0.0.1", HTTP_PORT, False, ""), "brief", "hello", 3)
    pids = [each.pid for each in (await hub.call("entry")).members]
    await eventually(_routers_seen)
    await asyncio.to_thread(serve.shutdown)
    try:

        async def gone() -> bool:
            try:
                ray.get_actor(HUB, namespace=NAMESPACE)
            except ValueError:
                return True
            return False

        await eventually(gone, 90.0)
        assert not [pid for pid in pids if psutil.pid_exists(pid)]
        assert not list(ray_stage.folder.glob("tandem-*"))
    finally:
        begin_serve(ray_stage.folder)


async def _routers_seen() -> bool:
    """Whether the hub has kept that its routers have been there: only then it misses them."""
    from tandem.apps.ray.ray_serving import RayStore

    kept = await RayStore().get(STATE)
    return kept is not None and msgspec.msgpack.decode(kept, type=HubState).routers_seen
