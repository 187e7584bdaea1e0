"""Export leases: blocks held for a peer, which end by themselves.

A lease belongs to one prefill request. It is opened with the names it covers before any of them is computed; each
block is pinned under it as it completes. While its request runs, it cannot expire; afterwards it lasts its length
from the last renewal. A *shared* lease belongs to no request: it covers blocks that are here for any peer that is
allowed to pull them, and lasts its length from the start. Released and expired leases leave a tombstone, so that an
opening that comes late is refused.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf

from tandem.core.kv import Handle
from tandem.engine.digest import bind
from tandem.engine.protocol import FirstTokens, Gone, Pending
from tandem.engine.scheduler.blocks import BlockPool


@dataclass
class Lease:
    """One lease. `exports` maps a covered name to the slot pinned for it, or None while it is not complete."""

    lease_id: str
    length_s: float
    exports: dict[bytes, int | None]
    expires: float = inf
    first: FirstTokens | None = None
    shared: bool = False
    moved: float = -inf


@dataclass
class LeaseTable:
    """All leases of one incarnation. Pins go to `pool`; `touched` collects leases whose answers changed."""

    pool: BlockPool
    tombstones_max: int = 4096
    expired: int = 0
    _leases: dict[str, Lease] = field(default_factory=dict)
    _tombstones: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _pins: dict[int, int] = field(default_factory=dict)
    _owed: dict[int, int] = field(default_factory=dict)
    """The pins among `_pins` under leases that belong to a request."""
    _shared: int = 0
    _touched: dict[str, None] = field(default_factory=dict)
    _soonest: float = inf

    # -- figures --

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def exported(self) -> int:
        """Distinct slots pinned under leases."""
        return len(self._pins)

    @property
    def owed(self) -> int:
        """The number of distinct slots pinned under leases of requests."""
        return len(self._owed)

    @property
    def shared(self) -> int:
        """Shared leases that are open."""
        return self._shared

    @property
    def next_expiry(self) -> float:
        """The time before which no lease expires; infinity when none can."""
        return self._soonest

    def pins(self) -> dict[int, int]:
        """The number of pins of each slot."""
        return dict(self._pins)

    def finished(self) -> tuple[Lease, ...]:
        """Leases whose work is over: they are there for their peer alone."""
        return tuple(lease for lease in self._leases.values() if lease.expires != inf)

    # -- the work's side --

    def tombstoned(self, lease_id: str) -> bool:
        """Whether the lease ended, or was released, before it could be opened."""
        return lease_id in self._tombstones

    def open(self, lease_id: str, length_s: float, names: Sequence[bytes]) -> None:
        """Cover `names`. The caller checked `tombstoned` and `exists`."""
        assert lease_id not in self._leases
        assert lease_id not in self._tombstones
        self._leases[lease_id] = Lease(lease_id, length_s, dict.fromkeys(names))
        self._touched[lease_id] = None

    def export(self, lease_id: str, name: bytes, slot: int) -> None:
        """The covered block `name` is complete in `slot`: pin it. Nothing happens when the lease is gone."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.exports.get(name, slot) is not None:
            return
        assert self.pool.digests(slot) is not None, f"slot {slot} is exported without digests"
        lease.exports[name] = slot
        self._pin(slot, lease)
        self._touched[lease_id] = None

    def share(self, lease_id: str, length_s: float, names: Sequence[bytes], blocks_max: int, now: float) -> None:
        """Open a shared lease over those of `names` that are here, as long as no more than `blocks_max` slots are
        pinned altogether. The caller checked `tombstoned` and `exists`."""
        lease = Lease(lease_id, length_s, {}, now + length_s, shared=True)
        for name in names:
            slot = self.pool.find(name)
            if slot is not None and (slot in self._pins or len(self._pins) < blocks_max):
                lease.exports[name] = slot
                self._pin(slot, lease)
        self._leases[lease_id] = lease
        self._shared += 1
        self._soonest = min(self._soonest, lease.expires)

    def expect(self, lease_id: str, names: Sequence[bytes]) -> None:
        """An open lease covers `names` too, which are to come."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            lease.exports = {**dict.fromkeys(names), **lease.exports}

    def give_up(self, lease_id: str, names: Sequence[bytes]) -> None:
        """Remove those of `names` that have not come from the lease: they will not come."""
        lease = self._leases.get(lease_id)
        if lease is not None and names:
            for name in names:
                if lease.exports.get(name, -1) is None:
                    del lease.exports[name]
            self._touched[lease_id] = None

    def revoke(self, lease_id: str) -> None:
        """Unpin all blocks: they are pending again, in slots to come."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            self._unpin_all(lease)
            self._touched[lease_id] = None

    def sampled(self, lease_id: str, first: FirstTokens) -> None:
        """The work has drawn its positions."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            lease.first = first
            self._touched[lease_id] = None

    def produced(self, lease_id: str, now: float) -> None:
        """The work is over: from here on the lease can expire."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            lease.expires = now + lease.length_s
            self._soonest = min(self._soonest, lease.expires)

    def move(self, lease_id: str, now: float) -> None:
        """Note that the request of a lease makes progress, or that what it waits for does."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            lease.moved = now

    # -- the peer's side --

    def moved(self, lease_id: str) -> float:
        """When the request of a lease last made progress; minus infinity when that is not known."""
        lease = self._leases.get(lease_id)
        return -inf if lease is None else lease.moved

    def exists(self, lease_id: str) -> bool:
        return lease_id in self._leases

    def look(self, lease_id: str, name: bytes, epoch: int) -> Handle | Pending | Gone:
        """A bound handle to a complete block, or why there is none."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return Gone("the lease has ended" if lease_id in self._tombstones else "no such lease")
        if name not in lease.exports:
            return Gone("the name is not under this lease")
        slot = lease.exports[name]
        if slot is None:
            return Pending()
        words = self.pool.digests(slot)
        if words is None:
            return Gone("its copy here was damaged")
        generation = self.pool.generation(slot)
        return Handle(epoch, name, slot, generation, bind(words, epoch, name, generation))

    def first_tokens(self, lease_id: str) -> FirstTokens | None:
        lease = self._leases.get(lease_id)
        return lease.first if lease is not None else None

    def renew(self, lease_id: str, now: float) -> bool:
        """Extend by the lease's length from now; False when it is gone."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        if lease.expires != inf:
            lease.expires = now + lease.length_s
        return True

    def release(self, lease_id: str) -> None:
        """End the lease. An unknown one is remembered, so that it cannot be opened later."""
        lease = self._leases.pop(lease_id, None)
        self._add_tombstone(lease_id)
        if lease is not None:
            self._shared -= lease.shared
            self._unpin_all(lease)
            self._touched[lease_id] = None

    def expire(self, now: float) -> tuple[str, ...]:
        """End what has run out; gives the ids."""
        if now < self._soonest:
            return ()
        ended = tuple(lease.lease_id for lease in self._leases.values() if lease.expires <= now)
        for lease_id in ended:
            self.release(lease_id)
        self.expired += len(ended)
        self._soonest = min((lease.expires for lease in self._leases.values()), default=inf)
        return ended

    def check(self) -> None:
        """Assert that leases and tombstones are apart, tombstones bounded, and pins the ones that leases hold."""
        assert len(self._tombstones) <= self.tombstones_max, f"{len(self._tombstones)} tombstones"
        assert self._leases.keys().isdisjoint(self._tombstones), "a lease that has ended is open"
        leases = self._leases.values()
        held = _slots_of([lease.exports.values() for lease in leases])
        assert held == self._pins, f"leases hold {held}, pinned are {self._pins}"
        owed = _slots_of([lease.exports.values() for lease in leases if not lease.shared])
        assert owed == self._owed, f"works' leases hold {owed}, noted are {self._owed}"
        assert self._shared == sum(lease.shared for lease in self._leases.values())

    def release_all(self) -> None:
        """End every lease: the incarnation is over."""
        for lease_id in tuple(self._leases):
            self.release(lease_id)

    def take_touched(self) -> tuple[str, ...]:
        """Leases whose answers may have changed since the last call."""
        if not self._touched:
            return ()
        touched, self._touched = self._touched, {}
        return tuple(touched)

    # -- pins --

    def _pin(self, slot: int, lease: Lease) -> None:
        self.pool.ref(slot)
        self._pins[slot] = self._pins.get(slot, 0) + 1
        if not lease.shared:
            self._owed[slot] = self._owed.get(slot, 0) + 1

    def _unpin_all(self, lease: Lease) -> None:
        for name, slot in reversed(lease.exports.items()):
            if slot is not None:
                lease.exports[name] = None
                self._unpin(slot, lease)

    def _unpin(self, slot: int, lease: Lease) -> None:
        self.pool.release(slot)
        _count_down(self._pins, slot)
        if not lease.shared:
            _count_down(self._owed, slot)

    def _add_tombstone(self, lease_id: str) -> None:
        self._tombstones[lease_id] = None
        self._tombstones.move_to_end(lease_id)
        while len(self._tombstones) > self.tombstones_max:
            self._tombstones.popitem(last=False)


def _count_down(counts: dict[int, int], slot: int) -> None:
    if counts[slot] == 1:
        del counts[slot]
    else:
        counts[slot] -= 1


def _slots_of(exports: Sequence[Iterable[int | None]]) -> dict[int | None, int]:
    """The number of exports of each slot."""
    counts = Counter(chain.from_iterable(exports))
    del counts[None]
    return dict(counts)
