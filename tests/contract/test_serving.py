"""The contract of the seam to Ray Serve, kept by the one in memory, and what only that can bring about."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from tandem.core.errors import TandemError
from tandem.process.system import SystemClock
from tandem.spec.reading import service_of
from tests.contract.serving import ServingStage, TestServing
from tests.worlds.memory_serving import MemoryPace, MemoryServing

__all__ = ["TestServing"]

SERVICE = service_of(
    {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": "chat"},
        "spec": {
            "engine": {"type": "simulated"},
            "pools": [{"name": "prefill", "role": "prefill"}, {"name": "decode", "role": "decode"}],
        },
    }
)


@pytest.fixture
async def stage() -> AsyncIterator[ServingStage]:
    serving = MemoryServing(SystemClock(), pace=MemoryPace(start_s=0.05, drain_s=0.05))
    stage = ServingStage(serving, SERVICE, within_s=20.0)
    serving.report = stage.hear
    running = asyncio.create_task(serving.run())
    yield stage
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_a_worker_that_dies_is_replaced_under_another_name(stage: ServingStage) -> None:
    assert isinstance(stage.serving, MemoryServing)
    app = stage.app("2222222222", 1, 1)
    await stage.serving.deploy(app)
    await stage.up(app, 1, 1)
    (name,) = stage.ready(app, "decode")
    stage.serving.kill(name)
    await stage.until(lambda: bool(stage.ready(app, "decode") - {name}), "another one is there")
    with pytest.raises(TandemError, match="no worker"):
        stage.serving.kill(name)


async def test_a_serve_that_does_not_answer_raises_link_lost(stage: ServingStage) -> None:
    assert isinstance(stage.serving, MemoryServing)
    stage.serving.lost = True
    with pytest.raises(TandemError, match="does not answer"):
        await stage.serving.running()
