"""A slow vLLM answers everything that it was given: what computes, and what waits behind it, is never ended for
being slow. Bounds are scaled down, so that a prompt computes for several times as long as a work may stand still."""

import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tandem.core.errors import TandemError
from tandem.engine.vllm.engine import VllmEngine
from tandem.process.system import SystemClock
from tests.vllm.driving import GREEDY, Driver, work
from tests.vllm.lending import SCHEDULER, Running, settings
from tests.vllm.slowness import Slowness, environment

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

QUEUE_S = 2.0
LONG_S = 6.0
"""A step that nobody expected. Bounds are scaled by 0.4: a step has 12 s in any case, and not 30."""
LEAST_S = 12.0
LOST_S = 3.0
TOKENS = 800
"""More than are drawn before the file of a slow step is read."""
STEP_S = 0.5
CHUNK = 64
CHUNKS = 8
"""The prompt computes for twice as long as a work may wait for its place without anything getting on."""


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
        own = replace(settings(64), step_timeout_min_s=LEAST_S)
        running = Slow(VllmEngine(own, scheduler, SystemClock(), None), path)
        await running.start()
    yield running
    with contextlib.suppress(TandemError):
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


async def test_a_step_that_takes_pythons_lock_at_once_ends_none_of_its_requests(slow: Slow) -> None:
    """That they have their places cannot be told before it is over: no thread runs that could send it."""
    driver = Driver(slow)
    first, behind = (work(range(5 + n, 40 + n), GREEDY, max_tokens=2) for n in range(2))
    Slowness(per_step_s=LONG_S, holding=True).write(slow.path)
    try:
        driver.submit(first)
        await driver.until(lambda: driver.load is not None and driver.load.overdue_s)
    finally:
        Slowness().write(slow.path)
    assert not driver.failed
    assert [len(answer) for answer in await driver.answers([behind])] == [2]
    await driver.until(lambda: first.work_id in driver.ended)
    assert len(driver.tokens(first.work_id)) == 2
    assert LONG_S > 2 * QUEUE_S


@pytest.mark.parametrize("holding", [False, True])
async def test_a_long_step_takes_no_new_work_and_is_never_ended(slow: Slow, holding: bool) -> None:
    driver = Driver(slow)
    one = work(range(5, 20), GREEDY, max_tokens=TOKENS)
    overdue = list[float]()
    driver.submit(one)
    # From here on it has its place, whenever a process that holds Python's lock comes to say so.
    await driver.until(lambda: driver.emitted)
    Slowness(per_step_s=LONG_S, holding=holding).write(slow.path)
    try:
        await driver.until(lambda: driver.load is not None and driver.load.overdue_s)
        assert driver.load is not None
        overdue.append(driver.load.overdue_s)
    finally:
        Slowness().write(slow.path)
    await driver.until(lambda: one.work_id in driver.ended)
    assert not driver.failed
    assert len(driver.tokens(one.work_id)) == TOKENS
    await driver.until(lambda: driver.load is not None and driver.load.overdue_s == 0)
    assert overdue[0] > LOST_S - 0.1


async def test_a_stopped_engine_process_is_ended(slow: Slow, record_property: Callable[[str, object], None]) -> None:
    """The last test: the engine is gone afterwards."""
    driver = Driver(slow)
    driver.submit(work(range(3, 60), GREEDY, max_tokens=1500))
    await driver.until(lambda: len(driver.emitted) > 3)
    (pid,) = slow.engine.pids
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(TandemError) as failed:
        await slow.over()
    record_property("ended_after_s", time.monotonic() - began)
    assert failed.value.code == "engine_failed"
    assert "stopped" in failed.value.message
    assert "\n" not in failed.value.message
