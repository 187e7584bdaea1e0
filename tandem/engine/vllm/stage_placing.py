"""Places a work when its turn comes: slots, its blocks that are already here, and a fetch for those from
elsewhere."""

from tandem.engine.protocol import FetchJob, FetchTarget
from tandem.engine.scheduler.events import EngineEvents
from tandem.engine.scheduler.kv_cache_manager import KvCacheManager
from tandem.engine.vllm.conduit_messages import INDICES_MAX, BlocksReceived, DrawFirst, First, NoMore, ToRank
from tandem.engine.vllm.stage_admission import StageAdmission
from tandem.engine.vllm.stage_params import NO_SLOT, StageParams
from tandem.engine.vllm.staged_request import StagedRequest


class StagePlacing:
    """Gives slots to requests. Writes to the state it is given: the pool, the leases, fetches that are to begin,
    messages to ranks."""

    def __init__(
        self, kv_cache: KvCacheManager, outbox: EngineEvents, admission: StageAdmission, to_ranks: list[ToRank]
    ) -> None:
        self._pool = kv_cache.pool
        self._leases = kv_cache.leases
        self._block_tokens = kv_cache.block_tokens
        self._outbox = outbox
        self._admission = admission
        self._to_ranks = to_ranks

    def place(self, work: StagedRequest) -> StageParams | None:
        """Give slots to a work that fits. Returns the parameters of its first request, or None when the engine needs
        to know nothing of the stage."""
        matched = [] if work.work.private else self._pool.match(work.names)
        for slot in matched:
            self._pool.ref(slot)
        work.slots = list(matched)
        work.complete = dict.fromkeys(range(len(matched)))
        wanted = self._wanted(work, len(matched))
        work.slots += self._pool.allocate(wanted - len(matched))
        work.staged = min(len(matched) * self._block_tokens, work.tokens)
        if work.leased:
            for index in range(len(matched)):
                self._leases.export(work.work.lease_id, work.names[index], matched[index])
        fetched = wanted if work.handed_over else min(wanted, max(work.bring, len(matched)))
        self._begin_fetch(work, range(len(matched), fetched))
        params = self._params(work, len(matched), fetched)
        work.told = params is not None
        if work.told:
            self._tell_what_is_known(work, len(matched))
        return params

    def tell_landed(self, work: StagedRequest, indices: list[int]) -> None:
        """Report to the ranks that the request's blocks at `indices` are complete."""
        for start in range(0, len(indices), INDICES_MAX):
            self._to_ranks.append(BlocksReceived(work.work_id, tuple(indices[start : start + INDICES_MAX])))

    def _tell_what_is_known(self, work: StagedRequest, here: int) -> None:
        """Said before the engine has the request, so that nothing about it comes late."""
        self.tell_landed(work, list(range(here)))
        self._to_ranks += [First(work.work_id, sequence, token) for sequence, token in work.firsts.items()]
        if work.prefill_lost:
            self._to_ranks.append(DrawFirst(work.work_id))
        if not work.fetching:
            self._to_ranks.append(NoMore(work.work_id))

    def _wanted(self, work: StagedRequest, here: int) -> int:
        """The number of leading blocks for which the request gets slots."""
        if work.leased or work.handed_over:
            return work.blocks
        if work.work.private:
            return 0
        full = len(work.names)
        if work.save and full - here <= self._admission.spare:
            return full
        return here + min(max(0, work.bring - here), self._admission.spare)

    def _begin_fetch(self, work: StagedRequest, indices: range) -> None:
        names, pool = work.all_names(), self._pool
        work.pending = {
            index: FetchTarget(
                index, names[index], work.slots[index], pool.generation(work.slots[index]), work.tokens_in(index)
            )
            for index in indices
        }
        work.hand_off = work.handed_over
        work.fetching = bool(work.pending) or work.hand_off
        if work.fetching:
            self._outbox.fetch(FetchJob(work.work_id, tuple(work.pending.values()), work.hand_off))

    def _params(self, work: StagedRequest, here: int, fetched: int) -> StageParams | None:
        decode = work.work.mode == "decode"
        load = work.tokens if decode else min(max(here, fetched) * self._block_tokens, work.tokens)
        slots = (*work.slots, *[NO_SLOT] * (work.blocks - len(work.slots))) if decode else tuple(work.slots)
        save = 0 if work.save and len(slots) > here else len(slots)
        parent = _parent_of_output(work)
        if parent is None and not decode and not load and save == len(slots):
            return None
        sequence = work.work.branches[0].sequence
        return StageParams(work.work_id, sequence, slots, load, save, tuple(work.complete), decode, parent)


def _parent_of_output(work: StagedRequest) -> bytes | None:
    """The name that the first block of output follows, where blocks of output may have names."""
    if work.work.private or work.work.mode == "prefill" or not (work.save or work.work.mode == "decode"):
        return None
    return work.names[-1] if work.names else work.work.root
