"""The stage's decisions: which work has which slots, which of its blocks are there, and which messages go where. Pure
and synchronous.

Work to be done outside is left in `to_ranks`, `admitted`, `refused` and `to_digest`, which the shell empties.
"""

from collections.abc import Sequence
from functools import partial

from tandem.core.errors import TandemError
from tandem.engine.protocol import EngineRequest, FirstTokens, Prefix
from tandem.engine.scheduler.admission import refuse_lease
from tandem.engine.scheduler.events import EngineEvents
from tandem.engine.scheduler.kv_cache_manager import KvCacheManager
from tandem.engine.scheduler.shared_exports import SharedExports
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.conduit_messages import (
    Closed,
    DrawFirst,
    First,
    NoMore,
    Spoiled,
    ToRank,
    Withheld,
)
from tandem.engine.vllm.stage_admission import StageAdmission
from tandem.engine.vllm.stage_outputs import Digested, StageOutputs
from tandem.engine.vllm.stage_params import NO_SLOT
from tandem.engine.vllm.stage_placing import StagePlacing
from tandem.engine.vllm.stage_settings import StageSettings
from tandem.engine.vllm.staged_request import Sources, StagedRequest


class StageState:
    """Owns all requests of one stage. `ranks` are all ranks of the engine, `writers` those that write to slots."""

    def __init__(
        self, blocks: int, block_tokens: int, ranks: Sequence[int], writers: Sequence[int], settings: StageSettings
    ) -> None:
        self.settings = settings
        self.block_tokens = block_tokens
        shares = SchedulerSettings(
            export_share=settings.export_share,
            shared_leases_max=settings.shared_leases_max,
            watermark=settings.watermark,
        )
        self.kv_cache = KvCacheManager(blocks, block_tokens)
        self.pool = self.kv_cache.pool
        self.leases = self.kv_cache.leases
        self.outbox = EngineEvents()
        self.sharing = SharedExports(self.kv_cache, self.outbox, shares)
        self.to_ranks: list[ToRank] = []
        self.admitted: list[tuple[int, dict[str, object] | None]] = []
        self.refused: list[tuple[int, TandemError]] = []
        self.to_digest: list[tuple[int, Digested]] = []
        """Slots of blocks that all ranks have saved, and what takes their content words."""
        self._admission = StageAdmission(self.pool, self.leases, settings)
        self._placing = StagePlacing(self.kv_cache, self.outbox, self._admission, self.to_ranks)
        self._ranks = tuple(ranks)
        self._writers = frozenset(writers)
        self.outputs = StageOutputs(
            self.pool, ranks, self._writers, lambda: self._admission.spare, self.to_ranks, self.to_digest
        )
        self._waiting: dict[int, StagedRequest] = {}
        self._works: dict[int, StagedRequest] = {}
        self._arrivals = 0

    # -- the engine's side --

    def open(self, work: EngineRequest, now: float, *, save: bool) -> None:
        """Take a request. Raises `queue_full`, `out_of_blocks`, `cancelled` for a lease that has ended, and
        `invalid_request` for one that is in use."""
        assert work.work_id not in self._works, f"work {work.work_id} is here already"
        assert work.work_id not in self._waiting, f"work {work.work_id} waits already"
        refuse_lease(work, self.leases)
        if len(self._waiting) >= self.settings.max_waiting:
            raise TandemError("queue_full", f"{self.settings.max_waiting} works wait for slots already")
        self._arrivals += 1
        staged = StagedRequest(work, self.block_tokens, self._arrivals, now, save=save or work.mode == "prefill")
        if work.mode != "local" and staged.blocks > self.pool.blocks:
            needed = f"the prompt has {staged.blocks} KV blocks, the stage has {self.pool.blocks}"
            raise TandemError("out_of_blocks", needed)
        self._waiting[work.work_id] = staged
        if staged.leased:
            self.leases.open(work.lease_id, work.lease_s, staged.all_names())

    def provide_first(self, work_id: int, sequence: int, token: int) -> None:
        """The next position of a sequence is known."""
        waiting, work = self._waiting.get(work_id), self._works.get(work_id)
        if waiting is not None:
            waiting.firsts.setdefault(sequence, token)
        elif work is not None and work.told:
            self.to_ranks.append(First(work_id, sequence, token))

    def sample_first(self, work_id: int) -> None:
        """Prefill is lost. A fetch that runs finds out; one that has not begun never does."""
        work = self._waiting.get(work_id) or self._works.get(work_id)
        if work is not None and work.work.mode == "decode":
            work.prefill_lost = True
            if work.told:
                self.to_ranks.append(DrawFirst(work_id))

    def first_sampled(self, work_id: int, first: FirstTokens) -> None:
        """The work has drawn its positions."""
        work = self._works.get(work_id)
        if work is not None and work.leased:
            work.first = first
            self.leases.sampled(work.work.lease_id, first)

    def sources(self, work_id: int) -> Sources:
        """Where a request's tokens came from, as far as that is known; call this before the request is closed."""
        work = self._works.get(work_id)
        return work.sources() if work is not None else Sources()

    def fetches(self, work_id: int) -> bool:
        """Whether blocks of the request are being fetched into their slots."""
        work = self._works.get(work_id)
        return work is not None and work.fetching

    def close(self, work_id: int, now: float) -> None:
        """The work is over. Its lease, if prefill is to be gone on from, begins to run."""
        waiting = self._waiting.pop(work_id, None)
        work = waiting or self._works.get(work_id)
        if work is None or work.closed:
            return
        work.closed = True
        self._close_lease(work, now)
        if waiting is not None:
            return
        if work.told:
            self.to_ranks.append(Closed(work_id))
        work.close_by = now + self.settings.late_s
        self._settle(work)

    def _close_lease(self, work: StagedRequest, now: float) -> None:
        if not work.leased:
            return
        first = work.first
        if first is not None and any(finish is None for _, _, finish in first.tokens):
            self.leases.produced(work.work.lease_id, now)
        else:
            self.leases.release(work.work.lease_id)

    # -- time --

    def look(self, now: float) -> None:
        """Do what can be done now: end leases and requests whose time is over, and give slots to waiting requests."""
        self.leases.expire(now)
        self.kv_cache.take_landed()
        for work in tuple(self._waiting.values()):
            if now >= min(work.opened + self.settings.queue_s, work.work.deadline):
                del self._waiting[work.work_id]
                self._close_lease(work, now)
                waited = f"no slots of the stage were free for {now - work.opened:.1f} s"
                self.refused.append((work.work_id, TandemError("deadline_exceeded", waited)))
        for work in tuple(self._works.values()):
            if work.closed and now >= work.close_by:
                work.ended_at.update(self._ranks)
                self._settle(work)
        while (next_work := self._admission.next(self._waiting.values(), self._works.values())) is not None:
            del self._waiting[next_work.work_id]
            self._admit(next_work)
        self.sharing.admit(requests_wait=bool(self._waiting))

    def next_look(self) -> float:
        """The time at which `look` must be called again even if nothing happens."""
        soonest = self.leases.next_expiry
        for work in self._waiting.values():
            soonest = min(soonest, work.opened + self.settings.queue_s, work.work.deadline)
        for work in self._works.values():
            soonest = min(soonest, work.close_by)
        return soonest

    def _admit(self, work: StagedRequest) -> None:
        params = self._placing.place(work)
        if params is not None or work.slots or work.fetching:
            self._works[work.work_id] = work
        self.admitted.append((work.work_id, None if params is None else params.as_dict()))

    # -- fetches --

    def prefix(self, work_id: int) -> Prefix | None:
        """The full blocks a waiting work begins with; None when it waits no longer, or is private."""
        work = self._waiting.get(work_id)
        if work is None or work.work.private:
            return None
        return Prefix(work.names, len(self.pool.match(work.names)))

    def bring(self, work_id: int, blocks: int) -> None:
        """Have the first `blocks` full blocks of a waiting work fetched."""
        work = self._waiting.get(work_id)
        if work is not None and not work.work.private:
            work.bring = min(blocks, len(work.names))

    def landed(self, work_id: int, index: int, digests: bytes) -> None:
        """Target `index` of a fetch holds verified bytes."""
        if work_id < 0:
            self.sharing.peer_reads.landed(work_id, index, digests)
            return
        work = self._works.get(work_id)
        target = work.pending.pop(index, None) if work is not None else None
        if work is None or target is None:
            return
        work.fetched += target.tokens
        self._completed(work, index, digests)
        self._placing.tell_landed(work, [index])

    def fetch_ended(self, work_id: int, late: tuple[int, ...]) -> None:
        """Nothing more lands, except late bytes in `late`."""
        if work_id < 0:
            self.sharing.peer_reads.ended(work_id, late)
            return
        late_slots = dict.fromkeys(late)
        self.kv_cache.reclaim(work_id, late_slots)
        work = self._works.get(work_id)
        if work is None or not work.fetching:
            return
        work.fetching = False
        pending, work.pending = work.pending, {}
        withheld = [index for index, target in pending.items() if target.slot in late_slots]
        for index, target in pending.items():
            if target.slot in late_slots:
                self._withhold(work, index)
            elif not work.save:
                work.slots[index] = NO_SLOT
                self.pool.release(target.slot)
        if work.told:
            if withheld:
                self.to_ranks.append(Withheld(work_id, tuple(withheld)))
            self.to_ranks.append(NoMore(work_id))
        self._let_go(work)
        self._settle(work)

    def _withhold(self, work: StagedRequest, index: int) -> None:
        """Quarantine the slot of a block that late bytes may still reach: no work owns it, and the block is not
        available from here."""
        self.pool.quarantine(work.slots[index])
        work.slots[index] = NO_SLOT
        work.withheld[index] = None
        if work.leased:
            self.leases.give_up(work.work.lease_id, [work.all_names()[index]])

    # -- what ranks say --

    def saved(self, rank: int, work_id: int, indices: Sequence[int]) -> None:
        """A rank's part of these blocks is in their slots."""
        work = self._works.get(work_id)
        if work is None or rank not in self._writers:
            return
        for index in indices:
            if not work.can_be_saved(index):
                continue
            ranks = work.saved_by.setdefault(index, set())
            ranks.add(rank)
            if ranks == self._writers:
                del work.saved_by[index]
                work.digesting[index] = None
                self.to_digest.append((work.slots[index], partial(self._digested, work_id, index)))

    def _digested(self, work_id: int, index: int, digests: bytes) -> None:
        """The content words of a block that all ranks have saved."""
        work = self._works[work_id]
        del work.digesting[index]
        self._completed(work, index, digests)
        self._let_go(work)
        self._settle(work)

    def began(self, work_id: int, cached: int) -> None:
        """The engine found so many leading tokens in its own cache."""
        work = self._works.get(work_id)
        if work is not None:
            work.cached = max(work.cached, cached)

    def loaded(self, rank: int, work_id: int, sequence: int, copied: int) -> None:
        """Record that a rank has reported a sequence's load, for which it copied `copied` blocks. After the last
        load, slots that are not exported are released."""
        work = self._works.get(work_id)
        if work is None:
            return
        work.loads_over[rank, sequence] = copied
        self._let_go(work)

    def ended(self, rank: int, work_id: int, sequence: int) -> None:
        """A rank touches no slot for a sequence any more. Only the first one saves."""
        work = self._works.get(work_id)
        if work is not None and sequence == work.work.branches[0].sequence:
            work.ended_at.add(rank)
            self._settle(work)

    # -- ends --

    def _completed(self, work: StagedRequest, index: int, digests: bytes) -> None:
        """A block is in its slot: publish it, unless it is a tail or private, and export it."""
        slot = work.slots[index]
        if index < len(work.names) and not work.work.private:
            self.pool.publish(slot, work.names[index], digests, work.work_id)
        else:
            self.pool.seal(slot, digests)
        work.complete[index] = None
        if work.leased:
            self.leases.export(work.work.lease_id, work.all_names()[index], slot)

    def _let_go(self, work: StagedRequest) -> None:
        """Release the slots once the engine has copied the blocks for all sequences and nothing writes to the slots
        any more."""
        sequences = len(work.work.branches) if work.work.mode == "decode" else 1
        copied = len(work.loads_over) >= sequences * len(self._ranks)
        if not copied or work.fetching or work.digesting or work.unsaved:
            return
        self.pool.release_table([slot for slot in work.slots if slot != NO_SLOT])
        work.slots = []
        work.complete.clear()
        work.withheld.clear()

    def _settle(self, work: StagedRequest) -> None:
        """Free what a work that is over holds, as far as nothing writes to it any more."""
        if not work.closed or work.work_id not in self._works:
            return
        if work.fetching:
            self._abandon(work)
        if work.digesting or (work.unsaved and work.told and not work.ended_at.issuperset(self._ranks)):
            return
        del self._works[work.work_id]
        if work.leased:
            names = work.all_names()
            self.leases.give_up(work.work.lease_id, [names[index] for index in work.unsaved])
        self.pool.release_table([slot for slot in work.slots if slot != NO_SLOT])
        work.slots = []

    def _abandon(self, work: StagedRequest) -> None:
        """Abandon a fetch that goes on for a while: until it has ended, no work owns its slots."""
        work.fetching = False
        pending, work.pending = work.pending, {}
        self.kv_cache.abandon(work.work_id, [target.slot for target in pending.values()])
        for index in pending:
            self._withhold(work, index)

    def invalidate(self, slot: int) -> None:
        """Drop a complete block whose bytes are damaged: no lookup finds it any more, and its loads do without it."""
        self.pool.invalidate(slot)
        for work in self._works.values():
            if work.told and slot in work.slots:
                self.to_ranks.append(Spoiled(work.work_id, (work.slots.index(slot),)))

    def check(self) -> None:
        """Assert the invariants: no slot leaks, is used twice, or is held for something that is gone."""
        refs = dict(self.leases.pins())
        tables = [work.slots for work in self._works.values()]
        others = (self.sharing.peer_reads.slots(), self.outputs.slots)
        for slot in [slot for table in (*tables, *others) for slot in table if slot != NO_SLOT]:
            refs[slot] = refs.get(slot, 0) + 1
        self.pool.check(refs)
        self.leases.check()
