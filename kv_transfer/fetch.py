"""The receiver's side of a hand-off: bring the blocks of one prompt into their slots, believe only what verifies.

`FetchProgress` decides when to wait and when to give up; `Fetcher` is the shell around a transport's pull. What
does not arrive, or does not verify, is computed by the engine instead: a fetch never fails a request.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from kv_transfer.fetch_progress import FetchProgress, FetchReport, routes
from kv_transfer.transport import Delivered, Landed, Missing, Pull, PullOpen, Transport
from kv_transfer.verify import Refusal, Verifier
from tandem.core.clock import Clock
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.core.messages import RemoteKv
from tandem.core.metrics import Meter
from tandem.engine.protocol import BlockMemory, BlockSpace, FetchJob, FetchTarget
from tandem.service.logs import event as log_event

_log = logging.getLogger(__name__)

_TIMER_SLACK_S: Final = 0.05


@dataclass(frozen=True)
class FetchSettings:
    """`attempts_max` counts pulls of one fetch; after `verify_bytes_per_tick` others get their turn on the loop.

    A failed pull that closes within `close_grace_s` leaves its slots to the engine; else they are quarantined.
    """

    attempts_max: int = 3
    verify_bytes_per_tick: int = 4 << 20
    close_grace_s: float = 0.05


class Fetcher:
    """Runs fetches for one engine. Transports are asked in the order of the holder's addresses."""

    def __init__(
        self,
        space: BlockSpace,
        transports: Sequence[Transport],
        clock: Clock,
        deadlines: Deadlines,
        meter: Meter,
        settings: FetchSettings | None = None,
    ) -> None:
        self._space = space
        self._transports = {transport.scheme: transport for transport in transports}
        self._clock = clock
        self._deadlines = deadlines
        self._meter = meter
        self._settings = settings or FetchSettings()
        self._verifier = Verifier(space.layout)
        self._settling: dict[asyncio.Task[None], None] = {}

    async def fetch(self, job: FetchJob, remote: RemoteKv) -> FetchReport:
        """Bring the blocks of `job` and the first tokens from `remote`.

        Always ends with `fetch_ended` on the block space, also when cancelled; if the pull is not closed by then,
        the slots it could still write are quarantined until it is. Never raises a `TandemError`: the report says
        what went wrong.
        """
        progress = FetchProgress(job, self._deadlines, self._space.layout.block_bytes, self._clock.now())
        run = _Run(self._space, self._verifier, self._settings, self._clock, self._meter, progress, remote)
        try:
            failure = await self._attempts(run)
            reason = None if failure is None else _told(failure)
            acknowledged = reason is None and await run.acknowledge()
            if reason is not None:
                await run.let_go()
                await run.close_within(self._settings.close_grace_s)
        except asyncio.CancelledError:
            self._end(run, "cancelled")
            raise
        settling = self._end(run, reason)
        if settling is not None:
            await asyncio.wait((settling,))
        code = "" if failure is None else failure.code
        report = progress.report(reason, acknowledged, self._clock.now(), code)
        if report.passed_over and reason is None:
            self._fell_back(report, remote)
        if reason is None or report.blocks:
            self._meter.observe("tandem_kv_transfer_seconds", report.seconds, report.path)
        return report

    async def close(self) -> None:
        """Wait until every abandoned pull is closed."""
        if self._settling:
            await asyncio.wait(tuple(self._settling))

    async def _attempts(self, run: "_Run") -> TandemError | None:
        """Pull over one address after the other; gives what the last one failed with."""
        offered = run.remote.addresses
        addresses = routes(offered, tuple(self._transports), self._settings.attempts_max)
        failure = TandemError("transfer_failed", f"no transport in common: {', '.join(offered) or 'no address'}")
        for address in addresses:
            transport = self._transports[address.partition("://")[0]]
            await run.close_within(run.progress.deadline() - self._clock.now())
            if run.opened is not None:
                return failure
            try:
                await run.pull(transport, address)
            except TandemError as error:
                failure = error
                run.progress.failed.setdefault(transport.scheme, error.message)
                if error.code != "transfer_failed" or self._clock.now() >= run.progress.deadline():
                    return failure
            else:
                return None
        return failure

    def _fell_back(self, report: FetchReport, remote: RemoteKv) -> None:
        """The holder prefers a transport that did not carry: that must not go unseen."""
        preferred = report.passed_over[0].partition(":")[0]
        self._meter.add("tandem_kv_fallbacks_total", 1.0, preferred, report.path)
        reasons = "; ".join(report.passed_over)
        holder = remote.worker_id
        log_event(_log, "kv_fallback", level=logging.WARNING, holder=holder, path=report.path, reasons=reasons)

    def _end(self, run: "_Run", reason: str | None) -> asyncio.Task[None] | None:
        """Tell the engine, and close what is open in a task that a cancelled caller cannot cut short."""
        job = run.progress.job
        if run.opened is None:
            self._space.fetch_ended(job.work_id, reason)
            return None
        late = tuple(target.slot for target in run.progress.open_targets())
        self._space.fetch_ended(job.work_id, reason, late)
        task = asyncio.get_running_loop().create_task(self._settle(run, late), name=f"kv-settle-{job.work_id}")
        self._settling[task] = None
        task.add_done_callback(self._settling.pop)
        return task

    async def _settle(self, run: "_Run", late: tuple[int, ...]) -> None:
        await run.close()
        if late:
            self._space.quarantine_over(late)


def _told(failure: TandemError) -> str:
    return f"{failure.code}: {failure.message}"


class _Run:
    """One fetch while it runs: its progress and the pull that is open, if any."""

    def __init__(
        self,
        space: BlockSpace,
        verifier: Verifier,
        settings: FetchSettings,
        clock: Clock,
        meter: Meter,
        progress: FetchProgress,
        remote: RemoteKv,
    ) -> None:
        self.progress = progress
        self.remote = remote
        self.opened: Pull | None = None
        self._space = space
        self._verifier = verifier
        self._settings = settings
        self._clock = clock
        self._meter = meter
        self._unyielded_bytes = 0
        self._closing: asyncio.Future[None] | None = None

    async def pull(self, transport: Transport, address: str) -> None:
        """One attempt at what is still open. Raises `TandemError` when it does not bring everything."""
        targets = self.progress.open_targets()
        left_s = self.progress.deadline() - self._clock.now()
        sink = _Slots(self._space.memory, targets)
        request = PullOpen(
            lease_id=self.remote.lease_id,
            ticket=self.remote.ticket,
            holder_epoch=self.remote.epoch,
            receiver_epoch=self._space.epoch,
            layout=self._space.layout,
            names=tuple(target.name for target in targets),
        )
        self.progress.path = transport.scheme
        self.opened = await transport.open(address, request, sink, left_s)
        before = self.progress.blocks
        try:
            await self._take(self.opened, targets, sink)
        finally:
            moved = (self.progress.blocks - before) * self.progress.block_bytes
            self._meter.add("tandem_kv_transfer_bytes_total", moved, transport.scheme)
        if not self.progress.whole:
            left = len(self.progress.open_targets())
            raise TandemError("kv_gone", f"the holder ended the pull with {left} blocks not sent")

    async def acknowledge(self) -> bool:
        """Tell the holder it may let go. If that fails, or takes as long as a stalled transfer may, its lease ends
        by itself."""
        assert self.opened is not None
        with suppress(TandemError, TimeoutError):
            async with asyncio.timeout(self.progress.deadlines.transfer_progress_s):
                await self.opened.acknowledge()
            return True
        return False

    async def let_go(self) -> None:
        """The fetch has failed for good: tell the holder, if that can be done at once. The router does so too."""
        if self.opened is not None:
            with suppress(TandemError, TimeoutError):
                async with asyncio.timeout(self._settings.close_grace_s):
                    await self.opened.acknowledge()

    async def _refuse(self, index: int) -> None:
        assert self.opened is not None
        with suppress(TandemError, TimeoutError):
            async with asyncio.timeout(self._settings.close_grace_s):
                await self.opened.refuse(index)

    async def close(self) -> None:
        """Close the pull, if one is open. Cancelling the caller does not stop the closing."""
        if self.opened is not None:
            if self._closing is None:
                self._closing = asyncio.ensure_future(self.opened.close())
            await asyncio.shield(self._closing)
            self.opened = self._closing = None

    async def close_within(self, bound_s: float) -> None:
        """As `close`, but `opened` stays set when it takes longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(bound_s):
                await self.close()

    async def _take(self, pull: Pull, targets: tuple[FetchTarget, ...], sink: "_Slots") -> None:
        try:
            async with asyncio.timeout_at(self.progress.deadline()) as limit, aclosing(pull.events()) as events:
                async for event in events:
                    self.progress.heard(event, self._clock.now())
                    if isinstance(event, Missing):
                        raise TandemError("kv_gone", f"block {event.index} will not come: {event.reason}")
                    if isinstance(event, Landed):
                        await self._accept((event,), targets, sink)
                    elif isinstance(event, Delivered):
                        await self._accept(event.blocks, targets, sink)
                    # Moving a timer costs more than looking at it, so it may be a little early but not late.
                    if self.progress.deadline() - (limit.when() or 0.0) > _TIMER_SLACK_S:
                        limit.reschedule(self.progress.deadline())
        except TimeoutError:
            raise TandemError("transfer_failed", f"{self.remote.worker_id} made no progress") from None

    async def _accept(self, landed: tuple[Landed, ...], targets: tuple[FetchTarget, ...], sink: "_Slots") -> None:
        """Believe what verifies; raises at the first block that does not."""
        blocks = [sink.block(event.index) for event in landed]
        wanted = [targets[event.index] for event in landed]
        found = self._verifier.check(
            blocks,
            [event.handle for event in landed],
            epoch=self.remote.epoch,
            names=[target.name for target in wanted],
        )
        now, work_id = self._clock.now(), self.progress.job.work_id
        for event, target, words in zip(landed, wanted, found, strict=True):
            if isinstance(words, Refusal):
                self._meter.add("tandem_kv_blocks_refused_total", 1.0, words.reason)
                if words.reason == "digest":
                    await self._refuse(event.index)
                raise TandemError("kv_corrupt", words.message)
            self.progress.landed(target.index, now)
            self._space.landed(work_id, target.index, words)
        self._unyielded_bytes += len(landed) * self.progress.block_bytes
        if self._unyielded_bytes >= self._settings.verify_bytes_per_tick:
            self._unyielded_bytes = 0
            await asyncio.sleep(0)


class _Slots:
    """`kv_transfer.transport.BlockSink` over the slots the engine reserved."""

    def __init__(self, memory: BlockMemory, targets: tuple[FetchTarget, ...]) -> None:
        self._memory = memory
        self._targets = targets

    def block(self, index: int) -> memoryview:
        return self._memory.block(self._targets[index].slot)
