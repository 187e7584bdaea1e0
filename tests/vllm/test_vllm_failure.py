"""A vLLM that dies, or does not start, ends in one sentence."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tandem.core.errors import TandemError
from tandem.engine.vllm.engine import VllmEngine
from tandem.engine.vllm.settings import VllmSettings
from tandem.service.system import SystemClock
from tests.vllm.driving import GREEDY, Driver, work
from tests.vllm.lending import SCHEDULER, Running, settings

pytestmark = pytest.mark.timeout(300)
GONE_S = 20.0
BEGUN_S = 120.0
LOOK_S = 0.05


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


@pytest.mark.parametrize(("ranks", "stage"), [(1, "spawn_main"), (2, "Worker_TP1")])
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
