"""An engine over a torch process that is stopped, or in a long step: what it tells, and what becomes of its works."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.local import LocalEngine
from tandem.engine.protocol import EngineRequest, StepReport
from tandem.engine.settings import SchedulerSettings
from tandem.engine.torch import process
from tandem.engine.torch.process import ProcessRunner
from tandem.engine.torch.settings import TorchSettings
from tandem.process.system import SystemClock
from tests.worlds.slow_child import VARIABLE
from tests.worlds.torch_drive import prompt, save_model

LONG_S = 60.0
"""Nothing here is about how soon: within this a busy machine does it."""


class Driver:
    """An engine that runs, and everything it has reported."""

    def __init__(self, engine: LocalEngine, runner: ProcessRunner) -> None:
        self.engine = engine
        self.running = asyncio.create_task(engine.run(self._report))
        assert runner.pid is not None
        self.pid = runner.pid
        self.tokens: dict[int, list[int]] = {}
        self.failed: dict[int, tuple[str, str]] = {}
        self.ended: set[int] = set()
        self.overdue: list[bool] = []
        """Whether the engine said to be overdue, as it changed."""

    def _report(self, report: StepReport) -> None:
        for emitted in report.emitted:
            self.tokens.setdefault(emitted.work_id, []).append(emitted.token)
        self.failed |= {each.work_id: (each.code, each.message) for each in report.failed}
        self.ended |= {each.work_id for each in report.ended}
        if report.load is not None and [report.load.overdue_s > 0] != self.overdue[-1:]:
            self.overdue.append(report.load.overdue_s > 0)

    def submit(self, work_id: int, count: int) -> None:
        deadline = time.monotonic() + 600
        self.engine.submit(
            EngineRequest(
                work_id=work_id,
                mode="local",
                prompt=pack_tokens(prompt(40)),
                branches=(ChildRequest(0, 7),),
                sampling=Sampling(temperature=0.0),
                stopping=Stopping(max_tokens=count, ignore_eos=True),
                root=b"root",
                deadline=deadline,
            )
        )

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(LONG_S):
            while not holds():  # noqa: ASYNC110  (what another process does)
                await asyncio.sleep(0.01)

    async def answer(self, work_id: int, count: int) -> list[int]:
        self.submit(work_id, count)
        await self.until(lambda: work_id in self.ended)
        return self.tokens[work_id]


@asynccontextmanager
async def driver(root: Path, step_timeout_s: float = 300.0) -> AsyncIterator[Driver]:
    save_model(root, "Llama")
    runner = ProcessRunner(TorchSettings(str(root), threads=1, blocks=64, step_timeout_s=step_timeout_s))
    engine = LocalEngine(runner, SchedulerSettings(), SystemClock(), 1)
    await engine.start()
    driving = Driver(engine, runner)
    try:
        yield driving
    finally:
        with suppress(ProcessLookupError):
            os.kill(driving.pid, signal.SIGCONT)
        await engine.stop()
        with suppress(TandemError):
            await driving.running


async def test_a_stopped_process_gives_up_its_works_and_goes_on_when_it_is_continued(tmp_path: Path) -> None:
    async with driver(tmp_path) as driving:
        right = await driving.answer(1, 20)
        driving.submit(2, 400)
        await driving.until(lambda: driving.tokens.get(2))
        os.kill(driving.pid, signal.SIGSTOP)
        await driving.until(lambda: 2 in driving.failed)
        code, message = driving.failed[2]
        assert code == "worker_lost"
        assert message.startswith("the engine process is stopped, for ")
        await driving.until(lambda: driving.overdue == [False, True])
        # What is sent to it all the same comes back, too.
        driving.submit(3, 20)
        await driving.until(lambda: 3 in driving.failed)
        os.kill(driving.pid, signal.SIGCONT)
        await driving.until(lambda: driving.overdue == [False, True, False])
        assert await driving.answer(4, 20) == right
        driving.engine.scheduler.check()
        assert driving.overdue == [False, True, False]


async def test_a_process_that_is_stopped_without_a_step_is_told_and_goes_on(tmp_path: Path) -> None:
    async with driver(tmp_path) as driving:
        right = await driving.answer(1, 20)
        os.kill(driving.pid, signal.SIGSTOP)
        await driving.until(lambda: driving.overdue == [False, True])
        os.kill(driving.pid, signal.SIGCONT)
        await driving.until(lambda: driving.overdue == [False, True, False])
        assert await driving.answer(2, 20) == right


async def test_a_process_that_stays_stopped_without_a_step_is_ended_like_a_step_that_lasts(tmp_path: Path) -> None:
    async with driver(tmp_path, step_timeout_s=4.0) as driving:
        os.kill(driving.pid, signal.SIGSTOP)
        async with asyncio.timeout(LONG_S):
            with pytest.raises(TandemError, match="was stopped for longer than 4 s") as failed:
                await driving.running
        assert failed.value.code == "engine_failed"
        assert driving.overdue == [False, True]


async def test_a_long_step_is_overdue_is_not_ended_and_is_no_longer_when_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = tmp_path / "seconds"
    seconds.write_text("0")
    monkeypatch.setattr(process, "_CHILD", "tests.worlds.slow_child")
    monkeypatch.setenv(VARIABLE, str(seconds))
    async with driver(tmp_path) as driving:
        right = await driving.answer(1, 20)
        seconds.write_text("6")
        driving.submit(2, 20)
        await driving.until(lambda: driving.overdue == [False, True])
        seconds.write_text("0")
        await driving.until(lambda: 2 in driving.ended)
        assert driving.tokens[2] == right
        assert not driving.failed
        await driving.until(lambda: driving.overdue == [False, True, False])
        assert await driving.answer(3, 20) == right
