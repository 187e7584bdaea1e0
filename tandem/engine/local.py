"""An engine made of a scheduler and a runner: the async shell around the scheduler's decisions."""

import asyncio
from dataclasses import replace

import msgspec

from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.core.kv import Layout
from tandem.core.messages import Load
from tandem.engine.command_shell import CommandShell
from tandem.engine.leased_block_space import LeasedBlockSpace
from tandem.engine.protocol import (
    BlockMemory,
    BlockSpace,
    EngineInfo,
    Listener,
    Prefix,
    StepReport,
)
from tandem.engine.scheduler.kv_cache_manager import KvCacheManager
from tandem.engine.scheduler.plan import Runner
from tandem.engine.scheduler.scheduler import Scheduler
from tandem.engine.scheduler.shared_exports import SharedExports
from tandem.engine.scheduler.stall_detection import ProcessSample, judge
from tandem.engine.settings import SchedulerSettings


class LocalEngine(CommandShell, LeasedBlockSpace):
    """Implements `Engine` and `BlockSpace`. `clock` must agree with the event loop's time."""

    def __init__(self, runner: Runner, settings: SchedulerSettings, clock: Clock, epoch: int) -> None:
        CommandShell.__init__(self, clock)
        LeasedBlockSpace.__init__(self, clock, epoch)
        self._runner = runner
        self._settings = settings
        self._scheduler: Scheduler | None = None
        self._ended: asyncio.Event | None = None
        self._load_timer: asyncio.TimerHandle | None = None
        self._problem: TandemError | None = None
        runner.watch(self._seen)

    # -- engine --

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler; there once `start` has returned."""
        assert self._scheduler is not None, "start() has not returned yet"
        return self._scheduler

    @property
    def _requests(self) -> Scheduler:
        return self.scheduler

    @property
    def info(self) -> EngineInfo:
        return self.scheduler.info

    @property
    def kv(self) -> BlockSpace | None:
        return self

    async def start(self) -> EngineInfo:
        """Load the model. Raises `bad_model`, `bad_setting` or `engine_failed`."""
        loaded = await self._runner.load()
        settings = self._settings
        export_blocks = int(settings.export_share * loaded.blocks)
        info = replace(loaded, export_blocks=export_blocks, max_sequences=settings.max_sequences)
        self._scheduler = Scheduler(info, self._settings)
        return info

    async def run(self, listener: Listener) -> None:
        """Step until `stop`; gives `listener` every report. Raises `engine_failed`."""
        assert self._listener is None, "the engine runs already"
        self._listener = listener
        self._ended = asyncio.Event()
        try:
            while not self._stopping:
                await self._turn()
        finally:
            self._listener = None
            if self._load_timer is not None:
                self._load_timer.cancel()
            self._ended.set()

    async def _turn(self) -> None:
        """One step, or one wait for something to do."""
        if self._problem is not None:
            raise self._problem
        scheduler = self.scheduler
        self._wake.clear()
        step, report = scheduler.plan(self._clock.now())
        self._deliver(report)
        if step is None:
            now, every_s = self._clock.now(), self._settings.idle_load_every_s
            wake = scheduler.next_wake(now)
            await self._wait_for_commands(every_s if wake is None else min(wake - now, every_s))
            return
        result = await self._runner.execute(step)
        self._deliver(scheduler.apply(result, self._clock.now()))
        if self._note_overdue(0.0):
            self._deliver(scheduler.take_report())

    def _seen(self, sight: ProcessSample) -> None:
        """Judge what the runner's process shows: one that takes too long gets nothing new, one that is stalled gives
        up what it has."""
        if self._listener is None:
            return
        if sight.ended:
            self._problem = TandemError("engine_failed", sight.ended)
            self._wake.set()
            return
        verdict = judge(sight, self.scheduler.predicted_s)
        changed = self._note_overdue(verdict.overdue_s)
        if verdict.stalled is not None:
            self.scheduler.give_up(verdict.stalled, self._clock.now())
        if changed or verdict.stalled is not None:
            self._deliver(self.scheduler.take_report())

    async def stop(self) -> None:
        """End `run` after the running step, then release the runner."""
        self._stopping = True
        self._wake.set()
        if self._ended is not None:
            await self._ended.wait()
        await self._runner.close()

    def set_itl_target(self, itl_target_s: float | None) -> None:
        self.scheduler.set_itl_target(itl_target_s)

    def snapshot(self) -> tuple[bytes, ...]:
        """Names of all full blocks available now. What became available since the last report is in both."""
        return self.scheduler.snapshot()

    # -- blocks --

    @property
    def layout(self) -> Layout:
        return self.info.layout

    @property
    def memory(self) -> BlockMemory:
        return self._runner.memory

    @property
    def _kv_cache(self) -> KvCacheManager:
        assert self._scheduler is not None, "start() has not returned yet"
        return self._scheduler.kv_cache

    @property
    def _sharing(self) -> SharedExports:
        return self.scheduler.sharing

    def _invalidate(self, slot: int) -> None:
        self.scheduler.invalidate(slot, self._clock.now())

    def prefix(self, work_id: int) -> Prefix | None:
        return self.scheduler.prefix(work_id)

    def bring(self, work_id: int, blocks: int) -> None:
        self.scheduler.bring(work_id, blocks)
        self._changed()

    def landed(self, work_id: int, index: int, digests: bytes) -> None:
        self.scheduler.landed(work_id, index, digests, self._clock.now())
        self._changed()

    def fetch_ended(self, work_id: int, reason: str | None, late: tuple[int, ...] = ()) -> None:
        self.scheduler.fetch_ended(work_id, reason, self._clock.now(), late)
        self._changed()

    # -- reports --

    def _flush(self) -> None:
        self._flush_due = False
        if self._listener is not None:
            self._deliver(self.scheduler.take_report())
        else:
            self._wake_watchers()

    def _deliver(self, report: StepReport | None) -> None:
        """Give a report to the listener, with the load figures when they are due, and wake who watches leases."""
        now = self._clock.now()
        self._load_stale = self._load_stale or report is not None
        due = self._load_sent + (
            self._settings.load_every_s if self._load_stale else self._settings.idle_load_every_s
        )
        if now >= due:
            self._load_sent, self._load_stale = now, False
            report = msgspec.structs.replace(report or StepReport(), load=self._load())
        elif self._load_stale and self._load_timer is None:
            self._load_timer = asyncio.get_running_loop().call_at(due, self._tell_load)
        if report is not None and self._listener is not None:
            self._listener(report)
        self._wake_watchers()

    def _tell_load(self) -> None:
        """Deliver load figures that show what happened after the last ones, even during a long step."""
        self._load_timer = None
        if self._listener is not None:
            self._deliver(self.scheduler.take_report())

    def _load(self) -> Load:
        load = self.scheduler.load()
        return msgspec.structs.replace(load, overdue_s=self._overdue_s) if self._overdue_s else load
