"""vLLM engines that run for many tests: each test borrows one, which looks to it like one of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from tandem.core.clock import Clock
from tandem.engine.protocol import BlockSpace, Engine, EngineInfo, EngineRequest, Listener, StepReport
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.engine import VllmEngine
from tandem.engine.vllm.settings import VllmSettings
from tandem.engine.vllm.stage import Stage
from tandem.engine.vllm.stage_settings import StageSettings
from tandem.process.system import SystemClock

DEMO = Path(__file__).parents[2] / "tandem" / "models" / "demo"
BLOCK_TOKENS = 32
IDLE_S = 20.0
SCHEDULER = SchedulerSettings(max_batched_tokens=64, max_sequences=16)


def settings(blocks: int = 64) -> VllmSettings:
    """The demo model in float32, with a context of all its blocks. vLLM keeps one more block for itself."""
    return VllmSettings(
        model="demo",
        dtype="float32",
        block_tokens=BLOCK_TOKENS,
        blocks=blocks + 1,
        context_tokens=blocks * BLOCK_TOKENS,
        threads=1,
        start_timeout_s=240.0,
    )


class Running:
    """An engine with its stage, running; reports go to whoever has borrowed it."""

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine
        self.listener: Listener | None = None
        self._heard = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.engine.start()
        self._task = asyncio.create_task(self.engine.run(self.listen))

    async def stop(self) -> None:
        await self.engine.stop()
        assert self._task is not None
        await self._task

    async def over(self) -> None:
        """Until the engine has ended by itself; raises what it died of."""
        async with asyncio.timeout(IDLE_S):
            await self.ending()

    async def ending(self) -> None:
        """The same without a bound."""
        assert self._task is not None
        await asyncio.shield(self._task)

    def listen(self, report: StepReport) -> None:
        """Tell whoever has borrowed the engine."""
        if self.listener is not None:
            self.listener(report)
        self._heard.set()

    async def clear(self) -> None:
        """Nothing of a test is left."""
        for run in self.engine.ledger.runs:
            self.engine.cancel(run.work_id)
        async with asyncio.timeout(IDLE_S):
            while len(self.engine.ledger):
                self._heard.clear()
                await self._heard.wait()


class Borrowed:
    """`tandem.engine.protocol.Engine` over one that runs already, and goes on running."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._engine = running.engine
        self._over = asyncio.Event()
        self._early: list[StepReport] = []
        """Reports between `start` and `run`: the engine does not wait for either."""

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def kv(self) -> BlockSpace | None:
        return self._engine.kv

    async def start(self) -> EngineInfo:
        self._running.listener = self._early.append
        return self._engine.info

    async def run(self, listener: Listener) -> None:
        for report in self._early:
            listener(report)
        self._running.listener = listener
        await self._over.wait()

    async def stop(self) -> None:
        await self._running.clear()
        self._running.listener = None
        self._over.set()

    def submit(self, work: EngineRequest) -> None:
        self._engine.submit(work)

    def cancel(self, work_id: int, sequence: int | None = None) -> None:
        self._engine.cancel(work_id, sequence)

    def provide_first(self, work_id: int, sequence: int, token: int, relay: bool = False) -> None:
        self._engine.provide_first(work_id, sequence, token, relay)

    def sample_first(self, work_id: int) -> None:
        self._engine.sample_first(work_id)

    def set_itl_target(self, itl_target_s: float | None) -> None:
        self._engine.set_itl_target(itl_target_s)

    def snapshot(self) -> tuple[bytes, ...]:
        return self._engine.snapshot()

    def begin_epoch(self, epoch: int) -> None:
        self._engine.begin_epoch(epoch)


@asynccontextmanager
async def engine(blocks: int, epoch: int, *, staged: bool = True) -> AsyncIterator[Running]:
    """Ten seconds or more until it runs."""
    clock = SystemClock()
    stage = Stage(StageSettings(blocks=blocks), clock, epoch) if staged else None
    running = Running(VllmEngine(settings(blocks), SCHEDULER, clock, stage))
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


class Lender:
    """The two engines of the contract suite, as its factory: a roomy one, and a small one for the second worker of a
    test (with epoch 4) and for tests of small pools."""

    def __init__(self, roomy: Running, small: Running) -> None:
        self._engines = {3: roomy, 4: small}
        self._small_blocks = small.engine.info.blocks

    def __call__(self, clock: Clock, *, epoch: int, blocks: int) -> AbstractAsyncContextManager[Engine]:
        return self._lend(self._engines[4 if blocks <= self._small_blocks else epoch], epoch)

    @asynccontextmanager
    async def _lend(self, running: Running, epoch: int) -> AsyncIterator[Engine]:
        running.engine.begin_epoch(epoch)
        yield Borrowed(running)
