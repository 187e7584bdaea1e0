"""The contract of the seam to Ray Serve on a cluster, with real workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from tandem.spec.reading import service_of
from tests.contract.serving import ServingStage, TestServing
from tests.ray.asking import end_hub
from tests.ray.conftest import RayStage
from tests.ray.standin_hub import OURS, make_standin

__all__ = ["TestServing"]

SERVICE = {
    "apiVersion": "tandem.dev/v1alpha1",
    "kind": "ModelService",
    "metadata": {"name": "chat", "namespace": OURS},
    "spec": {
        "engine": {"type": "simulated"},
        "pools": [
            {"name": "prefill", "role": "prefill", "drainSeconds": 2},
            {"name": "decode", "role": "decode", "drainSeconds": 2},
        ],
    },
}
_HEAR_EVERY_S = 0.1


async def _hear_on(stage: ServingStage, hub: Any) -> None:
    """Pass the stand-in's reports on: one whose worker is gone was there before."""
    while True:
        for told in (await hub.told.remote())[0]:
            if told.gone and told.name not in stage.ever:
                await stage.hear(msgspec.structs.replace(told, gone=False))
            await stage.hear(told)
        await asyncio.sleep(_HEAR_EVERY_S)


@pytest.fixture
async def stage(ray_stage: RayStage) -> AsyncIterator[ServingStage]:
    from ray import serve

    from tandem.apps.ray.ray_serving import RayServing

    stage = ServingStage(RayServing(), service_of(SERVICE), within_s=240.0)
    hearing = asyncio.create_task(_hear_on(stage, make_standin(SERVICE, "r1")))
    yield stage
    hearing.cancel()
    with suppress(asyncio.CancelledError):
        await hearing
    for name in await stage.serving.running():
        await asyncio.to_thread(serve.delete, name)
    await end_hub()
