"""A slow vLLM answers everything that it was given: what computes, and what waits behind it, is never ended for
being slow. Bounds are scaled down, so that a prompt computes for several times as long as a work may stand still."""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tandem.engine.vllm.engine import VllmEngine
from tandem.service.system import SystemClock
from tests.vllm.driving import GREEDY, Driver, work
from tests.vllm.lending import SCHEDULER, Running, settings
from tests.vllm.slowness import Slowness, environment

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

QUEUE_S = 1.0
STEP_S = 0.5
CHUNK = 64
CHUNKS = 8
"""The prompt computes for four times as long as a work may wait for its place without anything getting on."""


class Slow(Running):
    """An engine whose steps take as long as its file says."""

    def __init__(self, engine: VllmEngine, path: Path) -> None:
        super().__init__(engine)
        self.path = path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Slow]:
    path = tmp_path_factory.mktemp("slow") / "steps"
    root = str(Path(__file__).parents[2])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(path, os.environ.get("PYTHONPATH", root)).items():
            patch.setenv(name, value)
        scheduler = replace(SCHEDULER, queue_s=QUEUE_S, max_sequences=2)
        running = Slow(VllmEngine(settings(64), scheduler, SystemClock(), None), path)
        await running.start()
    yield running
    await running.stop()


async def test_a_prompt_that_computes_long_and_those_behind_it_are_answered(slow: Slow) -> None:
    driver = Driver(slow)
    Slowness(per_token_s=STEP_S / CHUNK).write(slow.path)
    works = [work(range(3 + n, 3 + n + CHUNK * CHUNKS), GREEDY, max_tokens=2) for n in range(3)]
    try:
        answers = await driver.answers(works)
    finally:
        Slowness().write(slow.path)
    assert [len(answer) for answer in answers] == [2, 2, 2]
    first, *behind = [driver.ended[each.work_id] for each in works]
    assert first.admitted is not None
    assert first.prefilled is not None
    assert first.admitted - first.submitted < QUEUE_S
    assert first.prefilled - first.admitted > QUEUE_S
    assert first.chunks == CHUNKS
    for stats in behind:
        assert stats.admitted is not None
        assert stats.prefilled is not None
        assert stats.prefilled - stats.submitted > QUEUE_S
