"""A vLLM that dies, or does not start, ends in one sentence."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tandem.core.errors import TandemError
from tandem.engine.vllm.engine import VllmEngine
from tandem.engine.vllm.settings import Parallelism, VllmSettings
from tandem.process.system import SystemClock
from tests.vllm.driving import GREEDY, Driver, work
from tests.vllm.lending import SCHEDULER, Running, settings
from tests.vllm.none_left import none_left
from tests.vllm.slowness import Slowness, environment

pytestmark = pytest.mark.timeout(300)
GONE_S = 20.0
BEGUN_S = 120.0
LOOK_S = 0.05
ENDS_S = 240.0
"""A bound for machines on which many other things run; it takes seconds."""
HUNG_S = 4.0
HUNG_MAX_S = 60.0
"""Also the bound of the first request. What a step is predicted to take depends on what else runs here."""


async def test_a_killed_engine_process_ends_the_engine_in_one_sentence() -> None:
    told: list[tuple[float, str]] = []
    engine = VllmEngine(
        settings(64), SCHEDULER, SystemClock(), None, lambda fraction, stage: told.append((fraction, stage))
    )
    await engine.start()
    fractions = [fraction for fraction, _ in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert len(fractions) >= 3
    running = Running(engine)
    driver = Driver(running)
    task = asyncio.create_task(engine.run(running.listen))
    driver.submit(work(range(3, 60), GREEDY, max_tokens=1500))
    await driver.until(lambda: len(driver.emitted) > 3)
    (pid,) = engine.pids
    children = psutil.Process(pid).children(recursive=True)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(TandemError) as failed:
        async with asyncio.timeout(GONE_S):
            await task
    assert failed.value.code == "engine_failed"
    assert "SIGKILL" in failed.value.message
    assert "\n" not in failed.value.message
    await engine.stop()
    assert not any(child.is_running() for child in children)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_stopped_rank_ends_the_engine_and_all_its_processes() -> None:
    """A process that is stopped cannot see that its parent has ended."""
    engine = VllmEngine(replace(settings(64), parallelism=Parallelism(tensor=2)), SCHEDULER, SystemClock(), None)
    running = Running(engine)
    await running.start()
    (pid,) = engine.pids
    family = psutil.Process(pid).children(recursive=True)
    (rank,) = [process for process in family if "Worker_TP1" in " ".join(process.cmdline())]
    driver = Driver(running)
    driver.submit(work(range(3, 60), GREEDY, max_tokens=1500))
    await driver.until(lambda: len(driver.emitted) > 3)
    with none_left(family):
        rank.suspend()
        with pytest.raises(TandemError) as failed:
            async with asyncio.timeout(ENDS_S):
                await running.ending()
        assert failed.value.code == "engine_failed"
        assert f"{rank.pid} is stopped" in failed.value.message
        _, left = psutil.wait_procs(family, GONE_S)
        assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
    await engine.stop()


@pytest.mark.timeout(600)
async def test_an_engine_that_spins_in_a_step_is_ended_by_the_step_timeout(tmp_path: Path) -> None:
    """It holds Python's lock, so it does not beat; it runs, so it is not lost either."""
    steps = tmp_path / "steps"
    with pytest.MonkeyPatch.context() as patch:
        root = str(Path(__file__).parents[2])
        for name, value in environment(steps, os.environ.get("PYTHONPATH", root)).items():
            patch.setenv(name, value)
        own = replace(settings(64), step_timeout_min_s=HUNG_S, step_timeout_s=HUNG_MAX_S)
        engine = VllmEngine(own, SCHEDULER, SystemClock(), None)
        running = Running(engine)
        await running.start()
    driver = Driver(running)
    with none_left([psutil.Process(pid) for pid in engine.pids]):
        Slowness(per_step_s=10 * HUNG_MAX_S, holding=True).write(steps)
        driver.submit(work(range(3, 20), GREEDY))
        with pytest.raises(TandemError) as failed:
            async with asyncio.timeout(ENDS_S):
                await running.ending()
    assert failed.value.code == "engine_failed"
    assert "a step of vLLM has taken" in failed.value.message
    assert driver.load is not None
    assert driver.load.overdue_s > 0
    await engine.stop()


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        (VllmSettings(quantization="nonsense"), "bad_setting", "nonsense"),
        (VllmSettings(context_tokens=100_000), "bad_setting", "100000"),
        (VllmSettings(model="/nowhere/at/all"), "bad_model", "/nowhere/at/all"),
        (VllmSettings(extra={"max_num_seqs": "3"}), "bad_setting", "scheduler.max_sequences"),
    ],
)
async def test_what_vllm_refuses_is_said_in_one_sentence(settings: VllmSettings, code: str, words: str) -> None:
    engine = VllmEngine(settings, SCHEDULER, SystemClock(), None)
    with pytest.raises(TandemError) as refused:
        await engine.start()
    assert refused.value.code == code
    assert words in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("ranks", "stage"), [(1, "spawn_main"), pytest.param(2, "Worker_TP1", marks=pytest.mark.long)]
)
def test_what_a_worker_has_started_does_not_outlive_it_while_it_loads(ranks: int, stage: str) -> None:
    """Killed as soon as the engine process has begun, which then waits for its worker; or as soon as ranks load."""
    loading = subprocess.Popen(
        [sys.executable, "-m", "tests.vllm.loading_engine", str(ranks)],
        cwd=Path(__file__).parents[2], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        family = _family_with(stage, loading)
        loading.kill()
        loading.wait()
        _, left = psutil.wait_procs(family, GONE_S)
        assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(loading.pid, signal.SIGKILL)


def _family_with(word: str, parent: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """All that a process has started, as soon as the command line of one has this word."""
    deadline = time.monotonic() + BEGUN_S
    while time.monotonic() < deadline:
        assert parent.poll() is None
        family: list[psutil.Process] = psutil.Process(parent.pid).children(recursive=True)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                if word in " ".join(process.cmdline()):
                    return family
        time.sleep(LOOK_S)
    raise AssertionError(f"no process with {word} has begun")
