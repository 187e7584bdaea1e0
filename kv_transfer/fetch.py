"""Fetching: bring the blocks of one prompt into their slots, from any holder that has them.

Hand-off, prefix reuse, restoring from own tiers, fail-over and migration are this one operation. A fetch asks one
origin after the other for the blocks that are still open: own tiers, then other holders, then the worker that
computes the prompt for this request. Each is a leg with its own bounds, and is closed before the next one begins. The
engine computes what does not arrive or does not verify: a fetch never fails a request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from kv_transfer.fetch_progress import FetchProgress, FetchReport, OriginReport, PrefillStatus
from kv_transfer.fetch_pull import FetchSettings, PeerFetch, Receiver
from kv_transfer.fetch_tiers import TierFetch
from kv_transfer.tiers.protocol import Tiers
from kv_transfer.transport.protocol import Transport
from kv_transfer.verify import Verifier
from tandem.core.clock import Clock
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.core.messages import RemoteKv, Source
from tandem.core.metrics import Meter
from tandem.engine.hashing import Hashing, InlineHashing
from tandem.engine.protocol import BlockSpace, FetchJob, FetchTarget
from tandem.process.logs import event as log_event

__all__ = ["FetchSettings", "Fetcher", "KvLoadSpec"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KvLoadSpec:
    """The places from which the first `blocks` blocks of a prompt may come besides a hand-off: own tiers, then
    `sources`.

    `patience_s` is the time that computing these blocks would take. Loading them is given up when it exceeds that
    time by the bound for a stalled transfer.
    """

    blocks: int = 0
    sources: tuple[Source, ...] = ()
    patience_s: float = inf


_NOTHING = KvLoadSpec()

OnAllReceived = Callable[[FetchReport], None]


OnHandOffFailed = Callable[[FetchReport], Awaitable[None]]
"""Hears of a hand-off that has failed, and returns when what is missing may be computed here."""


def ignore_report(_report: FetchReport) -> None:
    """Ignore the report: no caller needs it."""


async def ignore_failure(_report: FetchReport) -> None:
    """Return at once: nothing need be asked before the missing blocks are computed here."""


class Fetcher:
    """Runs fetches for one engine. Transports are asked in the order of the holder's addresses; without `hashing`
    what arrives is checked on the event loop."""

    def __init__(
        self,
        space: BlockSpace,
        transports: Sequence[Transport],
        clock: Clock,
        deadlines: Deadlines,
        meter: Meter,
        settings: FetchSettings | None = None,
        tiers: Tiers | None = None,
        hashing: Hashing | None = None,
    ) -> None:
        self._space = space
        self._clock = clock
        self._deadlines = deadlines
        self._meter = meter
        self._settings = settings or FetchSettings()
        by_scheme = {transport.scheme: transport for transport in transports}
        verifier = Verifier(hashing or InlineHashing(space.layout))
        self._receiver = Receiver(space, by_scheme, verifier, clock, meter, self._settings)
        self._tiers = tiers
        self._settling: dict[asyncio.Task[None], None] = {}

    async def fetch(
        self,
        job: FetchJob,
        remote: RemoteKv | None,
        bringing: KvLoadSpec = _NOTHING,
        whole: OnAllReceived = ignore_report,
        prefilled: PrefillStatus | None = None,
        failed: OnHandOffFailed = ignore_failure,
    ) -> FetchReport:
        """Bring the blocks of `job`, and the first tokens when `remote` computes the prompt for this request.

        `whole` receives the report of a hand-off when its last block has landed, right before the engine is notified,
        or at once where nothing was left for the hand-off to bring: the remaining messages to the holder may then
        take longer than a short answer. While `prefilled` does not say that the prompt is computed, the holder may be
        silent longer. The report of a failed hand-off goes to `failed` first: until that returns, or the fetch is
        cancelled, the engine computes none of the missing blocks.

        Always ends with `fetch_ended` on the block space, also when cancelled. If something is not closed by then,
        the slots that it could still write are quarantined until it is. Never raises a `TandemError`: the report says
        what went wrong.
        """
        run = _Fetch(job, self._clock.now())
        try:
            await self._bring(run, bringing)
            if remote is None or run.stuck:
                report = self._ended(run, remote)
            else:
                report = await self._hand_over(run, remote, whole, prefilled)
            report = replace(report, brought=tuple(run.brought))
            if remote is not None and report.reason is not None:
                run.failed = report.reason
                await failed(report)
        except asyncio.CancelledError:
            self._end(run, run.failed or "cancelled")
            raise
        settling = self._end(run, report.reason)
        if settling is not None:
            await asyncio.wait((settling,))
        return report

    async def close(self) -> None:
        """Wait until everything that was abandoned is closed."""
        if self._settling:
            await asyncio.wait(tuple(self._settling))
        self._receiver.verifier.close()

    # -- what somebody has already --

    async def _bring(self, run: "_Fetch", bringing: KvLoadSpec) -> None:
        until = run.started + bringing.patience_s + self._deadlines.transfer_progress_s
        if self._tiers is not None:
            await self._restore(run, self._tiers, bringing.blocks, until)
        for source in bringing.sources:
            targets = run.open_below(min(bringing.blocks, source.blocks))
            if targets and not run.stuck and self._clock.now() < until:
                await self._reuse(run, source, targets, until)

    async def _restore(self, run: "_Fetch", tiers: Tiers, blocks: int, until: float) -> None:
        targets = run.open_below(blocks)
        found = tiers.where([target.name for target in targets])
        if not found:
            return
        progress = self._progress(run, targets[: len(found)], until)
        leg = run.leg = TierFetch(self._space, tiers, self._clock, self._meter, progress)
        failure = await leg.run()
        await leg.close_within(self._settings.close_grace_s)
        self._over(run, progress, found[0], "", failure)

    async def _reuse(self, run: "_Fetch", source: Source, targets: tuple[FetchTarget, ...], until: float) -> None:
        progress = self._progress(run, targets, until)
        holder = RemoteKv(source.holder, source.epoch, source.addresses, source.lease_id, source.ticket)
        leg = run.leg = PeerFetch(self._receiver, progress, holder, hand_off=False)
        failure = await leg.run()
        await leg.let_go()
        await leg.close_within(self._settings.close_grace_s)
        self._over(run, progress, source.kind, source.holder, failure)

    def _over(
        self, run: "_Fetch", progress: FetchProgress, origin: str, holder: str, failure: TandemError | None
    ) -> None:
        for brought in run.over(progress, origin, holder, failure):
            self._meter.add("tandem_kv_blocks_brought_total", brought.blocks, brought.origin)

    # -- what is computed for this request --

    async def _hand_over(
        self, run: "_Fetch", remote: RemoteKv, whole: OnAllReceived, prefilled: PrefillStatus | None
    ) -> FetchReport:
        progress = self._progress(run, run.open_below(None), inf)
        progress.prefilled = prefilled

        def landed() -> None:
            whole(replace(progress.report(None, False, self._clock.now()), brought=tuple(run.brought)))

        if progress.whole:
            landed()
        leg = run.leg = PeerFetch(self._receiver, progress, remote, hand_off=True, whole=landed)
        failure = await leg.run()
        acknowledged = failure is None and await leg.acknowledge()
        reason = None if failure is None else _told(failure)
        if reason is not None:
            await leg.let_go()
            await leg.close_within(self._settings.close_grace_s)
        code = "" if failure is None else failure.code
        report = progress.report(reason, acknowledged, self._clock.now(), code)
        if report.passed_over and reason is None:
            self._fell_back(report, remote)
        if reason is None or report.blocks:
            self._meter.observe("tandem_kv_transfer_seconds", report.seconds, report.path)
        return report

    def _fell_back(self, report: FetchReport, remote: RemoteKv) -> None:
        """The holder prefers a transport that did not carry: that must not go unseen."""
        preferred = report.passed_over[0].partition(":")[0]
        self._meter.add("tandem_kv_fallbacks_total", 1.0, preferred, report.path)
        reasons = "; ".join(report.passed_over)
        holder = remote.worker_id
        log_event(_log, "kv_fallback", level=logging.WARNING, holder=holder, path=report.path, reasons=reasons)

    # -- ends --

    def _ended(self, run: "_Fetch", remote: RemoteKv | None) -> FetchReport:
        """The fetch ends without a hand-off: there is none, or something cannot be closed that may still write."""
        failure = None
        if remote is not None:
            failure = TandemError("transfer_failed", "what was to bring other blocks could not be stopped")
        elif left := len(run.open_below(None)):
            failure = TandemError("kv_gone", f"{left} blocks were found nowhere")
        progress = self._progress(run, run.open_below(None), inf)
        reason = None if failure is None else _told(failure)
        code = "" if failure is None else failure.code
        report = progress.report(reason, False, self._clock.now(), code)
        return replace(report, handed_over=remote is not None)

    def _progress(self, run: "_Fetch", targets: tuple[FetchTarget, ...], until: float) -> FetchProgress:
        job = replace(run.job, targets=targets)
        return FetchProgress(job, self._deadlines, self._space.layout.block_bytes, self._clock.now(), until)

    def _end(self, run: "_Fetch", reason: str | None) -> asyncio.Task[None] | None:
        """Tell the engine, and close what is open in a task that a cancelled caller cannot cut short."""
        work_id, leg = run.job.work_id, run.leg
        if leg is None or leg.opened is None:
            self._space.fetch_ended(work_id, reason)
            return None
        late = tuple(target.slot for target in leg.progress.open_targets())
        self._space.fetch_ended(work_id, reason, late)
        task = asyncio.get_running_loop().create_task(self._settle(leg, late), name=f"kv-settle-{work_id}")
        self._settling[task] = None
        task.add_done_callback(self._settling.pop)
        return task

    async def _settle(self, leg: "PeerFetch | TierFetch", late: tuple[int, ...]) -> None:
        if isinstance(leg, PeerFetch) and not leg.hand_off:
            # Of a hand-off the router tells whoever computes it; of what is only shared nobody else would.
            await leg.let_go()
        await leg.close()
        if late:
            self._space.quarantine_over(late)


class _Fetch:
    """One running fetch: what its legs have brought so far, and the latest leg."""

    def __init__(self, job: FetchJob, started: float) -> None:
        self.job = job
        self.started = started
        self.leg: PeerFetch | TierFetch | None = None
        self.brought: list[OriginReport] = []
        self.failed: str | None = None
        """Why its hand-off has failed."""
        self._landed: dict[int, None] = {}

    @property
    def stuck(self) -> bool:
        """Whether the last leg could not be closed: its slots may still be written, so nothing else may begin."""
        return self.leg is not None and self.leg.opened is not None

    def open_below(self, blocks: int | None) -> tuple[FetchTarget, ...]:
        """Targets that have not landed, among the first `blocks` blocks of the prompt or among all of them."""
        return tuple(
            target
            for target in self.job.targets
            if target.index not in self._landed and (blocks is None or target.index < blocks)
        )

    def over(
        self, progress: FetchProgress, origin: str, holder: str, failure: TandemError | None
    ) -> tuple[OriginReport, ...]:
        """Record the blocks that a finished leg has brought, and return their reports."""
        open_now = {target.index: None for target in progress.open_targets()}
        self._landed.update((target.index, None) for target in progress.job.targets if target.index not in open_now)
        brought = progress.brought(origin, holder, None if failure is None else _told(failure))
        self.brought += brought
        return brought


def _told(failure: TandemError) -> str:
    return f"{failure.code}: {failure.message}"
