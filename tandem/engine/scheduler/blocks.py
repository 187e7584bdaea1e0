"""The slots of a KV pool: which sequences use which, what each holds, which are available.

Every slot is in exactly one state. A free slot is unused and its content worthless. A cached slot is unused, but
holds a named block that may be wanted again; cached slots are evicted least recently used first. A used slot has at
least one reference (a sequence's table, an export lease, a step in flight). A quarantined slot belongs to no user,
but an abandoned transfer may still write to it.

Code that copies a block out of the pool *holds* it meanwhile. A hold is no use of the slot and leaves its place in
the order of eviction, but the slot is not allocated to others.

All operations are O(1) per slot. Nothing here knows bytes, time or the engine.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import eq
from typing import Final

from tandem.engine.protocol import NO_CHANGE, KvChange

_HELD_SHARE: Final = 8
"""At most one slot in this many is held at a time."""


class BlockPool:
    """Owns slots 0 … blocks-1: references, generations, names, digests, and the events about names."""

    def __init__(self, blocks: int) -> None:
        assert blocks > 0
        self.blocks = blocks
        self._refs = [0] * blocks
        self._generations = [0] * blocks
        self._names: list[bytes | None] = [None] * blocks
        self._digests: list[bytes | None] = [None] * blocks
        self._by_name: dict[bytes, int] = {}
        self._free: deque[int] = deque(range(blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._quarantined: dict[int, None] = {}
        self._held: dict[int, int] = {}
        self._held_idle = 0
        """Slots that are cached and held."""
        self.pinned: Callable[[bytes], bool] | None = None
        """Whether the block of a name is evicted only when all that could be are pinned."""
        self._changes: dict[bytes, int | None] = {}
        """The names that changed: new names with the request that made them, and names that are gone with None."""

    # -- counts --

    @property
    def available(self) -> int:
        """The number of slots that can be allocated now: free slots, and cached ones that are not held."""
        return len(self._free) + len(self._cached) - self._held_idle

    @property
    def cached(self) -> int:
        """The number of unused slots that still hold a named block."""
        return len(self._cached)

    @property
    def quarantined(self) -> int:
        return len(self._quarantined)

    @property
    def used(self) -> int:
        return self.blocks - len(self._free) - len(self._cached) - len(self._quarantined)

    @property
    def held(self) -> int:
        """Slots that are being copied."""
        return len(self._held)

    @property
    def has_changes(self) -> bool:
        """Whether names became or ceased to be available since the last `take_changes`."""
        return bool(self._changes)

    # -- slots --

    def allocate(self, count: int) -> list[int]:
        """Take `count` slots with one reference each and a new generation; the caller checked `available`."""
        assert count <= self.available, f"{count} slots wanted, {self.available} available"
        slots, spare = list[int](), self.pinned is not None
        for _ in range(count):
            if spare and not self._free:
                spare = self._spare_pinned()
            slot = self._free.popleft() if self._free else self._evict()
            self._refs[slot] = 1
            self._generations[slot] += 1
            self._digests[slot] = None
            slots.append(slot)
        return slots

    def _evict(self) -> int:
        slot = next(iter(self._cached))
        if self._held_idle:
            slot = next(slot for slot in self._cached if slot not in self._held)
        del self._cached[slot]
        name = self._names[slot]
        assert name is not None
        self._names[slot] = None
        del self._by_name[name]
        self._changed(name, None)
        return slot

    def _spare_pinned(self) -> bool:
        """Bring what is pinned from the front of the order of eviction to its end, so that a pin costs one look for
        every time its block has become the oldest. Whether there is a block that is not pinned."""
        assert self.pinned is not None
        for _ in range(len(self._cached)):
            slot = next(iter(self._cached))
            name = self._names[slot]
            assert name is not None
            if not self.pinned(name):
                return True
            self._cached.move_to_end(slot)
        return False

    def ref(self, slot: int) -> None:
        """One more user of a used or cached slot."""
        refs = self._refs[slot]
        if refs == 0:
            del self._cached[slot]
            self._held_idle -= slot in self._held
        self._refs[slot] = refs + 1

    def release(self, slot: int) -> None:
        """One user less; with the last one gone the slot is cached when it has a name, otherwise free."""
        refs = self._refs[slot]
        assert refs > 0, f"slot {slot} is not in use"
        self._refs[slot] = refs - 1
        if refs == 1:
            if self._names[slot] is not None:
                self._cached[slot] = None
                self._held_idle += slot in self._held
            elif slot in self._held:
                self._quarantined[slot] = None
            else:
                self._free.append(slot)

    def release_table(self, table: Sequence[int]) -> None:
        """Release a sequence's blocks, last first, so that the beginning of a prompt is evicted last."""
        for slot in reversed(table):
            self.release(slot)

    def shared(self, slot: int) -> bool:
        """Whether the slot has more than one user."""
        return self._refs[slot] > 1

    def refs(self, slot: int) -> int:
        return self._refs[slot]

    def generation(self, slot: int) -> int:
        """The generation of the slot, which grows each time the slot is given to a new block."""
        return self._generations[slot]

    def digests(self, slot: int) -> bytes | None:
        """The unbound content words of a complete block, or None while it is not complete."""
        return self._digests[slot]

    # -- names --

    def publish(self, slot: int, name: bytes, digests: bytes, maker: int = 0) -> None:
        """The used slot now holds the full block `name`, made by work `maker`. A second copy of a known name stays
        private."""
        assert self._refs[slot] > 0
        assert self._names[slot] is None
        self._digests[slot] = digests
        if name not in self._by_name:
            self._names[slot] = name
            self._by_name[name] = slot
            self._changed(name, maker)

    def seal(self, slot: int, digests: bytes) -> None:
        """The used slot is complete but has no public name (a tail)."""
        assert self._refs[slot] > 0
        assert self._names[slot] is None
        self._digests[slot] = digests

    def invalidate(self, slot: int) -> None:
        """Mark that the slot's bytes are not those of its block: it is never found from now on. Its users keep it."""
        name = self._names[slot]
        self._digests[slot] = None
        if name is None:
            return
        self._names[slot] = None
        del self._by_name[name]
        self._changed(name, None)
        if slot in self._cached:
            # As if its last user had just gone: nobody gets it while somebody still reads from it.
            self.ref(slot)
            self.release(slot)

    def find(self, name: bytes) -> int | None:
        return self._by_name.get(name)

    def match(self, names: Iterable[bytes]) -> list[int]:
        """Slots of the longest run of leading names that are all here. Takes no reference."""
        slots = []
        for name in names:
            slot = self._by_name.get(name)
            if slot is None:
                break
            slots.append(slot)
        return slots

    def snapshot(self) -> tuple[bytes, ...]:
        """All names that can be found now."""
        return tuple(self._by_name)

    def _changed(self, name: bytes, maker: int | None) -> None:
        # Stored and removed between two reports cancel out: the reader's view did not change.
        if name in self._changes:
            assert (self._changes[name] is None) != (maker is None), "a name comes and goes in turns"
            del self._changes[name]
        else:
            self._changes[name] = maker

    def take_changes(self) -> KvChange:
        """The names that became or ceased to be available since the last call."""
        if not self._changes:
            return NO_CHANGE
        changes, self._changes = self._changes, {}
        stored = {name: maker for name, maker in changes.items() if maker is not None}
        removed = tuple(name for name, maker in changes.items() if maker is None)
        return KvChange(tuple(stored), removed, tuple(stored.values()))

    # -- holds --

    def hold(self, name: bytes) -> int | None:
        """Hold the block's slot, so that it is not allocated to others until `unhold`. None when the block is not
        here, or too many are held."""
        slot = self._by_name.get(name)
        if slot is None or (slot not in self._held and _HELD_SHARE * len(self._held) >= self.blocks):
            return None
        self._held_idle += slot in self._cached and slot not in self._held
        self._held[slot] = self._held.get(slot, 0) + 1
        return slot

    def unhold(self, slot: int) -> None:
        """Undo one `hold`."""
        count = self._held.pop(slot)
        if count > 1:
            self._held[slot] = count - 1
            return
        self._held_idle -= slot in self._cached
        if slot in self._quarantined:
            self.unquarantine(slot)

    # -- quarantine --

    def quarantine(self, slot: int) -> None:
        """Take the only user's slot away from use until `unquarantine`: late bytes may land in it."""
        assert self._refs[slot] == 1
        assert self._names[slot] is None
        self._refs[slot] = 0
        self._quarantined[slot] = None

    def unquarantine(self, slot: int) -> None:
        """Release the slot from quarantine: no late byte can come any more. Unknown slots are ignored."""
        if slot in self._quarantined:
            del self._quarantined[slot]
            self._free.append(slot)

    # -- invariants --

    def check(self, expected_refs: Mapping[int, int] | None = None) -> None:
        """Assert that every slot is in exactly one state, and that references are the ones expected."""
        # Called after every few events of a simulation: what is all right is found to be so without a loop.
        refs, names, unused = self._refs, self._names, {*self._free, *self._cached, *self._quarantined}
        states = len(self._free) + len(self._cached) + len(self._quarantined)
        assert len(unused) == states, "a slot is in two states, or in one twice"
        assert refs.count(0) == states, f"{states} slots are not used, {refs.count(0)} have no references"
        assert not any(map(refs.__getitem__, unused)), "a slot that is used counts as unused"
        assert self.used == self.blocks - states, f"{self.used} slots are counted as used, not {self.blocks - states}"
        assert len(self._by_name) == self.blocks - names.count(None), "a name without its slot, or found elsewhere"
        found = map(names.__getitem__, self._by_name.values())
        assert all(map(eq, found, self._by_name)), "a slot with a name found elsewhere"
        assert None not in map(names.__getitem__, self._cached), "a slot is cached without a name"
        if expected_refs is not None:
            assert len(expected_refs) == self.blocks - states, f"references {refs}, expected {expected_refs}"
            found_refs = map(refs.__getitem__, expected_refs)
            assert all(map(eq, found_refs, expected_refs.values())), f"references {refs}, expected {expected_refs}"
        if self._held:
            self._check_holds()

    def _check_holds(self) -> None:
        idle = [slot for slot in self._held if slot in self._cached]
        assert len(idle) == self._held_idle, f"{len(idle)} held slots are cached, {self._held_idle} are counted"
        lost = [slot for slot in self._held if slot in self._free]
        assert not lost, f"slots {lost} are held and free"
