"""Composes one step: a token for every running sequence, then as much of the prompts as the budget allows."""

from dataclasses import dataclass
from typing import Final

from tandem.engine.scheduler.admission import Admission
from tandem.engine.scheduler.plan import Row
from tandem.engine.scheduler.scheduler_state import SchedulerState
from tandem.engine.scheduler.sequence import Sequence
from tandem.engine.scheduler.sequence_status import SequenceStatus
from tandem.engine.scheduler.step_budget import StepBudget
from tandem.engine.scheduler.step_draft import Draft, Entry
from tandem.engine.scheduler.step_rules import Allowance, chunk_end

_PREFILL: Final = SequenceStatus.RUNNING_PREFILL
_DECODE: Final = SequenceStatus.RUNNING_DECODE


@dataclass
class StepPlanner:
    """Fills drafts. Rows of one step never read what another row of it writes."""

    state: SchedulerState
    admission: Admission
    budget: StepBudget
    columns: bool
    """Whether the runner takes columns."""

    def draft(self, now: float) -> Draft:
        """One attempt at a step; it may come out without entries."""
        draft = Draft()
        self.state.ready_again = False
        self._decode_all(draft)
        allowance = self.budget.open(draft.load())
        for sequence in self.state.batch.prefills():
            if allowance.spent:
                break
            if sequence.status is _PREFILL:
                self._prefill(sequence, draft, allowance)
        while not draft.preempted:
            admitted = self.admission.next(not allowance.spent, now)
            if admitted is None:
                break
            if admitted.status is _PREFILL:
                self._prefill(admitted, draft, allowance)
        return draft

    def _decode_all(self, draft: Draft) -> None:
        """A row for every running sequence. Once per token of everybody: in one piece, and without detours."""
        size, generating, context, plain = self.state.kv_cache.block_tokens, draft.generating, 0, self.columns
        for sequence in tuple(self.state.batch.decoding):
            if sequence.status is not _DECODE:
                continue
            start = sequence.computed
            inside = start % size
            unwritable = sequence.cow or (inside == 0 and start // size == len(sequence.table))
            # It may preempt, which takes rows out of the draft again.
            if unwritable and not self._writable(sequence, start + 1, draft):
                continue
            generating[sequence] = None
            draft.decode_rows += 1
            context += start
            if inside == size - 1:
                draft.filled[sequence] = start // size
            if sequence.outputs < sequence.plain_from:
                plain = False
        draft.decode_context += context
        if not plain:
            self._spell_out(draft)

    def _spell_out(self, draft: Draft) -> None:
        """Rows instead of columns, for everybody: what is drawn comes in the order in which they stand."""
        for sequence in draft.generating:
            start, block = sequence.computed, draft.filled.get(sequence)
            table = sequence.table_packed or sequence.packed_table()
            row = Row(sequence.last, start, table, True, (sequence.draw(),))
            complete = () if block is None else (block,)
            draft.entries[sequence] = Entry(sequence, row, start + 1, complete, False)
        draft.generating.clear()
        draft.filled.clear()

    def _prefill(self, sequence: Sequence, draft: Draft, allowance: Allowance) -> None:
        """Add the sequence's next chunk and take it off the allowance."""
        kv_cache = self.state.kv_cache
        kv_cache.skip_present(sequence)
        if sequence.computed == sequence.length:
            self._recompute_last(sequence, draft, allowance)
            return
        start, size = sequence.computed, kv_cache.block_tokens
        block = start // size
        if start % size == 0 and block < len(sequence.names) and sequence.names[block] in draft.claims:
            sequence.job.explain("waited a step for a shared prefix being computed")
            return
        budget = allowance.offer(start)
        if budget.tokens <= 0:
            return
        end = chunk_end(start, sequence.length, budget.tokens, size, sequence.filled)
        if not self._writable(sequence, end, draft):
            return
        complete = tuple(range(block, end // size))
        for index in complete:
            if index < len(sequence.names):
                draft.claims[sequence.names[index]] = None
        if self._exports_tail(sequence, end):
            complete = (*complete, end // size)
        draws = sequence.draws() if end == sequence.length else ()
        row = Row(sequence.packed(start, end), start, sequence.packed_table(), True, draws)
        draft.add(Entry(sequence, row, end, complete, True))
        allowance.take(start, end - start)
        sequence.job.explain(budget.reason)

    def _recompute_last(self, sequence: Sequence, draft: Draft, allowance: Allowance) -> None:
        """Compute the last token again, writing nothing: all KV is here, but its logits are not."""
        draws = sequence.draws()
        if not draws:
            self.state.settle(sequence)
            return
        start = sequence.length - 1
        row = Row(sequence.packed(start, start + 1), start, sequence.packed_table(), False, draws)
        draft.add(Entry(sequence, row, sequence.length, (), True))
        allowance.take(start, 1)

    def _exports_tail(self, sequence: Sequence, end: int) -> bool:
        job, size = sequence.job, self.state.kv_cache.block_tokens
        return job.leased and sequence is job.root and end == sequence.known and end % size > 0

    def _writable(self, sequence: Sequence, end: int, draft: Draft) -> bool:
        """Make sure the table covers `end` positions and the next one may be written; False when preempted."""
        size, pool = self.state.kv_cache.block_tokens, self.state.kv_cache.pool
        block = sequence.computed // size
        copy = sequence.cow and block < len(sequence.table) and pool.shared(sequence.table[block])
        needed = max(0, -(-end // size) - len(sequence.table)) + copy
        if needed > pool.available and not self._make_room(sequence, needed, draft):
            return False
        if copy and pool.shared(sequence.table[block]):
            source, (slot,) = sequence.table[block], pool.allocate(1)
            sequence.replace(block, slot)
            # The source's reference is given back when the step has run: nobody may write to it before.
            draft.copies[sequence] = (source, slot)
        sequence.cow = False
        missing = -(-end // size) - len(sequence.table)
        if missing > 0:
            sequence.grow(pool.allocate(missing))
        return True

    def _make_room(self, sequence: Sequence, needed: int, draft: Draft) -> bool:
        """Preempt from the least urgent end until `needed` blocks are available; False when it hit the asker."""
        pool, batch = self.state.kv_cache.pool, self.state.batch
        while needed > pool.available:
            victim = batch.victim()
            if victim is None:
                return False
            self._preempt(victim, draft)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence, draft: Draft) -> None:
        copied = draft.copies.get(victim)
        draft.drop(victim)
        self.state.preempt(victim)
        if copied is not None:
            self.state.kv_cache.pool.release(copied[0])
