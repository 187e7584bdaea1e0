"""A tier backend without disk or threads, for tests and simulation: bytes in this process, delays on the event loop.

What outlives a worker on a disk outlives it here in a `MemoryDisk`, which also injects faults.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from kv_transfer.tiers.backend import BackendOwner, BlockRead, BlockReadFailed, Item, Record, Wanted
from tandem.engine.digest import Digester
from tandem.engine.private_memory import PrivateMemory
from tandem.engine.protocol import BlockMemory

_BATCH_S = 0.002
"""Approximate duration of one batch in seconds, and so the interval at which arrived blocks are reported."""


class MemoryRecord(msgspec.Struct, gc=False):
    """A block as it lies on a `MemoryDisk`; `data` can be written to."""

    name: bytes
    tenant: str
    words: bytes
    data: bytearray | memoryview


@dataclass
class MemoryDisk:
    """A simulated disk: the records that outlive a worker, and the faults of the disk, each a reason that writes or
    reads fail for now."""

    records: dict[int, MemoryRecord] = field(default_factory=dict)
    write_fails: str | None = None
    read_fails: str | None = None
    slowness: float = 1.0
    """Factor by which every operation takes longer than usual."""

    def copy(self) -> "MemoryDisk":
        """The same blocks on a separate disk, as found by the successor of a killed process. The killed process's
        last writes do not reach this disk."""
        return MemoryDisk(
            {
                place: msgspec.structs.replace(record, data=bytearray(record.data))
                for place, record in self.records.items()
            }
        )

    def damage(self, count: int = 1) -> int:
        """Flip a bit in the `count` oldest records; gives in how many."""
        some = list(self.records.values())[:count]
        for record in some:
            record.data[0] ^= 1
        return len(some)


@dataclass(frozen=True)
class SimulatedSpeed:
    """Speed of a simulated backend."""

    bytes_per_s: float
    latency_s: float

    def seconds(self, size: int) -> float:
        return self.latency_s + size / self.bytes_per_s


class MemoryBackend:
    """`kv_transfer.tiers.backend.StorageBackend`. With `disk` given, places keep their blocks from one run to the
    next."""

    def __init__(
        self, tier: str, blocks: int, digester: Digester, block_bytes: int, pace: SimulatedSpeed, disk: MemoryDisk
    ) -> None:
        self.tier = tier
        self.blocks = blocks
        self.memory: BlockMemory | None = PrivateMemory(block_bytes, blocks) if tier == "dram" else None
        self._digester = digester
        self._block_bytes = block_bytes
        self._pace = pace
        self._disk = disk
        self._free: list[int] = []
        self._owner: BackendOwner | None = None

    @property
    def places_free(self) -> int:
        return len(self._free)

    def open(self, owner: BackendOwner) -> None:
        self._owner = owner
        self._free = [place for place in reversed(range(self.blocks)) if place not in self._disk.records]
        records = [Record(record.name, record.tenant, place) for place, record in self._disk.records.items()]
        for record, kept in zip(records, owner.found(records), strict=True):
            if not kept:
                self.free(record.place)
        owner.usable(True, "")

    async def write(
        self, items: Sequence[Item], memory: BlockMemory, staged: Callable[[], None]
    ) -> Sequence[int | str]:
        data = [bytes(memory.block(item.slot)) for item in items]
        staged()
        await asyncio.sleep(self._seconds(len(items)))
        return [self._put(item, bytes_) for item, bytes_ in zip(items, data, strict=True)]

    def _put(self, item: Item, data: bytes) -> int | str:
        if self._disk.write_fails is not None:
            return self._disk.write_fails
        if not self._free:
            return "disk_full"
        place = self._free.pop()
        self._keep(place, MemoryRecord(item.name, item.tenant, item.words, bytearray(data)))
        return place

    def _keep(self, place: int, record: MemoryRecord) -> None:
        if self.memory is not None:
            self.memory.block(place)[:] = record.data
            record.data = self.memory.block(place)
        self._disk.records[place] = record

    def read(self, wanted: Sequence[Wanted], memory: BlockMemory) -> "MemoryReading":
        return MemoryReading(self, wanted, memory)

    def take(self) -> int:
        """Take a free place in `memory` for another component to fill."""
        return self._free.pop()

    def filled(self, place: int, name: bytes, words: bytes) -> None:
        """The place has the bytes of `words` now."""
        assert self.memory is not None, "only places in memory can be filled"
        self._disk.records[place] = MemoryRecord(name, "", words, self.memory.block(place))

    def words(self, place: int) -> bytes:
        return self._disk.records[place].words

    def free(self, place: int) -> None:
        self._disk.records.pop(place, None)
        self._free.append(place)

    async def close(self, within_s: float) -> None:
        self._owner = None

    def batch(self) -> int:
        """Number of blocks in one batch."""
        one_s = self._block_bytes / self._pace.bytes_per_s
        return max(1, int(_BATCH_S / one_s))

    def _seconds(self, blocks: int) -> float:
        return self._pace.seconds(blocks * self._block_bytes) * self._disk.slowness if blocks else 0.0

    async def bring(
        self, reading: "MemoryReading", wanted: Sequence[Wanted]
    ) -> tuple[BlockRead | BlockReadFailed, ...]:
        """Read one batch after the time that it takes; gives nothing of it when the reading is abandoned
        meanwhile."""
        await asyncio.sleep(self._seconds(len(wanted)))
        return () if reading.over else tuple(self._land(each, reading.memory) for each in wanted)

    def _land(self, wanted: Wanted, memory: BlockMemory) -> BlockRead | BlockReadFailed:
        record = self._disk.records.get(wanted.place)
        if self._disk.read_fails is not None:
            return BlockReadFailed(wanted.index, self._disk.read_fails)
        if record is None or record.name != wanted.name:
            return BlockReadFailed(wanted.index, "swapped")
        slot = memory.block(wanted.slot)
        slot[:] = record.data
        good = self._digester.content_words(slot) == record.words
        return BlockRead(wanted.index, record.words) if good else BlockReadFailed(wanted.index, "digest")


class MemoryReading:
    """`kv_transfer.tiers.backend.Reading`: each batch takes its time when it is asked for."""

    def __init__(self, backend: MemoryBackend, wanted: Sequence[Wanted], memory: BlockMemory) -> None:
        self._backend = backend
        self._wanted = wanted
        self.memory = memory
        self.over = False
        self.took_s: float | None = None

    async def results(self) -> AsyncGenerator[tuple[BlockRead | BlockReadFailed, ...], None]:
        loop = asyncio.get_running_loop()
        busy_s, size = 0.0, self._backend.batch()
        for start in range(0, len(self._wanted), size):
            begun = loop.time()
            batch = await self._backend.bring(self, self._wanted[start : start + size])
            busy_s += loop.time() - begun
            if batch:
                yield batch
        self.took_s = busy_s

    async def abandon(self) -> None:
        self.over = True
