"""vLLM behind the `Engine` seam: requests in, one report per engine step out.

vLLM schedules, computes and samples in processes of its own; this module is the client side of one engine. A branch
of a request is one vLLM request (`requests`). vLLM's messages after each step become positions (`outputs`), load
figures (`load`) and block names (`names`); blocks that other workers see are in the stage (`stage`).
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.core.messages import Load
from tandem.engine.command_shell import CommandShell
from tandem.engine.protocol import NO_CHANGE, BlockSpace, EngineInfo, Listener, StepReport
from tandem.engine.scheduler.activity import activity_of
from tandem.engine.scheduler.stall_detection import LOOK_EVERY_S, Activity
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.failure import EngineGone
from tandem.engine.vllm.heartbeat import HeartbeatSample
from tandem.engine.vllm.image_reader import ImageReader
from tandem.engine.vllm.ledger import Ledger
from tandem.engine.vllm.liveness import Bounds, LivenessMonitor, LivenessVerdict
from tandem.engine.vllm.load import LoadStats
from tandem.engine.vllm.loading import ProgressCallback, VllmInstance
from tandem.engine.vllm.names import CachedNames, NameUnion
from tandem.engine.vllm.settings import VllmSettings
from tandem.engine.vllm.stage import Stage

_OVERDUE_SILENCE_S: Final = 5.0
"""Seconds that a silent engine is given beyond the bound of a step, so that a step that hangs is reported before an
engine that is silent for some other reason."""


def _silent(_fraction: float, _stage: str) -> None:
    """Ignore progress: loading is not watched."""


class VllmEngine(CommandShell):
    """Implements `Engine` with vLLM. `clock` must agree with the event loop's time.

    `role` is the worker's role. Without a stage, and with a model whose KV cannot be exchanged, the engine serves
    only requests of mode `local`. `progress` is called with the progress of loading.
    """

    def __init__(
        self,
        settings: VllmSettings,
        scheduler: SchedulerSettings,
        clock: Clock,
        stage: Stage | None,
        progress: ProgressCallback = _silent,
        role: str = "unified",
    ) -> None:
        super().__init__(clock)
        self._settings = settings
        self._scheduler = scheduler
        self._stage = stage
        self._loaded = VllmInstance(settings, scheduler, stage, progress, role)
        self._info: EngineInfo | None = None
        self._ledger: Ledger | None = None
        self._figures: LoadStats | None = None
        self._cached: CachedNames | None = None
        self._images: ImageReader | None = None
        self._names = NameUnion()
        self._problem: str | None = None
        self._ended = asyncio.Event()
        self._loaded.on_lost = self._lost
        self._bounds = Bounds(settings.beat_lost_s, settings.step_timeout_min_s, settings.step_timeout_s)
        self._liveness = LivenessMonitor(self._bounds, self._activity, self._predicted_s)
        self._looked = float("-inf")
        self._heard = 0.0
        """When vLLM last sent a message, or was given its first work after having had none."""

    # -- life --

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "start() has not returned yet"
        return self._info

    @property
    def ledger(self) -> Ledger:
        """The ledger of the requests that vLLM has; available once `start` has returned."""
        assert self._ledger is not None, "start() has not returned yet"
        return self._ledger

    @property
    def kv(self) -> BlockSpace | None:
        return self._stage

    @property
    def pids(self) -> tuple[int, ...]:
        """vLLM's engine processes."""
        return self._loaded.client.pids

    async def start(self) -> EngineInfo:
        """Load the model. Raises `bad_model`, `bad_setting` or `engine_failed`."""
        try:
            await self._loaded.load()
        except BaseException:
            await self._loaded.close()
            raise
        self._stage = self._loaded.stage
        client, stage = self._loaded.client, self._stage
        self._info = self._loaded.info()
        heard = _said(self._loaded.heartbeats)
        self._ledger = Ledger(self._info, self._scheduler, client, stage, self._settings.runner, heard)
        self._images = ImageReader(self._ledger, client.expand, self._clock, self._changed)
        self._figures = LoadStats(client.blocks, self._loaded.seconds_per_token)
        self._cached = CachedNames(client.block_tokens)
        if stage is not None:
            stage.on_admitted = self._admitted
            stage.on_refused = self._refused
            stage.on_report = self._staged
            stage.on_lost = self._lost
        return self._info

    async def run(self, listener: Listener) -> None:
        """Report until `stop`. Raises `engine_failed`."""
        assert self._listener is None, "the engine runs already"
        assert self._images is not None, "start() has not returned yet"
        self._listener = listener
        try:
            async with asyncio.TaskGroup() as group:
                roots = [group.create_task(self._hear(), name="vllm-outputs")]
                if self._loaded.events is not None:
                    roots.append(group.create_task(self._hear_names(), name="vllm-events"))
                roots.append(group.create_task(self._images.run(), name="vllm-images"))
                await self._serve()
                for task in roots:
                    task.cancel()
        except ExceptionGroup as errors:
            if errors.split(EngineGone)[1] is not None:
                raise
            if not self._stopping:
                raise await self._loaded.why_gone(self._problem) from None
        finally:
            self._listener = None
            self._ended.set()

    async def stop(self) -> None:
        """End `run`, then vLLM's processes."""
        self._stopping = True
        self._wake.set()
        if self._listener is not None:
            await self._ended.wait()
        await self._loaded.close()

    # -- commands --

    @property
    def _requests(self) -> Ledger:
        return self.ledger

    def set_itl_target(self, itl_target_s: float | None) -> None:
        """vLLM's chunks are fixed when it starts (`max_batched_tokens`): its steps have no target."""

    def snapshot(self) -> tuple[bytes, ...]:
        """Names of all full blocks in vLLM's prefix cache or in the stage."""
        return self._names.snapshot()

    def begin_epoch(self, epoch: int) -> None:
        """A new incarnation: handles and leases of the last one are void."""
        if self._stage is not None:
            self._stage.begin_epoch(epoch)

    # -- the stage --

    def _admitted(self, work_id: int, params: dict[str, object] | None) -> None:
        self.ledger.moved(self._clock.now())
        self.ledger.admitted(work_id, params)
        self._changed()

    def _refused(self, work_id: int, error: TandemError) -> None:
        self.ledger.refused(work_id, error, self._clock.now())
        self._changed()

    def _staged(self, report: StepReport) -> None:
        self._deliver(msgspec.structs.replace(report, kv=self._names.apply(report.kv), space=report.kv))

    def _lost(self, sentence: str) -> None:
        self._problem = sentence
        self._wake.set()

    # -- vLLM --

    async def _hear(self) -> None:
        """Take in the messages of vLLM's engine steps. Messages that are available at once become one report."""
        client = self._loaded.client
        while True:
            outputs: Any = await client.outputs()
            while outputs is not None:
                self._take(outputs)
                outputs = client.more()
            self._flush()

    def _take(self, outputs: Any) -> None:
        assert self._figures is not None
        now = self._heard = self._clock.now()
        self._figures.step(outputs)
        self.ledger.hear(outputs.outputs, now)
        self._load_stale = True

    async def _hear_names(self) -> None:
        """Take in the events of vLLM's prefix cache."""
        events, cached = self._loaded.events, self._cached
        assert events is not None
        assert cached is not None
        async for batch in events.batches():
            change = cached.forget() if batch is None else cached.apply(batch)
            self._deliver(StepReport(kv=self._names.apply(change), space=NO_CHANGE))

    async def _serve(self) -> None:
        """Give vLLM what it is to do, and look after deadlines. Raises `EngineGone`."""
        client, ledger, images = self._loaded.client, self.ledger, self._images
        assert images is not None
        while not self._stopping:
            self._wake.clear()
            if self._problem is not None:
                raise EngineGone
            self._watch()
            if ledger.next_look() <= (now := self._clock.now()):
                ledger.look(now, _said(self._loaded.heartbeats))
            if ledger.unread:
                images.wake()
            while ledger.to_send:
                order = ledger.to_send.pop(0)
                order.branch.sent = self._clock.now()
                await client.add(order.request)
            if ledger.to_abort:
                aborts, ledger.to_abort = ledger.to_abort, []
                await client.abort(aborts)
            self._flush()
            await self._wait_for_commands(min(ledger.next_look() - self._clock.now(), LOOK_EVERY_S))

    def _watch(self) -> None:
        """Whether vLLM's processes live and get on. Raises `EngineGone` when they do not."""
        now = self._clock.now()
        if now - self._looked < LOOK_EVERY_S:
            return
        self._looked, longest_s = now, self._longest_s()
        signs = self._loaded.heartbeats
        verdict = self._liveness.look(signs, longest_s, now)
        self._note_overdue(verdict.overdue_s)
        bound = self._bounds.hung_s(longest_s)
        assert self._images is not None
        images_hang = self._images.look(bound)
        if not self.ledger.computing:
            self._heard = now
        elif verdict.problem is None and now - self._heard > bound + _OVERDUE_SILENCE_S:
            verdict = LivenessVerdict(f"vLLM has work and was silent for more than {bound:g} s")
        if images_hang is not None:
            # Whose images these are hears of it while there is an engine that can tell.
            self._flush()
        if (problem := verdict.problem or images_hang) is None:
            stepping = any(sign.step_since is not None for sign in signs) or now - self._heard < 2 * LOOK_EVERY_S
            self.ledger.tell_progress(now, stepping=stepping, said=_said(signs))
        else:
            self._problem = problem
            self._loaded.kill()
            raise EngineGone

    def _activity(self, pid: int) -> Activity | None:
        return activity_of(pid, [sign.pid for sign in self._loaded.heartbeats])

    def _predicted_s(self, sign: HeartbeatSample) -> float:
        assert self._figures is not None
        return self._figures.predicted_s(sign.rows, sign.prompt_tokens)

    def _longest_s(self) -> float:
        """The longest time that a step may be expected to take: all rows, and a whole budget of a prompt's last
        tokens."""
        assert self._figures is not None
        scheduler, context = self._scheduler, self.info.context_tokens
        return self._figures.predicted_s(scheduler.max_sequences, scheduler.max_batched_tokens, context)

    # -- reports --

    def _flush(self) -> None:
        self._flush_due = False
        self._deliver(self.ledger.outbox.take(NO_CHANGE))
        if self.ledger.to_send or self.ledger.to_abort:
            self._wake.set()

    def _deliver(self, report: StepReport | None) -> None:
        """Give a report to the listener, with the load figures when they are due."""
        if self._listener is None:
            return
        now = self._clock.now()
        every = self._scheduler.load_every_s if self._load_stale else self._scheduler.idle_load_every_s
        if now - self._load_sent >= every:
            self._load_sent, self._load_stale = now, False
            report = msgspec.structs.replace(report or StepReport(), load=self._load(), **self._counts())
        if report is not None and report not in _NOTHING:
            self._listener(report)

    def _load(self) -> Load:
        assert self._figures is not None
        assert self._cached is not None
        exported = 0 if self._stage is None else self._stage.books.leases.exported
        longest_s = self._longest_s()
        return self._figures.load(self.ledger.runs, len(self._cached), exported, self._overdue_s, longest_s)

    def _counts(self) -> dict[str, Any]:
        """Fields of a report that are for metrics alone."""
        assert self._figures is not None
        experts = None if self._stage is None else self._stage.take_balance()
        return {"speculation": self._figures.take_speculation(), "experts": experts}


def _said(signs: Iterable[HeartbeatSample]) -> int:
    """Messages of notices."""
    return sum(sign.said for sign in signs)


_NOTHING: Final = (StepReport(), StepReport(space=NO_CHANGE))
