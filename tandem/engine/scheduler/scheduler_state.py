"""The sequences of one scheduler, and how each moves from state to state.

Everything here changes state in place and decides nothing about *when*: `admission` and `step_planner` do.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from tandem.engine.scheduler.batch import Batch
from tandem.engine.scheduler.kv_cache_manager import KvCacheManager
from tandem.engine.scheduler.sequence import Fetch, ScheduledRequest, Sequence
from tandem.engine.scheduler.sequence_status import NOT_ADMITTED, SequenceStatus
from tandem.engine.scheduler.waiting_queue import WaitingQueues

_UNFORKED: Final = SequenceStatus.WAITING_FOR_PARENT


class SchedulerState:
    """The waiting queues, the batch and the block tables of one scheduler: every sequence is in the one that its
    state says."""

    def __init__(self, kv_cache: KvCacheManager) -> None:
        self.kv_cache = kv_cache
        self.waiting = WaitingQueues()
        self.batch = Batch()
        self.bringing: dict[bytes, int] = {}
        """Blocks being fetched that are not being computed anywhere now, each with the work it is fetched for."""
        self.preemptions = 0
        self.ready_again = False
        """A sequence became ready to run; a plan that came out empty is worth making again."""

    # -- waiting and running --

    def enqueue(self, sequence: Sequence) -> None:
        """Let a sequence without blocks wait for admission."""
        self.batch.move(sequence, SequenceStatus.WAITING)
        self.waiting.push(sequence)

    def settle(self, sequence: Sequence) -> None:
        """Put an admitted sequence into the state its tokens, blocks and next position call for."""
        if sequence.has_pending_blocks:
            self.batch.move(sequence, SequenceStatus.WAITING_FOR_REMOTE_KVS)
            return
        self.kv_cache.skip_present(sequence)
        if sequence.computed < sequence.length:
            generating = sequence.length > sequence.known and sequence.computed == sequence.length - 1
            status = SequenceStatus.RUNNING_DECODE if generating else SequenceStatus.RUNNING_PREFILL
        elif sequence.is_parent and not sequence.draws():
            self.fork(sequence)
            return
        else:
            waits = sequence.awaits_first
            status = SequenceStatus.WAITING_FOR_FIRST_TOKEN if waits else SequenceStatus.RUNNING_PREFILL
        self.ready_again = self.ready_again or status is not SequenceStatus.WAITING_FOR_FIRST_TOKEN
        self.batch.move(sequence, status)

    def fork(self, trunk: Sequence) -> None:
        """Share the trunk's KV, which is complete, with its branches from here on."""
        born = [branch for branch in trunk.job.branches.values() if branch.status is _UNFORKED]
        for branch in born:
            self.kv_cache.share(trunk, branch)
        self.drop(trunk, SequenceStatus.FINISHED)
        for branch in born:
            self.settle(branch)

    def finish(self, sequence: Sequence) -> None:
        """End a sequence in whatever state it is."""
        if sequence.status is _UNFORKED:
            self.batch.move(sequence, SequenceStatus.FINISHED)
        elif not sequence.finished:
            self.drop(sequence, SequenceStatus.FINISHED)

    def drop(self, sequence: Sequence, status: SequenceStatus) -> None:
        """Take a sequence out of its queue or of the batch, and give back all of its blocks."""
        job = sequence.job
        self.kv_cache.free(sequence)
        if job.fetch is not None and sequence is job.root:
            self._forget_fetch(job, job.fetch)
        self.waiting.remove(sequence)
        self.batch.move(sequence, status)

    def preempt(self, sequence: Sequence) -> None:
        """Preempt a sequence: take all its blocks and let it wait again, after revoking what its request has
        exported.

        A root computes and exports its blocks again. After the fork no sequence would do that: the lease then ends,
        so that pinned blocks cannot hold up the very request that would release them.
        """
        job = sequence.job
        if sequence is job.root:
            self.kv_cache.revoke_exports(job)
        elif job.leased:
            self.kv_cache.leases.release(job.work.lease_id)
        self.drop(sequence, SequenceStatus.PREEMPTED)
        self.waiting.push(sequence)
        job.preemptions += 1
        self.preemptions += 1

    # -- before admission --

    def bring(self, job: ScheduledRequest, blocks: int) -> None:
        """Let the first `blocks` full blocks of a request be fetched when it is admitted."""
        root, waiting = job.root, self.waiting
        if root.status not in NOT_ADMITTED:
            return
        job.bring = min(blocks, root.known // self.kv_cache.block_tokens)
        if root in waiting.bringable or root in waiting.computable:
            waiting.remove(root)
            waiting.push(root)

    def block_on_prefix(self, job: ScheduledRequest, name: bytes) -> None:
        """Let a request wait for block `name`, which is being fetched for another request, without holding up
        others."""
        self.waiting.remove(job.root)
        self.batch.move(job.root, SequenceStatus.WAITING_FOR_PREFIX)
        job.waited_for = self.bringing[name]
        self.waiting.blocked_on_prefix[job.root] = name

    def blocks_ready(self, job: ScheduledRequest) -> None:
        """Prefill has computed the whole prompt of a decode work."""
        if not job.ready:
            job.ready = True
            if job.root in self.waiting.fetchable:
                self.waiting.fetchable.push(job.root)

    def prefill_lost(self, job: ScheduledRequest) -> None:
        """Record that no other worker has the blocks of a decode request. A fetch that runs finds out by itself; one
        that waits does not begin."""
        job.prefill_lost = True
        if job.root in self.waiting.fetchable:
            self.waiting.fetchable.discard(job.root)
            self.waiting.push(job.root)

    # -- fetches --

    def begin_fetch(self, job: ScheduledRequest, fetch: Fetch) -> None:
        """Record the fetch that fills slots of the root from now on."""
        job.fetch = fetch
        if not fetch.hand_off:
            for target in fetch.pending.values():
                self.bringing.setdefault(target.name, job.work_id)

    def _forget_fetch(self, job: ScheduledRequest, fetch: Fetch) -> None:
        job.fetch = None
        if not fetch.hand_off:
            for target in fetch.pending.values():
                self._brought(job, target.name)

    def _brought(self, job: ScheduledRequest, name: bytes) -> None:
        """The block `name` is no longer on its way for this work."""
        if self.bringing.get(name) != job.work_id:
            return
        del self.bringing[name]
        for sequence in self.waiting.take_blocked_on(name):
            self.enqueue(sequence)

    def put_off(self, job: ScheduledRequest, now: float) -> None:
        """Take back the blocks of a request that fetches. The request waits again as soon as its fetch has ended."""
        self.drop(job.root, SequenceStatus.WAITING_FOR_LOAD_END)
        job.ready = False
        job.admitted = None
        job.queued = now
        job.tokens_reused = job.tokens_pulled = 0

    def landed(self, job: ScheduledRequest, index: int, digests: bytes, now: float) -> None:
        """Note that target `index` of the request's fetch holds verified bytes."""
        fetch = job.fetch
        target = fetch.land(index, now) if fetch is not None else None
        if fetch is None or target is None:
            return
        self._brought(job, target.name)
        job.tokens_pulled += target.tokens
        self.kv_cache.fill(job.root, target, digests)
        if not fetch.pending:
            self.settle(job.root)

    def fetch_ended(self, work_id: int, job: ScheduledRequest | None, late: Iterable[int]) -> None:
        """Nothing more lands, except late bytes in `late`. What is missing is computed."""
        late_slots = dict.fromkeys(late)
        self.kv_cache.reclaim(work_id, late_slots)
        if job is not None and job.root.status is SequenceStatus.WAITING_FOR_LOAD_END:
            self.enqueue(job.root)
        if job is None or job.fetch is None:
            return
        fetch, root = job.fetch, job.root
        if not fetch.pending:
            job.fetch = None
            return
        if any(target.slot in late_slots for target in fetch.pending.values()):
            self._flee(job, root, fetch, late_slots)
            return
        self._forget_fetch(job, fetch)
        self.settle(root)

    def _flee(self, job: ScheduledRequest, root: Sequence, fetch: Fetch, late_slots: dict[int, None]) -> None:
        """Some own slots are not safe to write: give all back and wait for others. What landed is found by name."""
        self.kv_cache.revoke_exports(job)
        self._forget_fetch(job, fetch)
        fetch.pending = {index: t for index, t in fetch.pending.items() if t.slot in late_slots}
        job.fetch = fetch
        self.drop(root, SequenceStatus.PREEMPTED)
        self.kv_cache.reclaim(job.work_id, late_slots)
        self.waiting.push(root)

    def check(self, jobs: Mapping[int, ScheduledRequest]) -> None:
        """Assert that what is noted as being fetched is, and that sequences are where their states say."""
        for name, work_id in self.bringing.items():
            fetch = jobs[work_id].fetch
            awaited = fetch is not None and any(target.name == name for target in fetch.pending.values())
            assert awaited, f"block {name.hex()} is noted as being fetched for work {work_id}"
        blocked = self.waiting.blocked_on_prefix
        assert all(name in self.bringing for name in blocked.values()), "a work waits for what is not on its way"
        for sequence in self.batch:
            assert jobs[sequence.job.work_id] is sequence.job, "a sequence outlives its work"
            assert sequence.has_pending_blocks == (sequence in self.batch.loading), "blocks load in another state"
