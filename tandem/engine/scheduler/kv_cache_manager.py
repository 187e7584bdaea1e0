"""Manages the blocks of sequences: tables that grow, are shared and are given back; names, exports, and loaded slots.

Everything here changes state in place and decides nothing about *when*: `admission` and `step_planner` do. The states
of sequences are in `scheduler_state`.
"""

from collections.abc import Container, Iterable

from tandem.engine.protocol import FetchTarget
from tandem.engine.scheduler.blocks import BlockPool
from tandem.engine.scheduler.leases import LeaseTable
from tandem.engine.scheduler.sequence import ScheduledRequest, Sequence


class KvCacheManager:
    """The block tables of all requests, and the leases over their blocks, in one pool of `blocks` slots of
    `block_tokens` tokens each. Without `prefix_cache`, no block gets a public name."""

    def __init__(self, blocks: int, block_tokens: int, *, prefix_cache: bool = True) -> None:
        self.block_tokens = block_tokens
        self.pool = BlockPool(blocks)
        self.leases = LeaseTable(self.pool)
        self.export_due = 0
        """The number of blocks of admitted prefill requests that are still to be exported."""
        self._prefix_cache = prefix_cache
        self._abandoned: dict[int, tuple[int, ...]] = {}
        """The quarantined slots of requests that ended while their fetch continued, until the fetch has ended."""
        self._landed: dict[int, int] = {}

    # -- tables --

    def share(self, parent: Sequence, child: Sequence) -> None:
        """Let a child, which has no blocks, begin with all of its parent's."""
        for slot in parent.table:
            self.pool.ref(slot)
        child.grow(parent.table)
        child.names = list(parent.names)
        child.extend_names(child.job.work.root, self.block_tokens)
        child.computed = parent.computed
        child.cow = parent.computed % self.block_tokens != 0

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

    def fill(self, root: Sequence, target: FetchTarget, digests: bytes) -> None:
        """A block of a request's root holds verified bytes from elsewhere; a full one gets its name."""
        assert root.table[target.index] == target.slot
        self.note_landed(target)
        root.filled.add(target.index)
        if target.tokens == self.block_tokens and self._publishes(root.job):
            self.pool.publish(target.slot, target.name, digests, root.job.work_id)
        else:
            self.pool.seal(target.slot, digests)
        self.export(root, target.index)

    def _publishes(self, job: ScheduledRequest) -> bool:
        return self._prefix_cache and not job.work.private

    def free(self, sequence: Sequence) -> None:
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
            self.abandon(job.work_id, pending)

    # -- exports --

    def export(self, sequence: Sequence, block: int) -> None:
        """Pin a complete block under the request's lease, when it has one and the block belongs to its root."""
        job = sequence.job
        if not job.leased or sequence is not job.root:
            return
        full = block < len(sequence.names)
        name = sequence.names[block] if full else job.tail_name(self.block_tokens)
        self.leases.export(job.work.lease_id, name, sequence.table[block])
        self.settle_export_due(job, min(1, job.export_due))

    def revoke_exports(self, job: ScheduledRequest) -> None:
        """Revoke what the root has exported: it is exported again, in other slots."""
        if job.leased:
            self.leases.revoke(job.work.lease_id)
            self.settle_export_due(job, job.export_due)

    def settle_export_due(self, job: ScheduledRequest, blocks: int) -> None:
        job.export_due -= blocks
        self.export_due -= blocks

    # -- slots under transfer --

    @property
    def coming(self) -> int:
        """The number of quarantined slots that come back when fetches that nobody needs have ended."""
        return sum(len(slots) for slots in self._abandoned.values())

    def abandon(self, work_id: int, slots: Iterable[int]) -> None:
        """A request gives up quarantined slots before its fetch has ended; `reclaim` follows."""
        self._abandoned[work_id] = tuple(slots)

    def reclaim(self, work_id: int, late: Container[int]) -> None:
        """The fetch of a request without its blocks is over: bytes may come to the `late` slots alone."""
        for slot in self._abandoned.pop(work_id, ()):
            if slot not in late:
                self.pool.unquarantine(slot)

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
