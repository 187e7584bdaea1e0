"""Decides which sequence may enter the batch: the most urgent waiting one, when its blocks fit."""

from dataclasses import dataclass

from tandem.core.errors import TandemError
from tandem.engine.protocol import EngineInfo, EngineRequest, FetchJob, FetchTarget
from tandem.engine.scheduler.events import EngineEvents
from tandem.engine.scheduler.leases import LeaseTable
from tandem.engine.scheduler.scheduler_state import SchedulerState
from tandem.engine.scheduler.sequence import Fetch, ScheduledRequest, Sequence
from tandem.engine.scheduler.sequence_status import SequenceStatus
from tandem.engine.scheduler.step_rules import Way, blocks_for, may_enter, may_export, spare_blocks
from tandem.engine.settings import SchedulerSettings


def refuse_impossible(work: EngineRequest, info: EngineInfo) -> None:
    """Refuse a request that can never run here. Raises `invalid_request`, `context_length_exceeded` or
    `out_of_blocks`."""
    prompt = len(work.prompt) // 4
    if prompt == 0 or not work.branches:
        raise TandemError("invalid_request", "a work needs at least one prompt token and one branch", param="prompt")
    if work.stopping.max_tokens <= max(len(branch.forced) for branch in work.branches):
        raise TandemError(
            "invalid_request", "nothing is left to generate after the forced tokens", param="max_tokens"
        )
    total = prompt + work.stopping.max_tokens
    if total > info.context_tokens:
        raise TandemError(
            "context_length_exceeded",
            f"the prompt has {prompt} tokens and max_tokens is {work.stopping.max_tokens}: together {total}, "
            f"but the context of {info.model} is {info.context_tokens}",
            param="max_tokens",
        )
    # The last drawn token's KV is never needed; prefill draws one token and stops.
    generated = max(len(branch.forced) for branch in work.branches) if work.mode == "prefill" else total - prompt - 1
    blocks = blocks_for(prompt + generated, info.layout.block_tokens)
    # Branches of an exported prompt may have to copy its pinned tail.
    blocks += work.mode == "prefill" and len(work.branches) > 1 and generated > 0
    if blocks > info.blocks:
        raise TandemError("out_of_blocks", f"the work needs up to {blocks} KV blocks, the pool has {info.blocks}")


def refuse_lease(work: EngineRequest, leases: LeaseTable) -> None:
    """Refuse a prefill whose lease cannot be opened. Raises `cancelled` when the lease has already been released, and
    `invalid_request` when it is in use."""
    if work.mode != "prefill":
        return
    if leases.tombstoned(work.lease_id):
        raise TandemError("cancelled", f"lease {work.lease_id} was released before its work came")
    if leases.exists(work.lease_id):
        raise TandemError("invalid_request", f"lease {work.lease_id} is in use", param="lease_id")


@dataclass(frozen=True)
class Shortage:
    """What the next sequence waits for: `blocks` available blocks, or room for `width` more sequences."""

    sequence: Sequence
    blocks: int
    width: int


class Admission:
    """Moves sequences from the queues into the batch and reserves their blocks."""

    def __init__(self, state: SchedulerState, settings: SchedulerSettings, outbox: EngineEvents) -> None:
        self._state = state
        self._settings = settings
        self._outbox = outbox
        self._blocked: tuple[Sequence, int, bool] | None = None
        self._blocked_by: Shortage | None = None
        self.shortage: Shortage | None = None
        """Why the last attempt to admit a sequence failed, if it was for lack of blocks or of room."""

    def next(self, budget_left: bool, now: float) -> Sequence | None:
        """Admit the most urgent sequence that may enter now; None when none may.

        Without budget, only sequences whose blocks are to be fetched enter. No sequence overtakes one that waits for
        blocks.
        """
        waiting = self._state.waiting
        if not (waiting.computable or waiting.fetchable or waiting.bringable):
            self.shortage = None
            return None
        while (sequence := self._candidate(budget_left)) is not None:
            if not self._fits(sequence):
                return None
            if self._blocks_on_prefix(sequence):
                continue
            if not self._reserve(sequence):
                return None
            waiting.remove(sequence)
            self._enter(sequence, now)
            break
        self.shortage = None
        return sequence

    def _candidate(self, budget_left: bool) -> Sequence | None:
        """A prefill that waits for exports to shrink does not hold up fetches: two workers that pull from each
        other would otherwise wait for one another."""
        queues, fetch_ahead = self._state.waiting, self._settings.fetch_ahead
        bringable = queues.bringable.head()
        ahead = 0 if budget_left or bringable is None else self._brought_ahead()
        heads: tuple[tuple[Way, Sequence | None], ...] = (
            ("fetch", queues.fetchable.head()),
            ("bring", bringable),
            ("compute", queues.computable.head()),
        )
        waiting = [
            head for way, head in heads if head is not None and may_enter(way, budget_left, ahead, fetch_ahead)
        ]
        waiting.sort(key=lambda head: head.job.order)
        return next((head for head in waiting if self._may_export(head)), None)

    def _blocks_on_prefix(self, sequence: Sequence) -> bool:
        """Whether the first block this work would have to fetch is being fetched for another work, and will then be
        found here. If that fetch fails, this work fetches for itself, so that no work waits for one failure after
        another."""
        state, job = self._state, sequence.job
        if not state.bringing or sequence not in state.waiting.bringable:
            return False
        matched = len(state.kv_cache.pool.match(sequence.names))
        name = sequence.names[matched] if matched < job.bring else b""
        maker = state.bringing.get(name)
        if maker is None or job.waited_for not in (None, maker):
            return False
        state.block_on_prefix(job, name)
        job.explain("waited for a shared prefix being fetched")
        return True

    def _brought_ahead(self) -> int:
        """Works that are being fetched for, or wait for a share of a step's budget."""
        batch = self._state.batch
        fetching = (sequence.job.fetch for sequence in batch.loading)
        return len(batch.prefilling) + sum(fetch is not None and not fetch.hand_off for fetch in fetching)

    def _fits(self, sequence: Sequence) -> bool:
        batch = self._state.batch
        width = sequence.job.live if sequence.is_parent else 1
        if batch.width and batch.width + width > self._settings.max_sequences:
            self.shortage = Shortage(sequence, 0, width)
            return False
        if self._blocked == self._block_state(sequence):
            self.shortage = self._blocked_by
            return False
        return True

    def _may_export(self, sequence: Sequence) -> bool:
        """Whether exports leave room for what this sequence will export."""
        kv_cache = self._state.kv_cache
        if not sequence.job.leased or sequence is not sequence.job.root:
            return True
        exported = kv_cache.leases.owed + kv_cache.export_due
        blocks = blocks_for(sequence.length, kv_cache.block_tokens)
        if may_export(exported, blocks, kv_cache.pool.blocks, self._settings.export_share):
            return True
        self._explain(sequence, "waits: exports hold their share of the blocks")
        return False

    def _block_state(self, sequence: Sequence) -> tuple[Sequence, int, bool]:
        """The state that decides whether a sequence fits: while it stays the same, a sequence that did not fit still
        does not."""
        return (sequence, self._state.kv_cache.pool.available, self._state.batch.width > 0)

    def _reserve(self, sequence: Sequence) -> bool:
        """Give the sequence all blocks of its known tokens, those of its prefix found here shared."""
        pool, size = self._state.kv_cache.pool, self._state.kv_cache.block_tokens
        sequence.extend_names(sequence.job.work.root, size)
        state, available = self._block_state(sequence), pool.available
        matched = pool.match(sequence.names)
        for slot in matched:
            pool.ref(slot)
        needed = blocks_for(sequence.length, size) - len(matched)
        spare = spare_blocks(self._settings.watermark, pool.blocks, self._state.batch.width > 0)
        if needed + spare > pool.available:
            # What is found here but used by nobody counts as available until it is shared.
            wanted = needed + spare + available - pool.available
            pool.release_table(matched)
            self._blocked = state
            width = sequence.job.live if sequence.is_parent else 1
            self.shortage = self._blocked_by = Shortage(sequence, wanted, width)
            self._explain(sequence, f"waits: {wanted} blocks wanted, {pool.available} available")
            return False
        self._blocked = None
        sequence.grow(matched)
        sequence.grow(pool.allocate(needed))
        self._account(sequence, len(matched), needed)
        return True

    def _account(self, sequence: Sequence, matched: int, needed: int) -> None:
        kv_cache, job = self._state.kv_cache, sequence.job
        sequence.computed = matched * kv_cache.block_tokens
        if sequence.status is SequenceStatus.WAITING:
            job.tokens_reused += min(sequence.computed, sequence.known)
        if job.leased and sequence is job.root:
            kv_cache.settle_export_due(job, -needed)
            for block in range(matched):
                kv_cache.leases.export(job.work.lease_id, sequence.names[block], sequence.table[block])

    def _enter(self, sequence: Sequence, now: float) -> None:
        job = sequence.job
        if sequence.status is SequenceStatus.WAITING:
            job.admitted = now
            self._start_fetch(job, sequence, now)
        self._state.settle(sequence)

    def _start_fetch(self, job: ScheduledRequest, root: Sequence, now: float) -> None:
        """Start the fetch of blocks that are not here: all of them where another worker computes them, otherwise
        those worth it.

        A hand-off without blocks is fetched too: its pull tells prefill to release its blocks.
        """
        hand_off, pool, size = job.handed_over, self._state.kv_cache.pool, self._state.kv_cache.block_tokens
        names = job.export_names(size) if hand_off else tuple(root.names[: job.bring])
        targets = tuple(
            FetchTarget(
                index, names[index], slot := root.table[index], pool.generation(slot),
                min(size, root.known - index * size),
            )
            for index in range(root.computed // size, len(names))
        )  # fmt: skip
        if targets:
            self._state.begin_fetch(job, Fetch(targets, now, hand_off=hand_off, bring=job.bring))
        if targets or hand_off:
            self._outbox.fetch(FetchJob(job.work.work_id, targets, hand_off))

    def _explain(self, sequence: Sequence, reason: str) -> None:
        sequence.job.explain(reason)
        self._outbox.explain(reason)
