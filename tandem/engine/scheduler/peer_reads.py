"""Blocks brought into the pool for a peer: it shares what is here, and this worker's own tiers have more of it.

A *guest* is not a request: nothing is computed for it, and it takes only room that no request waits for. Its slots
are reserved in `plan` like any others. Each block that lands is published and pinned under the lease that it was
requested under; from then on it belongs to no sequence.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tandem.engine.protocol import FetchJob, FetchTarget
from tandem.engine.scheduler.events import EngineEvents
from tandem.engine.scheduler.kv_cache_manager import KvCacheManager
from tandem.engine.scheduler.leases import LeaseTable


@dataclass
class PeerRead:
    """`pending` are the targets that have not landed, by index."""

    lease_id: str
    pending: dict[int, FetchTarget] = field(default_factory=dict)


class PeerReads:
    """The reads of blocks for peers. Their fetches are numbered downwards from -1, so that no number is a
    request's."""

    def __init__(self, kv_cache: KvCacheManager, outbox: EngineEvents) -> None:
        self._kv_cache = kv_cache
        self._pool = kv_cache.pool
        self._leases: LeaseTable = kv_cache.leases
        self._outbox = outbox
        self._asked: list[tuple[str, tuple[bytes, ...]]] = []
        self._peer_reads: dict[int, PeerRead] = {}
        self._last = 0

    def ask(self, lease_id: str, names: Sequence[bytes]) -> None:
        """Ask for blocks that are not here to be brought under an open lease; until they are here, they are
        pending."""
        self._leases.expect(lease_id, names)
        self._asked.append((lease_id, tuple(names)))

    def admit(self, room: Callable[[], int]) -> None:
        """Reserve slots for the blocks that peers have asked for, as many as there is `room` for at that moment.
        Their leases report that the other blocks do not come."""
        asked, self._asked = self._asked, []
        for lease_id, names in asked:
            self._export(lease_id, (name for name in names if self._pool.find(name) is not None))
            missing = [name for name in names if self._pool.find(name) is None]
            begun = missing[: max(0, room())] if self._leases.exists(lease_id) else []
            self._leases.give_up(lease_id, missing[len(begun) :])
            if begun:
                self._begin(lease_id, begun)

    def _begin(self, lease_id: str, names: Sequence[bytes]) -> None:
        self._last -= 1
        slots, pool = self._pool.allocate(len(names)), self._pool
        targets = tuple(
            FetchTarget(index, name, slot, pool.generation(slot), self._kv_cache.block_tokens)
            for index, (name, slot) in enumerate(zip(names, slots, strict=True))
        )
        self._peer_reads[self._last] = PeerRead(lease_id, {target.index: target for target in targets})
        self._outbox.fetch(FetchJob(self._last, targets, hand_off=False, peer_read=True))

    def landed(self, work_id: int, index: int, digests: bytes) -> None:
        """Publish and export target `index` of a peer read, whose slot now holds verified bytes."""
        peer_read = self._peer_reads[work_id]
        target = peer_read.pending.pop(index)
        self._pool.publish(target.slot, target.name, digests, work_id)
        self._kv_cache.note_landed(target)
        self._export(peer_read.lease_id, (target.name,))
        self._pool.release(target.slot)

    def ended(self, work_id: int, late: Iterable[int]) -> None:
        """Nothing more lands, except late bytes in `late`."""
        peer_read, late_slots = self._peer_reads.pop(work_id), dict.fromkeys(late)
        self._leases.give_up(peer_read.lease_id, [target.name for target in peer_read.pending.values()])
        for target in peer_read.pending.values():
            if target.slot in late_slots:
                self._pool.quarantine(target.slot)
            else:
                self._pool.release(target.slot)

    def _export(self, lease_id: str, names: Iterable[bytes]) -> None:
        for name in names:
            slot = self._pool.find(name)
            assert slot is not None, "what has landed or was found is here"
            self._leases.export(lease_id, name, slot)

    def slots(self) -> list[int]:
        """The slots reserved for peer reads that have not landed."""
        return [target.slot for peer_read in self._peer_reads.values() for target in peer_read.pending.values()]
