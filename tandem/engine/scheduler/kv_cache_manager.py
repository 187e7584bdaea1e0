"""Manages which sequences hold which blocks: growing, sharing, forking, preempting, and blocks under transfer.

Everything here changes state in place and decides nothing about *when*: `admission` and `step_planner` do.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from tandem.engine.protocol import FetchTarget
from tandem.engine.scheduler.batch import Batch
from tandem.engine.scheduler.blocks import BlockPool
from tandem.engine.scheduler.leases import LeaseTable
from tandem.engine.scheduler.plan import Draw
from tandem.engine.scheduler.sequence import Fetch, ScheduledRequest, Sequence
from tandem.engine.scheduler.sequence_status import NOT_ADMITTED, SequenceStatus
from tandem.engine.scheduler.waiting_queue import WaitingQueue
from tandem.engine.settings import SchedulerSettings

_UNFORKED: Final = SequenceStatus.WAITING_FOR_PARENT


class KvCacheManager:
    """The block tables of all requests, over one pool."""

    def __init__(self, blocks: int, block_tokens: int, settings: SchedulerSettings) -> None:
        self.block_tokens = block_tokens
        self.settings = settings
        self.pool = BlockPool(blocks)
        self.leases = LeaseTable(self.pool)
        self.batch = Batch()
        self.fetchable = WaitingQueue()
        """Decode requests whose blocks are to be reserved here and fetched from the worker that computes them."""
        self.bringable = WaitingQueue()
        """Works of which some blocks are to be fetched before the rest is computed."""
        self.computable = WaitingQueue()
        """Everything else that waits: it needs a share of a step's budget."""
        self.bringing: dict[bytes, int] = {}
        """Blocks being fetched that are not being computed anywhere now, each with the work it is fetched for."""
        self.aside: dict[Sequence, bytes] = {}
        """Works that wait for a block to come, or not to come, for another one before they may be admitted."""
        self.abandoned: dict[int, tuple[int, ...]] = {}
        """The quarantined slots of requests that ended while their fetch continued, until `fetch_ended`."""
        self.export_due = 0
        """The number of blocks of admitted prefill requests that are still to be exported."""
        self.preemptions = 0
        self.ready_again = False
        """A sequence became ready to run; a plan that came out empty is worth making again."""
        self._landed: dict[int, int] = {}
        self._arrivals = 0

    def next_arrival(self) -> int:
        """Give the next number in the order in which requests arrived."""
        self._arrivals += 1
        return self._arrivals

    # -- states --

    def enqueue(self, sequence: Sequence) -> None:
        """Let a sequence without blocks wait for admission."""
        self._queue_of(sequence).push(sequence)

    def _queue_of(self, sequence: Sequence) -> WaitingQueue:
        job = sequence.job
        if sequence.status is SequenceStatus.PREEMPTED:
            return self.computable
        if job.handed_over:
            return self.fetchable
        return self.bringable if job.bring else self.computable

    def unqueue(self, sequence: Sequence) -> None:
        self.fetchable.discard(sequence)
        self.bringable.discard(sequence)
        self.computable.discard(sequence)
        self.aside.pop(sequence, None)

    @property
    def waiting(self) -> int:
        """Sequences that wait for admission."""
        return len(self.fetchable) + len(self.bringable) + len(self.computable) + len(self.aside)

    def settle(self, sequence: Sequence) -> None:
        """Put an admitted sequence into the state its tokens, blocks and next position call for."""
        if sequence.has_pending_blocks:
            self.batch.move(sequence, SequenceStatus.WAITING_FOR_REMOTE_KVS)
            return
        self.skip_present(sequence)
        if sequence.computed < sequence.length:
            generating = sequence.length > sequence.known and sequence.computed == sequence.length - 1
            status = SequenceStatus.RUNNING_DECODE if generating else SequenceStatus.RUNNING_PREFILL
        elif sequence.is_parent and not self.draws(sequence):
            self.fork(sequence)
            return
        else:
            waits = sequence.awaits_first
            status = SequenceStatus.WAITING_FOR_FIRST_TOKEN if waits else SequenceStatus.RUNNING_PREFILL
        self.ready_again = self.ready_again or status is not SequenceStatus.WAITING_FOR_FIRST_TOKEN
        self.batch.move(sequence, status)

    def draws(self, sequence: Sequence) -> tuple[Draw, ...]:
        """The draws that need the logits of the last known token."""
        if not sequence.is_parent:
            return () if sequence.awaits_first else (sequence.draw(),)
        return tuple(
            branch.draw()
            for branch in sequence.job.branches.values()
            if branch.status is _UNFORKED and branch.length == sequence.length and not branch.awaits_first
        )

    def fork(self, trunk: Sequence) -> None:
        """Share the trunk's KV, which is complete, with its branches from here on."""
        job = trunk.job
        born = [branch for branch in job.branches.values() if branch.status is _UNFORKED]
        for branch in born:
            for slot in trunk.table:
                self.pool.ref(slot)
            branch.grow(trunk.table)
            branch.names = list(trunk.names)
            branch.extend_names(job.work.root, self.block_tokens)
            branch.computed = trunk.computed
            branch.cow = trunk.computed % self.block_tokens != 0
        self.drop(trunk, SequenceStatus.FINISHED)
        for branch in born:
            self.settle(branch)

    # -- blocks --

    def skip_present(self, sequence: Sequence) -> None:
        """Move `computed` over blocks that need no computing: fetched ones, and named ones found here by now."""
        size, pool = self.block_tokens, self.pool
        while sequence.table and sequence.computed % size == 0 and sequence.computed < sequence.length:
            block = sequence.computed // size
            if block in sequence.filled:
                tail = block == sequence.known // size
                sequence.computed = sequence.known if tail else sequence.computed + size
                continue
            slot = pool.find(sequence.names[block]) if block < len(sequence.names) else None
            if slot is None:
                return
            self._adopt(sequence, block, slot)

    def _adopt(self, sequence: Sequence, block: int, slot: int) -> None:
        """Use a block that was completed for another sequence in the meantime instead of the sequence's own, still
        empty one."""
        self.pool.ref(slot)
        if block == len(sequence.table):
            sequence.grow((slot,))
        else:
            own = sequence.table[block]
            assert own != slot, "an own block that is published counts as computed or filled"
            self.pool.release(own)
            sequence.replace(block, slot)
        sequence.computed += self.block_tokens
        if sequence.computed <= sequence.known and sequence.job.preemptions == 0:
            sequence.job.tokens_reused += self.block_tokens
        self.export(sequence, block)

    def complete(self, sequence: Sequence, block: int, digests: bytes) -> None:
        """A block has been computed; a full one gets its name."""
        slot = sequence.table[block]
        if block >= len(sequence.names):
            sequence.extend_names(sequence.job.work.root, self.block_tokens)
        if block < len(sequence.names) and self._publishes(sequence.job):
            self.pool.publish(slot, sequence.names[block], digests, sequence.job.work_id)
        else:
            self.pool.seal(slot, digests)
        self.export(sequence, block)

    def _publishes(self, job: ScheduledRequest) -> bool:
        return self.settings.prefix_cache and not job.work.private

    def export(self, sequence: Sequence, block: int) -> None:
        """Pin a complete block under the request's lease, when it has one and the block belongs to its root."""
        job = sequence.job
        if not job.leased or sequence is not job.root:
            return
        full = block < len(sequence.names)
        name = sequence.names[block] if full else job.tail_name(self.block_tokens)
        self.leases.export(job.work.lease_id, name, sequence.table[block])
        self.settle_export_due(job, min(1, job.export_due))

    def settle_export_due(self, job: ScheduledRequest, blocks: int) -> None:
        job.export_due -= blocks
        self.export_due -= blocks

    def drop(self, sequence: Sequence, status: SequenceStatus) -> None:
        """Give back all blocks; slots that a fetch may still write to go into quarantine."""
        job = sequence.job
        fetch = job.fetch if sequence is job.root else None
        pending = {target.slot: None for target in fetch.pending.values()} if fetch is not None else {}
        for slot in reversed(sequence.drop_blocks()):
            if slot in pending:
                self.pool.quarantine(slot)
            else:
                self.pool.release(slot)
        if pending:
            self.abandoned[job.work.work_id] = tuple(pending)
        if fetch is not None:
            self._forget_fetch(job, fetch)
        self.unqueue(sequence)
        self.batch.move(sequence, status)

    def preempt(self, sequence: Sequence) -> None:
        """Preempt a sequence: take all its blocks and let it wait again, after revoking what its request has
        exported.

        A root computes and exports its blocks again. After the fork no sequence would do that: the lease then ends,
        so that pinned blocks cannot hold up the very request that would release them.
        """
        job = sequence.job
        if job.leased and sequence is job.root:
            self._unexport(job)
        elif job.leased:
            self.leases.release(job.work.lease_id)
        self.drop(sequence, SequenceStatus.PREEMPTED)
        self._queue_of(sequence).push(sequence)
        job.preemptions += 1
        self.preemptions += 1

    def _unexport(self, job: ScheduledRequest) -> None:
        """Revoke what the root has exported: it is exported again, in other slots."""
        if job.leased:
            self.leases.revoke(job.work.lease_id)
            self.settle_export_due(job, job.export_due)

    # -- blocks under transfer --

    def bring(self, job: ScheduledRequest, blocks: int) -> None:
        """Let the first `blocks` full blocks of a request be fetched when it is admitted."""
        if job.root.status not in NOT_ADMITTED:
            return
        job.bring = min(blocks, job.root.known // self.block_tokens)
        if job.root in self.bringable or job.root in self.computable:
            self.unqueue(job.root)
            self._queue_of(job.root).push(job.root)

    def block_on_prefix(self, job: ScheduledRequest, name: bytes) -> None:
        """Let a request wait for block `name`, which is being fetched for another request, without holding up
        others."""
        self.unqueue(job.root)
        self.batch.move(job.root, SequenceStatus.WAITING_FOR_PREFIX)
        job.waited_for = self.bringing[name]
        self.aside[job.root] = name

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
        for sequence in [each for each, awaited in self.aside.items() if awaited == name]:
            del self.aside[sequence]
            self.batch.move(sequence, SequenceStatus.WAITING)
            self._queue_of(sequence).push(sequence)

    def blocks_ready(self, job: ScheduledRequest) -> None:
        """Prefill has computed the whole prompt of a decode work."""
        if not job.ready:
            job.ready = True
            if job.root in self.fetchable:
                self.fetchable.push(job.root)

    def prefill_lost(self, job: ScheduledRequest) -> None:
        """Record that no other worker has the blocks of a decode request. A fetch that runs finds out by itself; one
        that waits does not begin."""
        job.prefill_lost = True
        if job.root in self.fetchable:
            self.fetchable.discard(job.root)
            self._queue_of(job.root).push(job.root)

    def put_off(self, job: ScheduledRequest, now: float) -> None:
        """Take back the blocks of a request that fetches. The request waits again as soon as its fetch has ended."""
        self.drop(job.root, SequenceStatus.WAITING_FOR_LOAD_END)
        job.ready = False
        job.admitted = None
        job.queued = now
        job.tokens_reused = job.tokens_pulled = 0

    def landed(self, job: ScheduledRequest, index: int, digests: bytes, now: float) -> None:
        """Note that target `index` of the request's fetch holds verified bytes."""
        root, fetch = job.root, job.fetch
        target = fetch.land(index, now) if fetch is not None else None
        if target is None:
            return
        assert root.table[index] == target.slot
        assert fetch is not None
        self._brought(job, target.name)
        job.tokens_pulled += target.tokens
        self.note_landed(target)
        root.filled.add(index)
        if target.tokens == self.block_tokens and self._publishes(job):
            self.pool.publish(target.slot, target.name, digests, job.work_id)
        else:
            self.pool.seal(target.slot, digests)
        self.export(root, index)
        if not fetch.pending:
            self.settle(root)

    def fetch_ended(self, work_id: int, job: ScheduledRequest | None, late: Iterable[int]) -> None:
        """Nothing more lands, except late bytes in `late`. What is missing is computed."""
        late_slots = dict.fromkeys(late)
        for slot in self.abandoned.pop(work_id, ()):
            if slot not in late_slots:
                self.pool.unquarantine(slot)
        if job is not None and job.root.status is SequenceStatus.WAITING_FOR_LOAD_END:
            self.batch.move(job.root, SequenceStatus.WAITING)
            self._queue_of(job.root).push(job.root)
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
        self._unexport(job)
        self._forget_fetch(job, fetch)
        fetch.pending = {index: t for index, t in fetch.pending.items() if t.slot in late_slots}
        job.fetch = fetch
        self.drop(root, SequenceStatus.PREEMPTED)
        self.abandoned.pop(job.work.work_id, None)
        self._queue_of(root).push(root)

    def check_bringing(self, jobs: Mapping[int, ScheduledRequest]) -> None:
        """Assert that what is noted as being fetched is."""
        for name, work_id in self.bringing.items():
            fetch = jobs[work_id].fetch
            awaited = fetch is not None and any(target.name == name for target in fetch.pending.values())
            assert awaited, f"block {name.hex()} is noted as being fetched for work {work_id}"
        assert all(name in self.bringing for name in self.aside.values()), "a work waits for what is not on its way"

    def note_landed(self, target: FetchTarget) -> None:
        """A slot was filled from outside."""
        self._landed[target.slot] = target.generation

    def take_landed(self) -> tuple[int, ...]:
        """Slots filled from outside since the last step, those that have been given to another block left out."""
        if not self._landed:
            return ()
        landed, self._landed = self._landed, {}
        pool = self.pool
        return tuple(slot for slot, written in landed.items() if pool.generation(slot) == written)
