"""One tier: its backend does what its book decides, and watchers and metrics are notified."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from kv_transfer.tiers.backend import Item, Reading, Record, StorageBackend, Wanted
from kv_transfer.tiers.index import Copy, TierIndex
from kv_transfer.tiers.speed import Speed
from tandem.core.messages import TierCost
from tandem.core.metrics import Meter
from tandem.engine.protocol import BlockMemory
from tandem.process.logs import event

_log = logging.getLogger(__name__)

_DAMAGED: Final = ("digest", "forged", "swapped", "torn", "truncated")
"""Misses that say something of one block; others are the disk's, which are logged once."""
OnTierChange = Callable[[str, tuple[bytes, ...], tuple[bytes, ...]], None]


class Tier:
    """A storage backend with its book, and the backend's `kv_transfer.tiers.backend.BackendOwner`. `told` is called
    with every change, in order."""

    def __init__(
        self,
        backend: StorageBackend,
        book: TierIndex,
        speed: Speed,
        block_bytes: int,
        meter: Meter,
        told: OnTierChange,
    ) -> None:
        self.backend = backend
        self.book = book
        self.open = False
        """Whether it takes blocks now."""
        self._speed = speed
        self._block_bytes = block_bytes
        self._meter = meter
        self._told = told
        self._readings = 0
        self._bytes_asked = 0

    @property
    def tier(self) -> str:
        return self.backend.tier

    @property
    def cost(self) -> TierCost:
        """The tier's name and capacity, with the recently measured cost of reading."""
        latency_s, rate = self._speed.line
        return TierCost(self.tier, self.book.blocks, rate, latency_s)

    def expected_s(self, size: int) -> float:
        """Expected seconds to read `size` bytes after the reads already under way."""
        return self._speed.expected_s(size + self._bytes_asked)

    # -- writing --

    async def keep(self, items: Sequence[Item], memory: BlockMemory, staged: Callable[[], None]) -> None:
        """Store the items that the index has room for. Calls `staged` once, when `memory` is no longer needed. Raises
        what the backend raises; items that the backend has not reported are not stored and may be offered again."""
        taken, evicted = [], list[Copy]()
        for item in items:
            room = self.book.reserve(item.name, item.tenant)
            evicted += room.evicted
            if room.refusal is None:
                taken.append(item)
            elif room.refusal != "held":
                self.dropped(room.refusal)
        self._evicted(evicted)
        if not taken:
            staged()
            return
        try:
            self._settle(taken, await self.backend.write(taken, memory, staged))
        except Exception:
            self._unsettled(taken)
            raise

    def reserve(self, name: bytes, tenant: str) -> bool:
        """Reserve room for one block that another component brings. Follow it with `settle` or the book's
        `remove`."""
        room = self.book.reserve(name, tenant)
        self._evicted(room.evicted)
        if room.refusal is not None and room.refusal != "held":
            self.dropped(room.refusal)
        return room.refusal is None

    def settle(self, name: bytes, place: int) -> None:
        """The block that had been reserved is in its place."""
        if self.book.settle(name, place):
            self._meter.add("tandem_tier_bytes_total", float(self._block_bytes), self.tier, "written")
            self._changed((name,), ())
        else:
            self.backend.free(place)

    def _settle(self, items: Sequence[Item], outcomes: Sequence[int | str]) -> None:
        stored = []
        for item, outcome in zip(items, outcomes, strict=True):
            if isinstance(outcome, str):
                self.book.remove(item.name)
                self.dropped(outcome)
            elif self.book.settle(item.name, outcome):
                stored.append(item.name)
            else:
                self.backend.free(outcome)
        self._meter.add("tandem_tier_bytes_total", float(len(stored) * self._block_bytes), self.tier, "written")
        self._changed(tuple(stored), ())

    def _unsettled(self, items: Sequence[Item]) -> None:
        """Free the room of the items that are still on their way, after the backend failed in a way that no backend
        should."""
        names = [item.name for item in items if self.book.knows(item.name) and item.name not in self.book]
        for name in names:
            self.book.remove(name)
        self.dropped("failed", len(names))

    def dropped(self, reason: str, count: int = 1) -> None:
        """Blocks were offered to this tier and not taken."""
        self._meter.add("tandem_tier_dropped_total", float(count), self.tier, reason)

    # -- giving up --

    def forget(self, names: Sequence[bytes], reason: str) -> None:
        """Drop copies; names that are not here are ignored."""
        removed = []
        for name in names:
            if not self.book.knows(name):
                continue
            readable = name in self.book
            copy = self.book.remove(name)
            if copy is not None and copy.place is not None:
                self.backend.free(copy.place)
            if readable:
                removed.append(name)
        self._removed(removed, reason)

    def trim(self, tenant: str) -> None:
        """A tenant's quota has shrunk."""
        self._evicted(self.book.trim(tenant), "quota")

    def _evicted(self, copies: Sequence[Copy], reason: str = "room") -> None:
        for copy in copies:
            assert copy.place is not None, "only what is written is evicted"
            self.backend.free(copy.place)
        self._removed([copy.name for copy in copies], reason)

    def _removed(self, names: Sequence[bytes], reason: str) -> None:
        if names:
            self._meter.add("tandem_tier_removed_total", float(len(names)), self.tier, reason)
            self._changed((), tuple(names))

    def _changed(self, stored: tuple[bytes, ...], removed: tuple[bytes, ...]) -> None:
        if stored or removed:
            self._meter.set("tandem_tier_blocks", float(len(self.book)), self.tier)
            self._told(self.tier, stored, removed)

    # -- reading --

    def read(self, wanted: Sequence[Wanted], memory: BlockMemory) -> Reading:
        """Begin to read; follow it with `read_over`."""
        self._readings += 1
        self._bytes_asked += len(wanted) * self._block_bytes
        return self.backend.read(wanted, memory)

    def read_over(self, reading: Reading, wanted: Sequence[Wanted], brought: int) -> None:
        """Account for a reading that has ended. A reading that had the backend to itself measures the backend's
        speed."""
        self._readings -= 1
        self._bytes_asked -= len(wanted) * self._block_bytes
        self._meter.add("tandem_tier_bytes_total", float(brought * self._block_bytes), self.tier, "read")
        if reading.took_s is not None and brought == len(wanted):
            self._meter.observe("tandem_tier_read_seconds", reading.took_s, self.tier)
            if not self._readings:
                self._speed.observe(brought * self._block_bytes, reading.took_s)

    def release(self, copies: Sequence[Copy]) -> None:
        """Readers are done with these."""
        for copy in copies:
            if self.book.release(copy):
                assert copy.place is not None
                self.backend.free(copy.place)

    def missed(self, name: bytes, reason: str) -> None:
        """A copy could not be read: it is forgotten."""
        self._meter.add("tandem_tier_misses_total", 1.0, self.tier, reason)
        if reason in _DAMAGED:
            event(_log, "tier_block_damaged", level=logging.WARNING, tier=self.tier, block=name.hex(), reason=reason)
        self.forget((name,), reason)

    # -- as the shelf's owner --

    def found(self, records: Sequence[Record]) -> Sequence[bool]:
        kept = [self.book.adopt(record.name, record.tenant, record.place) for record in records]
        self._changed(tuple(record.name for record, kept in zip(records, kept, strict=True) if kept), ())
        return kept

    def lost(self, names: Sequence[bytes], reason: str) -> None:
        removed = [name for name in names if name in self.book]
        for name in removed:
            self.book.remove(name)
        self._removed(removed, reason)

    def moved(self, name: bytes, place: int) -> bool:
        return self.book.move(name, place)

    def worth(self, name: bytes) -> int:
        return self.book.worth(name)

    def usable(self, usable: bool, reason: str) -> None:
        if usable != self.open:
            self.open = usable
            event(_log, "tier_usable" if usable else "tier_off", tier=self.tier, reason=reason)
        self._meter.set("tandem_tier_usable", float(usable), self.tier)
        self._told(self.tier, (), ())

    async def close(self, within_s: float) -> None:
        """Close the tier: nothing is reported any more, and the backend finishes its work in hand."""
        self.open = False
        with suppress(TimeoutError):
            await self.backend.close(within_s)


def report(message: str, error: BaseException) -> None:
    """Report a failure that should never happen to the loop's exception handler, which logs it, or fails a test."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
