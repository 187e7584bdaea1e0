"""Index of one tier: what the tier holds and what it evicts, least recently used first, except blocks that are pinned
or being read.

The index only decides: no bytes, no clock, no I/O. Capacity and quotas are counted in blocks, which all have one
size.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from kv_transfer.tiers.quotas import Quotas


class Copy(msgspec.Struct, gc=False):
    """One block of a tier. `place` locates its bytes; only the tier's backend knows what the number means."""

    name: bytes
    tenant: str
    place: int | None = None
    """None while the block is only a reservation."""
    used: bool = False
    """Whether the block has been wanted since it was written."""
    readers: int = 0
    doomed: bool = False
    """Whether the copy was removed while it was being read: lookups no longer find it, and it goes with its last
    reader."""


@dataclass(frozen=True)
class Admission:
    """Whether a block can be taken in, and what has gone for it. `refusal` is a metric label, None when it can be:

    `held` (here already), `pinned` (everything that could go is pinned or in use), `quota` (the same within what the
    tenant may have).
    """

    evicted: tuple[Copy, ...] = ()
    refusal: str | None = None


class TierIndex:
    """The blocks of one tier, in order of use.

    `pinned(name)` says whether a block must be kept now. A block that an eviction reaches but must not evict counts
    as just used, so that finding a victim takes constant time on average.
    """

    def __init__(self, blocks: int, quotas: Quotas, pinned: Callable[[bytes], bool]) -> None:
        assert blocks > 0
        self.blocks = blocks
        self.quotas = quotas
        self._pinned = pinned
        self._copies: OrderedDict[bytes, Copy] = OrderedDict()
        self._tenants: dict[str, OrderedDict[bytes, None]] = {}
        self._doomed = 0

    # -- looking --

    def __len__(self) -> int:
        """Blocks that take room: readable ones, reservations, and removed ones that are still being read."""
        return len(self._copies) + self._doomed

    def __contains__(self, name: bytes) -> bool:
        """Whether the block can be read from here."""
        copy = self._copies.get(name)
        return copy is not None and copy.place is not None

    def knows(self, name: bytes) -> bool:
        """Whether the block is here or about to be."""
        return name in self._copies

    def names(self) -> tuple[bytes, ...]:
        """All readable names, the least recently used first."""
        return tuple(self.coldest())

    def coldest(self) -> Iterator[bytes]:
        """Readable names, the least recently used first. The index must not change during the iteration."""
        return (name for name, copy in self._copies.items() if copy.place is not None)

    def find(self, name: bytes) -> Copy | None:
        """The readable block of that name."""
        copy = self._copies.get(name)
        return copy if copy is not None and copy.place is not None else None

    def held_by(self, tenant: str) -> int:
        """Blocks that count against the tenant's quota."""
        return len(self._tenants.get(tenant, ()))

    def worth(self, name: bytes) -> int:
        """2 when the readable block is pinned, 1 when it was wanted since it was written, otherwise 0."""
        copy = self.find(name)
        if copy is None:
            return 0
        return 2 if self._pinned(name) else int(copy.used)

    # -- taking in --

    def reserve(self, name: bytes, tenant: str) -> Admission:
        """Take room for a block, at the expense of others where need be. Follow it with `settle` or `remove`."""
        if name in self._copies:
            return Admission(refusal="held")
        evicted, quota = tuple[Copy, ...](), self.quotas.of(tenant)
        if self.held_by(tenant) >= quota:
            evicted = self._shrink(tenant, quota - 1)
            if self.held_by(tenant) >= quota:
                return Admission(evicted, "quota")
        if len(self) >= self.blocks:
            victim = self._victim(self._copies)
            if victim is None:
                return Admission(evicted, "pinned")
            evicted = (*evicted, self._take_out(victim))
        self._put(Copy(name, tenant))
        return Admission(evicted)

    def settle(self, name: bytes, place: int) -> bool:
        """The reserved block is written to `place`. False when it was removed meanwhile: the place is not used."""
        copy = self._copies.get(name)
        if copy is None or copy.place is not None:
            return False
        copy.place = place
        return True

    def adopt(self, name: bytes, tenant: str, place: int) -> bool:
        """Take in a block that was found at `place` and is older than all that are here, if there is room for it."""
        crowded = self.held_by(tenant) >= self.quotas.of(tenant) or len(self) >= self.blocks
        if crowded or name in self._copies:
            return False
        self._put(Copy(name, tenant, place))
        self._copies.move_to_end(name, last=False)
        self._tenants[tenant].move_to_end(name, last=False)
        return True

    def move(self, name: bytes, place: int) -> bool:
        """The block lies at `place` from now on; its use begins anew. False when it was removed meanwhile."""
        copy = self.find(name)
        if copy is None:
            return False
        copy.place, copy.used = place, False
        return True

    def trim(self, tenant: str) -> tuple[Copy, ...]:
        """Evict what a tenant has above its quota, which has shrunk. What is pinned or in use stays."""
        return self._shrink(tenant, self.quotas.of(tenant))

    def _shrink(self, tenant: str, blocks: int) -> tuple[Copy, ...]:
        evicted = list[Copy]()
        while self.held_by(tenant) > max(0, blocks):
            victim = self._victim(self._tenants[tenant])
            if victim is None:
                break
            evicted.append(self._take_out(victim))
        return tuple(evicted)

    def _put(self, copy: Copy) -> None:
        self._copies[copy.name] = copy
        self._tenants.setdefault(copy.tenant, OrderedDict())[copy.name] = None

    def _victim(self, order: "OrderedDict[bytes, Copy] | OrderedDict[bytes, None]") -> bytes | None:
        for _ in range(len(order)):
            name = next(iter(order))
            copy = self._copies[name]
            if copy.place is not None and not copy.readers and not self._pinned(name):
                return name
            self._bump(copy)
        return None

    # -- using --

    def touch(self, name: bytes) -> None:
        """The block was wanted: it is the last to go now. Unknown names are ignored."""
        copy = self._copies.get(name)
        if copy is not None:
            copy.used = True
            self._bump(copy)

    def acquire(self, name: bytes) -> Copy:
        """Register a reader of a readable block, which keeps its place until `release`."""
        copy = self._copies[name]
        assert copy.place is not None, "a block that is not written cannot be read"
        copy.readers += 1
        return copy

    def borrow(self, names: Iterable[bytes]) -> list[Copy | None]:
        """`touch` and `acquire` in one, for many blocks; None for each that cannot be read from here."""
        found, known, tenants = list[Copy | None](), self._copies, self._tenants
        for name in names:
            copy = known.get(name)
            if copy is None or copy.place is None:
                found.append(None)
                continue
            copy.used = True
            copy.readers += 1
            known.move_to_end(name)
            tenants[copy.tenant].move_to_end(name)
            found.append(copy)
        return found

    def release(self, copy: Copy) -> bool:
        """A reader is done. True when the block was removed meanwhile and its place is free with this."""
        assert copy.readers > 0, f"{copy.name.hex()} is not being read"
        copy.readers -= 1
        if copy.readers or not copy.doomed:
            return False
        self._doomed -= 1
        return True

    def remove(self, name: bytes) -> Copy | None:
        """Forget a block, known or not. Gives it when its place is free at once, None otherwise."""
        if name not in self._copies:
            return None
        copy = self._take_out(name)
        if not copy.readers:
            return copy
        copy.doomed = True
        self._doomed += 1
        return None

    def _take_out(self, name: bytes) -> Copy:
        copy = self._copies.pop(name)
        own = self._tenants[copy.tenant]
        del own[name]
        if not own:
            del self._tenants[copy.tenant]
        return copy

    def _bump(self, copy: Copy) -> None:
        self._copies.move_to_end(copy.name)
        self._tenants[copy.tenant].move_to_end(copy.name)

    def check(self) -> None:
        """Assert capacity, quotas, and that both orders hold the same names."""
        assert len(self) <= self.blocks, f"{len(self)} blocks held, {self.blocks} fit"
        counts: dict[str, int] = {}
        for copy in self._copies.values():
            assert not copy.doomed
            counts[copy.tenant] = counts.get(copy.tenant, 0) + 1
        assert counts == {tenant: len(own) for tenant, own in self._tenants.items()}, "a tenant's count is wrong"
        over = [tenant for tenant, count in counts.items() if count > self.quotas.of(tenant)]
        assert not over, f"tenants {over} are above their quota"
