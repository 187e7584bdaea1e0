"""Worker and router replicas on three nodes, before any decision: Serve makes, counts and drains them, chat streams
through HAProxy, and a worker ends with its replica."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import psutil
import pytest
import pytest_asyncio

from tandem.apps.client.http import Target
from tandem.apps.ray.serving import ROUTERS
from tandem.spec.service import ModelService
from tests.ray.asking import answered, end_hub, eventually, listed
from tests.ray.conftest import HTTP_PORT, RayStage
from tests.ray.standin_hub import OURS, make_standin

REVISION = "r1"
SERVICE = {
    "apiVersion": "tandem.dev/v1alpha1",
    "kind": "ModelService",
    "metadata": {"name": "m", "namespace": OURS},
    "spec": {
        "model": {"source": "demo", "name": "sim"},
        "engine": {"type": "simulated"},
        "pools": [
            {"name": "p", "role": "prefill", "replicas": 2, "drainSeconds": 5},
            {"name": "d", "role": "decode", "replicas": 2, "drainSeconds": 5},
        ],
    },
}
URL = Target("127.0.0.1", HTTP_PORT, False, "")


class Platform:
    """The stand-in hub and what it would want."""

    def __init__(self, hub: Any, serving: Any) -> None:
        self.hub = hub
        self.serving = serving

    async def workers(self, **counts: int) -> list[Any]:
        """Wait until so many workers of each pool are ready; gives their reports."""
        await self.serving.want({f"m-{REVISION}": counts})

        async def there() -> list[Any]:
            told, _ = await self.hub.told.remote()
            ready = [each for each in told if each.ready and not each.gone]
            found = {pool: sum(each.pool == pool for each in ready) for pool in counts}
            return ready if found == counts else []

        ready: list[Any] = await eventually(there)
        return ready


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def platform(ray_stage: RayStage) -> AsyncIterator[Platform]:
    from ray import serve

    from tandem.apps.ray.application import router_application
    from tandem.apps.ray.placing import revision_app
    from tandem.apps.ray.ray_serving import RayServing
    from tandem.apps.ray.router_replica import RouterPlan

    hub, serving = make_standin(SERVICE, REVISION), RayServing()
    service = msgspec.convert(SERVICE, ModelService)
    await serving.want({f"m-{REVISION}": {"p": 2, "d": 2}})
    app = revision_app(service, REVISION, {"p": 2, "d": 2})
    await serving.deploy(app)
    await serving.deploy(app)  # Nothing: it is there.
    running = Platform(hub, serving)
    await running.workers(p=2, d=2)
    routers = router_application(RouterPlan(drain_s=2.0), 2)
    await asyncio.to_thread(serve.run, routers, name=ROUTERS, route_prefix="/")
    yield running
    await asyncio.to_thread(serve.delete, app.name)
    await asyncio.to_thread(serve.delete, ROUTERS)
    await end_hub()


@pytest.mark.asyncio(loop_scope="module")
async def test_chat_through_haproxy_by_prefill_and_decode(platform: Platform) -> None:
    answer = await answered(URL, "sim", "one two three " * 30)
    assert answer["usage"]["completion_tokens"] == 12

    async def known() -> list[Any] | None:
        """By whichever router is asked."""
        found = await listed(URL, "/v1/workers")
        return found if sorted(each["role"] for each in found) == ["decode"] * 2 + ["prefill"] * 2 else None

    workers = await eventually(known)
    told, routers = await platform.hub.told.remote()
    assert len({each.node for each in routers}) == 2
    assert {each.address for each in told} == {each["address"].removeprefix("tcp://") for each in workers}


@pytest.mark.asyncio(loop_scope="module")
async def test_serve_reports_our_application_alone(platform: Platform) -> None:
    running = await platform.serving.running()
    assert list(running) == [f"m-{REVISION}"]
    assert {pool: each.running for pool, each in running[f"m-{REVISION}"].deployments.items()} == {"p": 2, "d": 2}


@pytest.mark.asyncio(loop_scope="module")
async def test_counts_follow_the_table_to_zero_and_back(platform: Platform) -> None:
    before = await platform.workers(p=2, d=2)
    left = await platform.workers(p=0, d=1)
    gone = [each.pid for each in before if each.name not in {one.name for one in left}]

    async def ended() -> bool:
        return not any(psutil.pid_exists(pid) for pid in gone)

    await eventually(ended)

    async def all_told() -> bool:
        told, _ = await platform.hub.told.remote()
        return all(each.gone for each in told if each.pid in gone)

    await eventually(all_told)
    await platform.workers(p=1, d=1)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_worker_ends_with_its_replica_and_another_takes_its_place(platform: Platform) -> None:
    (struck,) = [each for each in await platform.workers(p=1, d=1) if each.pool == "d"]
    worker = psutil.Process(struck.pid)
    replica = worker.parent()
    assert replica is not None
    os.kill(replica.pid, signal.SIGKILL)

    async def ended() -> bool:
        return not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE

    await eventually(ended, 10)

    async def another() -> list[Any]:
        told, _ = await platform.hub.told.remote()
        return [each for each in told if each.pool == "d" and each.ready and each.pid != struck.pid]

    await eventually(another)
