"""The scheduler: batching, chunking, preemption, prefix sharing, blocks and exports as one synchronous class.

`plan(now)` says what to compute next, `apply(result, now)` takes the answer; commands may come between the two. Slots
are handed out in `plan` alone, and never while a step runs, so a slot that a command frees during a step has no other
writer before that step has ended.
"""

from collections import Counter
from itertools import chain
from math import inf
from typing import Final

from tandem.core.errors import TandemError
from tandem.core.messages import Load
from tandem.engine.protocol import EngineInfo, EngineRequest, FirstTokens, Prefix, StepReport
from tandem.engine.scheduler.admission import Admission, refuse_impossible, refuse_lease
from tandem.engine.scheduler.engine_load import load_of
from tandem.engine.scheduler.events import EngineEvents
from tandem.engine.scheduler.kv_cache_manager import KvCacheManager
from tandem.engine.scheduler.output_processor import OutputProcessor
from tandem.engine.scheduler.plan import Step, StepResult
from tandem.engine.scheduler.request_deadlines import RequestDeadlines
from tandem.engine.scheduler.scheduler_state import SchedulerState
from tandem.engine.scheduler.sequence import ScheduledRequest, Sequence
from tandem.engine.scheduler.sequence_status import NOT_ADMITTED, SequenceStatus
from tandem.engine.scheduler.shared_exports import SharedExports
from tandem.engine.scheduler.stalled_kv_loads import StalledKvLoads
from tandem.engine.scheduler.step_budget import StepBudget
from tandem.engine.scheduler.step_draft import Draft, Entry
from tandem.engine.scheduler.step_planner import StepPlanner
from tandem.engine.scheduler.throughput import Throughput
from tandem.engine.settings import SchedulerSettings

_PREFILL: Final = SequenceStatus.RUNNING_PREFILL
_DECODE: Final = SequenceStatus.RUNNING_DECODE
_AWAITS_FIRST: Final = SequenceStatus.WAITING_FOR_FIRST_TOKEN

_TELL_PROGRESS_S: Final = 0.25


class Scheduler:
    """Owns every work of one engine. Not thread-safe; never blocks; reads no clock."""

    def __init__(self, info: EngineInfo, settings: SchedulerSettings) -> None:
        self.info = info
        self.settings = settings
        size = info.layout.block_tokens
        self.kv_cache = KvCacheManager(info.blocks, size, prefix_cache=settings.prefix_cache)
        self.leases = self.kv_cache.leases
        self.state = SchedulerState(self.kv_cache)
        self._outbox = EngineEvents()
        self._budget = StepBudget(settings)
        admission = Admission(self.state, settings, self._outbox)
        self._planner = StepPlanner(self.state, admission, self._budget, info.columns)
        self._stalled_kv_loads = StalledKvLoads(self.state, admission, self._outbox, settings)
        self.sharing = SharedExports(self.kv_cache, self._outbox, settings)
        """Blocks given to peers that no request here computes for them."""
        self._throughput = Throughput()
        self._jobs: dict[int, ScheduledRequest] = {}
        self._output_processor = OutputProcessor(self._jobs, self.state, self._outbox, self._close)
        self._deadlines = RequestDeadlines(self._jobs, settings.queue_s)
        self._told_progress = -inf
        self._flight: Draft | None = None
        self._steps = 0

    # -- commands --

    def submit(self, work: EngineRequest, now: float) -> None:
        """Queue a request. Raises `invalid_request`, `context_length_exceeded`, `out_of_blocks`, `queue_full`, and
        `cancelled` when its lease has already been released."""
        assert work.work_id not in self._jobs, f"work {work.work_id} is here already"
        assert work.mode in ("prefill", "decode", "local"), work.mode
        refuse_impossible(work, self.info)
        if len(self.state.waiting) >= self.settings.max_waiting:
            raise TandemError("queue_full", f"{self.settings.max_waiting} sequences are waiting already")
        refuse_lease(work, self.leases)
        size = self.info.layout.block_tokens
        job = ScheduledRequest(work, self.state.waiting.next_arrival(), now, self.info.eos_token_ids, size)
        self._jobs[work.work_id] = job
        self.state.enqueue(job.root)
        if job.leased:
            self.leases.open(work.lease_id, work.lease_s, job.export_names(size))
        self._deadlines.watch(job, now)

    def cancel(self, work_id: int, now: float, sequence: int | None = None) -> None:
        """Cancel a request, or one sequence of it, and free its blocks."""
        job = self._jobs.get(work_id)
        if job is None:
            return
        if sequence is None:
            self._end(job, now, completed=False)
            return
        branch = job.branches.get(sequence)
        if branch is not None and not branch.finished:
            self._close(branch, now)

    def provide_first(self, work_id: int, sequence: int, token: int, now: float, relay: bool = False) -> None:
        """The next position of a branch of a decode work. Repeats, and positions drawn here, are ignored."""
        job = self._jobs.get(work_id)
        branch = job.branches.get(sequence) if job is not None else None
        if job is None or branch is None or branch.finished or job.work.mode != "decode":
            return
        if branch.outputs != branch.forced:
            return
        branch.awaits_first = False
        self._prefill_over(job, now)
        self.state.blocks_ready(job)
        self._output_processor.accept(branch, token, None, now, emit=relay, relayed=relay)
        if branch.status is _AWAITS_FIRST:
            self.state.settle(branch)

    def sample_first(self, work_id: int, now: float) -> None:
        """Sample here the positions of a decode request that have not been provided. Blocks that a fetch does not
        bring are computed here, and no new fetch begins."""
        job = self._jobs.get(work_id)
        if job is None or job.work.mode != "decode":
            return
        self._prefill_over(job, now)
        self.state.prefill_lost(job)
        for branch in job.branches.values():
            branch.awaits_first = False
            if branch.status is _AWAITS_FIRST:
                self.state.settle(branch)
        self._stalled_kv_loads.prefill_lost(job)

    def _prefill_over(self, job: ScheduledRequest, now: float) -> None:
        """Note that no other worker computes the prompt of a decode request any more: its own waiting counts from
        now."""
        if job.waits_for_prefill:
            job.prefill_over = now
            self._deadlines.watch_wait(job)

    # -- blocks under transfer --

    def prefix(self, work_id: int) -> Prefix | None:
        """The full blocks that a waiting request begins with; None when the request no longer waits, or is
        private."""
        job = self._jobs.get(work_id)
        if job is None or job.root.status not in NOT_ADMITTED or job.work.private:
            return None
        names = tuple(job.root.names[: job.root.known // self.info.layout.block_tokens])
        return Prefix(names, len(self.kv_cache.pool.match(names)))

    def bring(self, work_id: int, blocks: int) -> None:
        """Have what is missing of a waiting work's first `blocks` blocks fetched before the rest is computed."""
        job = self._jobs.get(work_id)
        if job is not None and not job.work.private:
            self.state.bring(job, blocks)

    def landed(self, work_id: int, index: int, digests: bytes, now: float) -> None:
        """Record that block `index` of the request's fetch is in its slot and verified."""
        if work_id < 0:
            self.sharing.peer_reads.landed(work_id, index, digests)
            return
        job = self._jobs.get(work_id)
        if job is not None:
            self.state.landed(job, index, digests, now)
            self._tell_landed(job, now)
            self._note_prefilled(job, now)

    def fetch_ended(self, work_id: int, reason: str | None, now: float, late: tuple[int, ...] = ()) -> None:
        """The fetch is over; `late` slots stay in quarantine."""
        if work_id < 0:
            self.sharing.peer_reads.ended(work_id, late)
            return
        job = self._jobs.get(work_id)
        if job is not None and reason is not None:
            job.explain(f"fetch ended: {reason}")
        self.state.fetch_ended(work_id, job, late)
        if job is not None:
            self._note_prefilled(job, now)

    def invalidate(self, slot: int, now: float) -> None:
        """Withdraw a complete block whose bytes are damaged: it is not used any more, and requests that have used it
        fail."""
        self.kv_cache.pool.invalidate(slot)
        for job in tuple(self._jobs.values()):
            if any(slot in sequence.table for sequence in job.sequences):
                self._fail(job, "kv_corrupt", "a KV block that it attends to was damaged in memory", now)

    # -- steps --

    def plan(self, now: float) -> tuple[Step | None, StepReport | None]:
        """The next step, or None when nothing can be computed now, together with the report of what planning
        changed."""
        assert self._flight is None, "the last step has not been applied"
        self.leases.expire(now)
        for job, reason in self._deadlines.passed(now):
            self._fail(job, "deadline_exceeded", reason, now)
        draft = self._planner.draft(now)
        for _ in range(8):
            if not draft.empty or not (self.state.ready_again or draft.preempted):
                break
            draft = self._planner.draft(now)
        for job in self._stalled_kv_loads.give_way(now):
            self._deadlines.watch_wait(job)
        self.sharing.admit(requests_wait=self._planner.admission.shortage is not None)
        step = None
        if not draft.empty:
            self._steps += 1
            self._note_computing(draft, now)
            step = draft.step(self._steps, self.kv_cache.take_landed(), self.info.layout.block_tokens)
            self._flight = draft
        return step, self.take_report()

    def apply(self, result: StepResult, now: float) -> StepReport | None:
        """Take the result of the step that `plan` gave last."""
        draft, self._flight = self._flight, None
        assert draft is not None, "no step runs"
        assert result.number == self._steps, f"step {self._steps} runs, not {result.number}"
        if not draft.unmeasured:
            load = draft.load()
            self._budget.observe(load, result.compute_s)
            self._throughput.observe(load, result.compute_s)
        for source, _ in draft.copies.values():
            self.kv_cache.pool.release(source)
        taken = self._fill(draft, result)
        for entry in draft.entries.values():
            status, count = entry.sequence.status, len(entry.complete)
            if status is _DECODE or status is _PREFILL:
                if count or entry.prefill:
                    self._advance(entry, result.digests[taken : taken + count], now)
                else:
                    entry.sequence.computed = entry.end
            taken += count
        self._note_computed(draft, now)
        self._output_processor.columns(draft.generating, result.tokens, now)
        self._output_processor.drawn(result.drawn, now)
        for entry in draft.entries.values():
            if entry.prefill and entry.sequence.status is _PREFILL:
                self.state.settle(entry.sequence)
        return self.take_report()

    def _advance(self, entry: Entry, digests: tuple[bytes, ...], now: float) -> None:
        """Count what a row computed and publish the blocks it completed."""
        sequence, start = entry.sequence, entry.row.start
        sequence.computed = entry.end
        for block, words in zip(entry.complete, digests, strict=True):
            self.kv_cache.complete(sequence, block, words)
        if not entry.prefill:
            return
        job = sequence.job
        job.chunks += 1
        if start < sequence.known:
            job.tokens_computed += min(entry.end, sequence.known) - start
            if not entry.row.write:
                job.count_again()
        if sequence is job.root:
            self._note_prefilled(job, now)
            if sequence.is_parent and sequence.computed == sequence.length:
                self.state.fork(sequence)

    def _fill(self, draft: Draft, result: StepResult) -> int:
        """Publish the blocks that columns have completed; gives how many there were."""
        for (sequence, block), digests in zip(draft.filled.items(), result.digests, strict=False):
            if sequence.status is _DECODE:
                self.kv_cache.complete(sequence, block, digests)
        return len(draft.filled)

    # -- ends --

    def _close(self, branch: Sequence, now: float) -> None:
        """Finish a branch. The request ends with its last branch."""
        if branch is not branch.job.root:
            self.state.finish(branch)
        branch.job.live -= 1
        if branch.job.live == 0:
            self._end(branch.job, now, completed=bool(branch.job.first))

    def _end(self, job: ScheduledRequest, now: float, completed: bool) -> None:
        """Let go of everything but, after a prefill that decode is to go on from, the exported blocks."""
        del self._jobs[job.work.work_id]
        for sequence in job.sequences:
            self.state.finish(sequence)
        self.kv_cache.settle_export_due(job, job.export_due)
        wanted = any(finish is None for _, _, finish in job.first)
        if job.leased and completed and wanted:
            self.leases.sampled(job.work.lease_id, FirstTokens(tuple(sorted(job.first))))
            self.leases.produced(job.work.lease_id, now)
        elif job.leased:
            self.leases.release(job.work.lease_id)
        self._outbox.end(job.work.work_id, job.stats(now))

    def _fail(self, job: ScheduledRequest, code: str, message: str, now: float) -> None:
        self._outbox.fail(job.work.work_id, code, message)
        self._end(job, now, completed=False)

    def _note_computing(self, draft: Draft, now: float) -> None:
        for entry in draft.entries.values():
            if entry.prefill and entry.sequence.job.computing is None:
                entry.sequence.job.computing = now

    def _note_computed(self, draft: Draft, now: float) -> None:
        """Prompts have got on, and with them everything that waits for its place, or its turn, behind them."""
        prompts = [entry.sequence.job for entry in draft.entries.values() if entry.prefill]
        if not prompts:
            return
        self._deadlines.moved(now)
        self._tell_progress(prompts, now)

    def _tell_progress(self, prompts: list[ScheduledRequest], now: float) -> None:
        if now - self._told_progress < _TELL_PROGRESS_S:
            return
        self._told_progress = now
        self._get_on([job for job in self._jobs.values() if job.waits_its_turn or job in prompts], now)

    def _tell_landed(self, job: ScheduledRequest, now: float) -> None:
        """Blocks that land are progress of their own work, and of no other."""
        if now - job.told_landed >= _TELL_PROGRESS_S:
            job.told_landed = now
            self._get_on([job], now)

    def _get_on(self, jobs: list[ScheduledRequest], now: float) -> None:
        self._outbox.progress((job.work_id, job.tokens_computed) for job in jobs)
        for job in jobs:
            if job.leased:
                self.leases.move(job.work.lease_id, now)

    def _note_prefilled(self, job: ScheduledRequest, now: float) -> None:
        if job.prefilled is None and (job.root.finished or job.root.computed >= job.root.known):
            job.prefilled = now

    # -- figures --

    def take_report(self) -> StepReport | None:
        """The report of what has happened since the last one; None when nothing has."""
        return self._outbox.take(self.kv_cache.pool.take_changes())

    def next_wake(self, now: float) -> float | None:
        """When `plan` must be called again even if no command arrives; None for never."""
        if self.state.ready_again:
            return now
        soonest = min(self._deadlines.next(), self.leases.next_expiry, self._stalled_kv_loads.next_look(now))
        return soonest if soonest != float("inf") else None

    def load(self) -> Load:
        """The present load of this engine."""
        budget = self._budget
        return load_of(self.state, self._throughput, budget.prompt_cost, budget.longest_s, budget.fit)

    def set_itl_target(self, itl_target_s: float | None) -> None:
        """Set how long a step beside running sequences may take, in seconds, from now on; None restores the value
        from the settings."""
        self._budget.set_itl_target(itl_target_s)

    def overdue_s(self, now: float) -> float:
        """Seconds by which the most overdue request has missed its deadline; 0 when no request has missed it."""
        return max((now - job.work.deadline for job in self._jobs.values()), default=0.0)

    @property
    def predicted_s(self) -> float:
        """Seconds that the running step is expected to take; zero between steps."""
        return self._budget.predicted_s(self._flight.load()) if self._flight is not None else 0.0

    def give_up(self, reason: str, now: float) -> None:
        """Fail every work: this engine does not get on, and another may."""
        for job in tuple(self._jobs.values()):
            self._fail(job, "worker_lost", reason, now)

    def snapshot(self) -> tuple[bytes, ...]:
        """Names of all full blocks available now."""
        return self.kv_cache.pool.snapshot()

    def check(self) -> None:
        """Assert the invariants: no slot leaks, is used twice, or is held by something that is gone."""
        refs = Counter(self.leases.pins())
        tables = [sequence.table for sequence in self.state.batch]
        if self._flight is not None:
            tables.append([source for source, _ in self._flight.copies.values()])
        tables.append(self.sharing.peer_reads.slots())
        refs.update(chain.from_iterable(tables))
        self.kv_cache.pool.check(refs)
        self.state.check(self._jobs)
        waiting = len(self.state.waiting)
        # Submits are refused at the first bound; what is preempted beyond it was admitted within the second.
        assert waiting <= self.settings.max_waiting + self.settings.max_sequences, f"{waiting} sequences wait"
        self.leases.check()
        assert self.kv_cache.export_due == sum(job.export_due for job in self._jobs.values())
