"""Running fetches: one task per work that waits for blocks of its prompt."""

import asyncio
from contextlib import suppress

from kv_transfer.fetch import KvLoadSpec, ignore_failure, ignore_report
from kv_transfer.fetch_progress import FetchReport
from tandem.core.messages import RemoteKv
from tandem.engine.protocol import FetchJob
from tandem.worker.attempt_manager import AttemptManager
from tandem.worker.attempts import Attempt
from tandem.worker.deps import KvFetcher, WorkerDeps


class Fetches:
    """Starts and stops fetches. Every job ends with `fetch_ended` on the engine's block space, whatever happens."""

    def __init__(self, parts: WorkerDeps, desk: AttemptManager, fetcher: KvFetcher | None) -> None:
        self._engine = parts.engine
        self._unjudged_s = parts.deadlines.unjudged_s
        self._desk = desk
        self._fetcher = fetcher
        self._group: asyncio.TaskGroup | None = None
        self._waiting: dict[int, asyncio.Task[None]] = {}
        """Created and not yet begun: a task cancelled that early never runs."""
        self._running: dict[int, asyncio.Task[None]] = {}

    def run_in(self, group: asyncio.TaskGroup) -> None:
        """The group whose tasks the fetches become."""
        self._group = group

    def start(self, job: FetchJob) -> None:
        """Fetch for a work, unless the work is no longer wanted."""
        if job.peer_read:
            self._start_peer_read(job)
            return
        attempt = self._desk.running(job.work_id)
        remote = attempt.submit.remote if attempt is not None and job.hand_off else None
        nowhere = job.hand_off and remote is None
        if attempt is None or nowhere or self._fetcher is None or self._group is None:
            self._refuse(job.work_id, "nobody fetches for this work")
            return
        fetch = self._fetch(attempt, job, remote, self._fetcher)
        self._waiting[job.work_id] = self._group.create_task(fetch, name=f"fetch {job.work_id}")

    def _start_peer_read(self, job: FetchJob) -> None:
        """Read blocks from own tiers for a peer that waits for them."""
        if self._fetcher is None or self._group is None:
            self._refuse(job.work_id, "nobody fetches here")
            return
        bringing = KvLoadSpec(len(job.targets), patience_s=0.0)
        self._group.create_task(_guest(self._fetcher, job, bringing), name=f"fetch for a peer {job.work_id}")

    def stop(self, work_id: int) -> None:
        """Stop the fetch of a work whose blocks are not wanted, or not now: its `fetch_ended` comes at once."""
        waiting = self._waiting.pop(work_id, None)
        if waiting is not None:
            waiting.cancel()
            self._refuse(work_id, "cancelled")
        running = self._running.pop(work_id, None)
        if running is not None:
            running.cancel()

    async def _fetch(self, attempt: Attempt, job: FetchJob, remote: RemoteKv | None, fetcher: KvFetcher) -> None:
        self._running[job.work_id] = task = self._waiting.pop(job.work_id)

        async def failed(report: FetchReport) -> None:
            await self._ask(attempt, report)

        try:
            report = await fetcher.fetch(
                job,
                remote,
                attempt.bringing,
                attempt.landed,
                attempt.prefilled,
                failed if attempt.submit.confirm_recompute else ignore_failure,
            )
        finally:
            if self._running.get(job.work_id) is task:
                del self._running[job.work_id]
        if report is not attempt.fetch:
            self._told(attempt, report)

    async def _ask(self, attempt: Attempt, report: FetchReport) -> None:
        """Report to the router that the hand-off of an attempt has failed, and wait for its confirmation. Without
        one, the missing blocks are computed all the same once the router should have judged."""
        self._told(attempt, report)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._unjudged_s):
                await attempt.confirmed.wait()

    def _told(self, attempt: Attempt, report: FetchReport) -> None:
        attempt.fetch = report
        self._desk.fetched(attempt, report)

    def _refuse(self, work_id: int, reason: str) -> None:
        space = self._engine.kv
        assert space is not None, "an engine without a block space asks for no fetch"
        space.fetch_ended(work_id, reason)


async def _guest(fetcher: KvFetcher, job: FetchJob, bringing: KvLoadSpec) -> None:
    await fetcher.fetch(job, None, bringing, ignore_report, None, ignore_failure)
