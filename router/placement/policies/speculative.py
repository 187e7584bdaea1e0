"""Remembers prefixes that were just sent to a worker, which will have them before a request that comes after can be
computed.

Workers report a block when it is complete. A burst with one new prefix arrives before that, and would be spread over
the whole fleet, with each worker computing the same. So a placement is a promise, good for a bounded time, that the
worker has the prompt's leading blocks; the queue in front of a follower holds the prompt that makes it true.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import compress
from operator import is_not
from typing import Final, NamedTuple

from kv_transfer.index.protocol import Held
from router.placement.decision import Placement, PlacementRequest
from router.placement.scorers.context import NO_SPECULATION, SpeculativeBlocks
from tandem.core.kv import NAME_BYTES, BlockNames

_ALL_UP_TO: Final = 16
"""Leading blocks of which every name is remembered; beyond, the distance grows by a sixteenth."""
_WORKERS_MAX: Final = 4
"""The last ones that a name is promised for."""

SpeculativeEntry = tuple[str, float, int]
"""A worker that will have a name, until when this is promised, and which of the worker's lives it is promised for."""


class _Batch(NamedTuple):
    """Names that were promised at once, the last promise among them, and when nothing promised for them holds."""

    until: float
    names: Sequence[bytes]
    last: SpeculativeEntry


class SpeculativeEntries:
    """Owned by one policy. Of a prompt only some names are remembered, ever farther apart, so that the longest common
    part of two prompts is known to a sixteenth, at about a hundred names for a hundred thousand tokens."""

    def __init__(self, promise_s: float, names_max: int) -> None:
        """A promise holds for `promise_s` beyond the time at which the prompt is expected to be computed."""
        self._promise_s = promise_s
        self._names_max = names_max
        self._known: dict[bytes, tuple[SpeculativeEntry, ...]] = {}
        """Promises by block name, the worker promised last at the end. Names of one prompt share their promises."""
        self._batches: deque[_Batch] = deque()
        self._lives: dict[str, int] = {}
        """How often each worker was lost: what was promised before is void."""
        self._kin: OrderedDict[str, str] = OrderedDict()
        """The worker that computed the last prompt of a cache key."""
        self._looked: tuple[Sequence[bytes], Sequence[bytes]] = ((), ())
        """The prompt of the last decision, which is most often the next one to be placed, and what `remembered` gives
        for it."""

    @property
    def names(self) -> int:
        """The number of names that are remembered."""
        return len(self._known)

    def leading(self, request: PlacementRequest, now: float) -> SpeculativeBlocks:
        """The number of leading blocks of the prompt that each worker is promised to have."""
        batches, known = self._batches, self._known
        while batches and batches[0].until <= now:
            self._drop(batches.popleft())
        if not known:
            return NO_SPECULATION
        found: dict[tuple[bytes, str], int] = {}
        for root, names in request.names.items():
            told = self._remembered(names)
            if self._begun(told, request.held, len(names)):
                for promises, count in _runs(known, told, marks(len(names))):
                    for worker_id, until, life in promises:
                        if until > now and life == self._lives.get(worker_id, 0):
                            found[root, worker_id] = count
        return found or NO_SPECULATION

    def _begun(self, told: Sequence[bytes], held: Mapping[str, Held], blocks: int) -> bool:
        """Whether any name of a prompt may be promised. A promise begins with the prompt or where what its worker
        has ends, so only these names are looked up: most prompts are new, and every look-up misses the cache."""
        known = self._known
        if not told:
            return False
        if told[0] in known:
            return True
        counts, ends = marks(blocks), {each.hbm for each in held.values()}
        for end in ends:
            first = bisect_right(counts, end)
            if first < len(told) and told[first] in known:
                return True
        return False

    def favourite(self, request: PlacementRequest) -> str:
        """The worker that the request's kin had last; empty when it has none."""
        return self._kin.get(request.prompt_cache_key, "") if request.prompt_cache_key else ""

    def placed(self, request: PlacementRequest, placement: Placement, now: float) -> None:
        """Promise the whole prompt for the worker that computes it, and for the one that takes it over: all names but
        those that a worker has already."""
        if request.prompt_cache_key:
            self._kin[request.prompt_cache_key] = placement.computing
            self._kin.move_to_end(request.prompt_cache_key)
            while len(self._kin) > self._names_max:
                self._kin.popitem(last=False)
        cost = placement.costs[0][1]
        until = now + self._promise_s + (cost.completion_ms - cost.decode_ms) / 1e3
        for names in request.names.values():
            told, counts = self._remembered(names), marks(len(names))
            lacking: dict[int, tuple[SpeculativeEntry, ...]] = {}
            for worker_id in _keepers(request, placement):
                held = request.held.get(worker_id)
                first = bisect_right(counts, held.hbm) if held is not None else 0
                lacking[first] = (*lacking.get(first, ()), (worker_id, until, self._lives.get(worker_id, 0)))
            for first, promises in lacking.items():
                self._promise(told[first:] if first else told, promises, until)
        while len(self._known) > self._names_max:
            self._drop(self._batches.popleft())

    def forget(self, worker_id: str) -> None:
        """Whatever was promised for this worker is void."""
        self._lives[worker_id] = self._lives.get(worker_id, 0) + 1

    def _promise(self, names: Sequence[bytes], promises: tuple[SpeculativeEntry, ...], until: float) -> None:
        known = self._known
        if known.keys().isdisjoint(names):
            known.update(dict.fromkeys(names, promises))
        else:
            before: tuple[SpeculativeEntry, ...] | None = None
            merged = promises
            for name in names:
                there = known.get(name)
                if there is not before:
                    before, merged = there, _merged(there or (), promises)
                    until = max(until, *(each[1] for each in merged))
                known[name] = merged
        self._batches.append(_Batch(until, names, promises[-1]))

    def _drop(self, batch: _Batch) -> None:
        """Forget names that have not been promised again since."""
        known, last = self._known, batch.last
        for name in batch.names:
            promises = known.get(name)
            if promises is not None and promises[-1] is last:
                del known[name]

    def _remembered(self, names: Sequence[bytes]) -> Sequence[bytes]:
        looked, told = self._looked
        if looked is not names:
            told = remembered(names)
            self._looked = names, told
        return told


def _keepers(request: PlacementRequest, placement: Placement) -> Sequence[str]:
    """The workers that will keep the prompt: the one that computes it, and the one that continues from it. An answer
    of one token leaves nothing on decode."""
    if placement.prefill is None or request.max_tokens <= 1:
        return (placement.computing,)
    return placement.prefill, placement.decode


def _merged(
    before: tuple[SpeculativeEntry, ...], promises: tuple[SpeculativeEntry, ...]
) -> tuple[SpeculativeEntry, ...]:
    """The latest promise for each of the last workers."""
    workers = {each[0]: None for each in promises}
    return (*(each for each in before if each[0] not in workers), *promises)[-_WORKERS_MAX:]


def _runs(
    known: dict[bytes, tuple[SpeculativeEntry, ...]], names: Sequence[bytes], counts: Sequence[int]
) -> list[tuple[tuple[SpeculativeEntry, ...], int]]:
    """The promises for runs of consecutive names, each with the number of leading blocks that it covers."""
    promised = list(map(known.get, names))
    ends = map(is_not, promised, [*promised[1:], None])
    return [(run, count) for run, count in compress(zip(promised, counts, strict=True), ends) if run is not None]


def remembered(names: Sequence[bytes]) -> Sequence[bytes]:
    """The names that are remembered of a prompt: those of the blocks that end where `marks` says."""
    if isinstance(names, BlockNames):
        packed = names.packed
        return [packed[NAME_BYTES * (count - 1) : NAME_BYTES * count] for count in marks(len(names))]
    return [names[count - 1] for count in marks(len(names))]


@lru_cache(maxsize=4096)
def marks(count: int) -> tuple[int, ...]:
    """The numbers of leading blocks, of `count`, whose last name is remembered: the same ones for every prompt, and
    its own end."""
    found, mark = list[int](), 1
    while mark < count:
        found.append(mark)
        mark += max(1, mark // _ALL_UP_TO)
    return (*found, count) if count else ()
