"""Whole platforms on three nodes, by the hub: prefill and decode answer as `tandem up` does, services share one
ingress, workers come and go as the hub is told, and nothing is left."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import pytest_asyncio
import yaml

from tandem.apps.client.http import Target
from tandem.apps.ray.hub_client import HubClient
from tandem.apps.ray.serving import ROUTERS
from tandem.spec.service import ModelService
from tests.ray.asking import answered, end_hub, eventually, listed
from tests.ray.conftest import HTTP_PORT, RayStage
from tests.worlds.up_stage import up

PROMPTS = ("The lantern in the harbour " * 12, "one two three four five " * 20)
TOKENS = 16
UP_PORT = 18080
AT = Target("127.0.0.1", HTTP_PORT, False, "")


def service(name: str, engine: dict[str, Any], *pools: dict[str, Any]) -> dict[str, Any]:
    """A ModelService; clients call its model as the service."""
    return {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": "demo", "name": name},
            "engine": engine,
            "pools": [{"drainSeconds": 5, **pool} for pool in pools],
        },
    }


SPLIT = service(
    "split",
    {"type": "torch", "device": "cpu", "dtype": "float32"},
    {"name": "prefill", "role": "prefill", "replicas": 2},
    {"name": "decode", "role": "decode", "replicas": 2},
)
WHOLE = service("whole", {"type": "simulated"}, {"name": "all", "role": "unified", "replicas": 1})


async def texts(at: Target) -> list[tuple[str, int]]:
    """What the model of the service `split` answers, greedily, and in how many tokens."""
    answers = [await answered(at, "split", prompt, TOKENS) for prompt in PROMPTS]
    return [(each["choices"][0]["message"]["content"], each["usage"]["completion_tokens"]) for each in answers]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def hub(ray_stage: RayStage) -> AsyncIterator[HubClient]:
    from ray import serve

    from tandem.apps.ray.application import router_application
    from tandem.apps.ray.hub_actor import make_hub
    from tandem.apps.ray.hub_client import hub_of_this_cluster
    from tandem.apps.ray.options import RaySettings
    from tandem.apps.ray.router_replica import RouterPlan

    await end_hub()  # One that serves nothing any more may be about to end.
    make_hub(RaySettings())
    client = hub_of_this_cluster()
    assert len(await client.call("key", within_s=30)) == 64
    routers = router_application(RouterPlan(drain_s=2.0), 2)
    await asyncio.to_thread(serve.run, routers, name=ROUTERS, route_prefix="/")
    yield client
    await asyncio.to_thread(serve.delete, ROUTERS)
    await end_hub()


@pytest.mark.asyncio(loop_scope="module")
async def test_prefill_and_decode_answer_as_on_one_machine(hub: HubClient, ray_stage: RayStage) -> None:
    file = ray_stage.folder / "split.yaml"
    file.write_text(yaml.safe_dump(SPLIT))
    (root := ray_stage.folder / "up").mkdir()
    async with up(root, str(file), port=UP_PORT):
        expected = await texts(Target("127.0.0.1", UP_PORT, False, ""))
    await hub.call("want", msgspec.convert(SPLIT, ModelService), within_s=60)
    assert await texts(AT) == expected

    async def all_four() -> bool:
        workers = await listed(AT, "/v1/workers")
        return [each["role"] for each in workers if each["state"] == "ready"].count("decode") == 2 == len(workers) - 2

    await eventually(all_four)

    async def all_members() -> bool:
        entry = await hub.call("entry")
        return sorted(each.role for each in entry.members) == ["decode"] * 2 + ["prefill"] * 2 + ["router"] * 2

    await eventually(all_members)


@pytest.mark.asyncio(loop_scope="module")
async def test_two_services_behind_one_ingress_one_of_them_unified(hub: HubClient) -> None:
    await hub.call("want", msgspec.convert(WHOLE, ModelService), within_s=60)
    answer = await answered(AT, "whole", "hello", 5)
    assert answer["usage"]["completion_tokens"] == 5

    async def both() -> bool:
        return {each["id"] for each in await listed(AT, "/v1/models")} == {"split", "whole"}

    await eventually(both)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_hub_scales_a_pool_and_returns_after_it_was_killed(hub: HubClient) -> None:
    async def pool() -> list[Any]:
        return [each for each in await listed(AT, "/v1/workers") if each["service"].endswith("/whole")]

    async def two() -> bool:
        return [each["state"] for each in await pool()] == ["ready", "ready"]

    async def one() -> bool:
        return [each["state"] for each in await pool()] == ["ready"]

    await hub.call("scale", "whole", {"all": 2}, within_s=60)
    await eventually(two)
    psutil.Process(await hub.call("pid")).kill()
    await hub.call("scale", "whole", {"all": 1}, within_s=60)
    await eventually(one)
    assert (await answered(AT, "whole", "again", 3))["usage"]["completion_tokens"] == 3


@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_of_a_service_is_left_when_it_has_left(hub: HubClient, ray_stage: RayStage) -> None:
    async def all_five() -> list[int | None] | None:
        """A hub that has come back knows the workers that have reported since."""
        found = [each.pid for each in (await hub.call("entry")).members if each.role != "router"]
        return found if len(found) >= 5 else None

    pids = await eventually(all_five)
    for name in ("split", "whole"):
        await hub.call("leave", name, 20.0, within_s=90)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not [path for path in ray_stage.folder.glob("tandem-node-*/replica-*") if not _is_held(path)]
    assert not await hub.call("services")


def _is_held(folder: Path) -> bool:
    """Whether the folder of a replica is that of one which lives, as those of routers are."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
