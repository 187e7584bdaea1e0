"""Pins with a time to live, bounded by a quota: which blocks are kept, until when, and for which tenant."""

from heapq import heapify, heappop, heappush

import msgspec

from kv_transfer.tiers.protocol import Pinning
from kv_transfer.tiers.quotas import Quotas


class _Pin(msgspec.Struct, gc=False):
    tenant: str
    priority: int
    expires: float


class PinTable:
    """Pins of names, whether their blocks are here yet or not. `now` is on one monotonic clock, seconds.

    A tenant has at most as many pins as `quotas` say, and all together have `total_max`. A tenant that is at its
    bound gives up pins of a lower priority for one of a higher, those that would expire first before others.
    """

    def __init__(self, quotas: Quotas, total_max: int) -> None:
        self.quotas = quotas
        self._total_max = total_max
        self._pins: dict[bytes, _Pin] = {}
        self._counts: dict[str, int] = {}
        self._ends: list[tuple[float, bytes]] = []
        self._lowest: dict[str, list[tuple[int, float, bytes]]] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def count(self, tenant: str) -> int:
        """Number of a tenant's pins, including expired ones that have not been looked at since they expired."""
        return self._counts.get(tenant, 0)

    def pinned(self, name: bytes, now: float) -> bool:
        """Whether the block must be kept at `now`."""
        pin = self._pins.get(name)
        return pin is not None and pin.expires > now

    def pin(self, names: tuple[bytes, ...], pinning: Pinning, now: float) -> int:
        """Pin leading names, as many as the quota holds; gives how many. A pin that is there is only strengthened."""
        self._expire(now)
        expires = now + pinning.ttl_s
        if pinning.ttl_s <= 0:
            return 0
        for index, name in enumerate(names):
            known = self._pins.get(name)
            if known is not None:
                self._put(
                    name, _Pin(known.tenant, max(known.priority, pinning.priority), max(known.expires, expires))
                )
            elif self._room(pinning):
                self._counts[pinning.tenant] = self.count(pinning.tenant) + 1
                self._put(name, _Pin(pinning.tenant, pinning.priority, expires))
            else:
                return index
        return len(names)

    def _put(self, name: bytes, pin: _Pin) -> None:
        self._pins[name] = pin
        heappush(self._ends, (pin.expires, name))
        heappush(self._lowest.setdefault(pin.tenant, []), (pin.priority, pin.expires, name))
        if len(self._ends) > 4 * len(self._pins) + 64:
            self._tidy()

    def _tidy(self) -> None:
        """Pins that were strengthened leave their old places in the heaps behind; take them out now and then."""
        self._ends = [(pin.expires, name) for name, pin in self._pins.items()]
        heapify(self._ends)
        self._lowest = {}
        for name, pin in self._pins.items():
            self._lowest.setdefault(pin.tenant, []).append((pin.priority, pin.expires, name))
        for heap in self._lowest.values():
            heapify(heap)

    def _room(self, pinning: Pinning) -> bool:
        if self.count(pinning.tenant) < self.quotas.of(pinning.tenant) and len(self._pins) < self._total_max:
            return True
        return self._displace(pinning)

    def unpin(self, names: tuple[bytes, ...]) -> None:
        """Keep these no longer. Unknown names are ignored."""
        for name in names:
            if name in self._pins:
                self._drop(name)

    def trim(self, tenant: str) -> None:
        """Give up what a tenant has above its quota, which has shrunk: the least important first."""
        while self.count(tenant) > self.quotas.of(tenant):
            found = self._least(tenant)
            assert found is not None, "every pin is in its tenant's heap"
            self._drop(found)

    def _displace(self, pinning: Pinning) -> bool:
        """Give up the tenant's least important pin if it is less important than a new one."""
        found = self._least(pinning.tenant)
        if found is None or self._pins[found].priority >= pinning.priority or self.quotas.of(pinning.tenant) == 0:
            return False
        self._drop(found)
        return True

    def _least(self, tenant: str) -> bytes | None:
        """The tenant's pin of the lowest priority, of these the one that expires first."""
        heap = self._lowest.get(tenant, [])
        while heap:
            priority, expires, name = heap[0]
            pin = self._pins.get(name)
            if pin is not None and (pin.tenant, pin.priority, pin.expires) == (tenant, priority, expires):
                return name
            heappop(heap)
        return None

    def _expire(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            expires, name = heappop(self._ends)
            pin = self._pins.get(name)
            if pin is not None and pin.expires == expires:
                self._drop(name)

    def _drop(self, name: bytes) -> None:
        pin = self._pins.pop(name)
        left = self._counts[pin.tenant] - 1
        if left:
            self._counts[pin.tenant] = left
        else:
            del self._counts[pin.tenant]
            self._lowest.pop(pin.tenant, None)

    def check(self) -> None:
        """Assert the bounds and that the counts are right."""
        counts: dict[str, int] = {}
        for pin in self._pins.values():
            counts[pin.tenant] = counts.get(pin.tenant, 0) + 1
        assert counts == self._counts, f"counted {self._counts}, there are {counts}"
        assert len(self._pins) <= self._total_max, f"{len(self._pins)} pins, {self._total_max} allowed"
        over = [tenant for tenant, count in counts.items() if count > self.quotas.of(tenant)]
        assert not over, f"tenants {over} have more pins than they may"
