"""The worker of a replica: reported while it starts, works, drains and is gone; missed when it freezes or dies."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tandem.apps.ray.owned_worker import OwnedWorker, run_to_end
from tandem.apps.ray.serving import Orders, WorkerTold
from tandem.core.errors import TandemError
from tandem.process.processes import Command

ROOT = Path(__file__).parents[5]
TOLD = WorkerTold(name="m-d-1", service="m", pool="d", role="unified", revision="r1", node="n")


class Heard:
    """A hub that keeps reports, and is away when told so."""

    def __init__(self) -> None:
        self.reports: list[WorkerTold] = []
        self.away = False

    async def call(self, method: str, *arguments: Any, within_s: float = 1.0) -> Orders:
        assert method == "report"
        if self.away:
            raise TandemError("link_lost", "the hub is away")
        self.reports.append(*arguments)
        return Orders(1)


class Stage:
    """A worker with the simulated engine, its hub, and the exit status with which it was lost."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.directory = directory
        self.hub = Heard()
        self.lost: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        own = ("--worker_id", TOLD.name, "--role", "unified", "--engine", "simulated", "--socket_directory")
        argv = [sys.executable, "-m", "tandem.process.lifeline", "decode_worker", "--events", *own]
        argv += [str(directory), "--metrics_bind", "127.0.0.1:0", "--deadlines.drain_s", "2", *flags]
        self.worker = OwnedWorker(TOLD, Command(TOLD.name, argv, environment), self.hub, self.lost.set_result)

    async def start(self) -> None:
        await self.worker.start(self.directory)


async def test_a_worker_is_reported_ready_and_leaves_after_its_drain(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.start()
    told = stage.worker.told
    assert told.ready
    assert told.pid
    assert told.address.startswith("127.0.0.1:")
    await stage.worker.check()
    await stage.worker.leave(2.0)
    with pytest.raises(ProcessLookupError):
        os.kill(told.pid, 0)
    states = [(each.ready, each.leaving_s, each.gone) for each in stage.hub.reports]
    assert states[0] == (False, None, False)
    assert (True, None, False) in states
    assert states[-1] == (False, 2.0, True)
    assert not stage.lost.done()
    await stage.worker.leave(2.0)  # Once more changes nothing.


async def test_a_frozen_worker_fails_the_check_and_a_killed_one_is_lost(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.start()
    os.kill(stage.worker.told.pid, signal.SIGSTOP)
    with pytest.raises(TandemError, match="does not answer"):
        await stage.worker.check()
    os.kill(stage.worker.told.pid, signal.SIGKILL)
    assert await asyncio.wait_for(stage.lost, 100) == -signal.SIGKILL
    assert stage.hub.reports[-1].gone
    with pytest.raises(TandemError, match="has ended"):
        await stage.worker.check()


async def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--metrics_bind", "nowhere")
    with pytest.raises(TandemError, match="metrics_bind") as failed:
        await stage.start()
    assert failed.value.code == "engine_failed"
    assert stage.hub.reports[-1].gone
    assert not stage.lost.done()


async def test_a_hub_that_is_away_hears_it_later(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.hub.away = True
    await stage.start()
    stage.hub.away = False
    async with asyncio.timeout(100):
        while True:
            if any(each.ready for each in stage.hub.reports):
                break
            await asyncio.sleep(0.05)
    stage.hub.away = True
    await stage.worker.leave(2.0)


async def test_what_runs_to_its_end_hangs_on_a_pipe_of_this_process(tmp_path: Path) -> None:
    program = "import os, stat, sys; sys.exit(0 if stat.S_ISFIFO(os.fstat(0).st_mode) else 3)"
    await run_to_end(Command("fetch", [sys.executable, "-c", program], dict(os.environ)), tmp_path)
    with pytest.raises(TandemError, match="fetch ended with status 4") as failed:
        await run_to_end(Command("fetch", [sys.executable, "-c", "exit(4)"], dict(os.environ)), tmp_path)
    assert failed.value.code == "bad_model"
