"""The slots of a KV pool: who uses which, what each holds, which can be had.

Every slot is in exactly one state:
- free: unused, content worthless;
- cached: unused, but holds a named block that may be wanted again; evicted least recently used first;
- used: at least one reference (a sequence's table, an export lease, a step in flight);
- quarantined: nobody's, but an abandoned transfer may still write to it.

All operations are O(1) per slot. Nothing here knows bytes, time or the engine.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

from tandem.engine.protocol import KvChange


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
        self._changes: dict[bytes, bool] = {}

    # -- counts --

    @property
    def available(self) -> int:
        """Slots that can be allocated now: free and cached."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        """Slots nobody uses that still hold a named block."""
        return len(self._cached)

    @property
    def quarantined(self) -> int:
        return len(self._quarantined)

    @property
    def used(self) -> int:
        return self.blocks - self.available - len(self._quarantined)

    @property
    def has_changes(self) -> bool:
        """Whether names became or ceased to be available since the last `take_changes`."""
        return bool(self._changes)

    # -- slots --

    def allocate(self, count: int) -> list[int]:
        """Take `count` slots with one reference each and a new generation; the caller checked `available`."""
        assert count <= self.available, f"{count} slots wanted, {self.available} available"
        slots = []
        for _ in range(count):
            slot = self._free.popleft() if self._free else self._evict()
            self._refs[slot] = 1
            self._generations[slot] += 1
            self._digests[slot] = None
            slots.append(slot)
        return slots

    def _evict(self) -> int:
        slot, _ = self._cached.popitem(last=False)
        name = self._names[slot]
        assert name is not None
        self._names[slot] = None
        del self._by_name[name]
        self._changed(name, False)
        return slot

    def ref(self, slot: int) -> None:
        """One more user of a used or cached slot."""
        refs = self._refs[slot]
        if refs == 0:
            del self._cached[slot]
        self._refs[slot] = refs + 1

    def release(self, slot: int) -> None:
        """One user less; with the last one gone the slot is cached when it has a name, otherwise free."""
        refs = self._refs[slot]
        assert refs > 0, f"slot {slot} is not in use"
        self._refs[slot] = refs - 1
        if refs == 1:
            if self._names[slot] is None:
                self._free.append(slot)
            else:
                self._cached[slot] = None

    def release_table(self, table: Sequence[int]) -> None:
        """Release a sequence's blocks, last first, so that the beginning of a prompt is evicted last."""
        for slot in reversed(table):
            self.release(slot)

    def shared(self, slot: int) -> bool:
        """Whether somebody else uses the slot too."""
        return self._refs[slot] > 1

    def refs(self, slot: int) -> int:
        return self._refs[slot]

    def generation(self, slot: int) -> int:
        """Grows each time the slot is given to a new block."""
        return self._generations[slot]

    def digests(self, slot: int) -> bytes | None:
        """The unbound content words of a complete block, or None while it is not complete."""
        return self._digests[slot]

    # -- names --

    def publish(self, slot: int, name: bytes, digests: bytes) -> None:
        """The used slot now holds the full block `name`. A second copy of a known name stays private."""
        assert self._refs[slot] > 0
        assert self._names[slot] is None
        self._digests[slot] = digests
        if name not in self._by_name:
            self._names[slot] = name
            self._by_name[name] = slot
            self._changed(name, True)

    def seal(self, slot: int, digests: bytes) -> None:
        """The used slot is complete but has no public name (a tail)."""
        assert self._refs[slot] > 0
        assert self._names[slot] is None
        self._digests[slot] = digests

    def condemn(self, slot: int) -> None:
        """The slot's bytes are not those of its block: nobody finds it from now on. Its users keep it."""
        name = self._names[slot]
        self._digests[slot] = None
        if name is None:
            return
        self._names[slot] = None
        del self._by_name[name]
        self._changed(name, False)
        if slot in self._cached:
            del self._cached[slot]
            self._free.append(slot)

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

    def _changed(self, name: bytes, stored: bool) -> None:
        # Stored and removed between two reports cancel out: the reader's view did not change.
        if self._changes.get(name) is (not stored):
            del self._changes[name]
        else:
            self._changes[name] = stored

    def take_changes(self) -> KvChange:
        """What became or ceased to be available since the last call."""
        if not self._changes:
            return KvChange()
        changes, self._changes = self._changes, {}
        stored = tuple(name for name, here in changes.items() if here)
        return KvChange(stored, tuple(name for name, here in changes.items() if not here))

    # -- quarantine --

    def quarantine(self, slot: int) -> None:
        """Take the only user's slot away from use until `unquarantine`: late bytes may land in it."""
        assert self._refs[slot] == 1
        assert self._names[slot] is None
        self._refs[slot] = 0
        self._quarantined[slot] = None

    def unquarantine(self, slot: int) -> None:
        """No late byte can come any more. Unknown slots are ignored."""
        if slot in self._quarantined:
            del self._quarantined[slot]
            self._free.append(slot)

    # -- invariants --

    def check(self, expected_refs: dict[int, int] | None = None) -> None:
        """Assert that every slot is in exactly one state, and that references are the ones expected."""
        actual = {slot: refs for slot, refs in enumerate(self._refs) if refs}
        states = [*self._free, *self._cached, *self._quarantined, *actual]
        assert len(states) == self.blocks, f"{self.blocks} slots are in {len(states)} states"
        assert len(dict.fromkeys(states)) == self.blocks, "a slot is in two states, or in one twice"
        assert len(actual) == self.used, f"{len(actual)} slots are in use, {self.used} are counted"
        named = {name: slot for slot, name in enumerate(self._names) if name is not None}
        assert named == self._by_name, "a name without its slot, or a slot with a name found elsewhere"
        nameless = [slot for slot in self._cached if self._names[slot] is None]
        assert not nameless, f"slots {nameless} are cached without a name"
        assert expected_refs is None or actual == expected_refs, f"references {actual}, expected {expected_refs}"
