"""The DRAM backend: a pool of blocks in shared memory, which threads copy to and from.

A block's bytes are hashed once on their way in and once on their way out, in the pass that copies them, and compared
with the block's content words. Every place keeps the name of its block beside them.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from kv_transfer.tiers.backend import BackendOwner, BlockRead, BlockReadFailed, Item, Wanted
from kv_transfer.tiers.passes import PIECE_BYTES, Passes
from kv_transfer.tiers.runs import runs
from kv_transfer.tiers.slot_writer import SlotWriter, copy_bytes
from kv_transfer.tiers.thread_pool import ThreadPool
from kv_transfer.tiers.threaded_reading import Job, ThreadedReading
from tandem.core.kv import Layout
from tandem.engine.digest import Digester
from tandem.engine.memory import HostMemory
from tandem.engine.protocol import BlockMemory

_INLINE_BYTES: Final = 256 << 10
"""Below this a copy takes less time than handing it to a thread."""
_JOB_BYTES: Final = 16 << 20
_Kept = tuple[bytes, bytes]
"""Content of one place: a block's name and its content words."""
PageLock = Callable[[memoryview], None]
"""Locks the pool's pages for a device: an engine on CUDA registers them (`cudaHostRegister`), so that copies to and
from the device run at full speed beside its computing. Engines on the CPU need none."""


class DramBackend:
    """`kv_transfer.tiers.backend.StorageBackend` in host memory. A place is a slot of `memory`.

    Raises `bad_setting` when the operating system refuses that much memory.
    """

    tier = "dram"

    def __init__(
        self,
        blocks: int,
        layout: Layout,
        threads: int,
        stall_s: float,
        page_lock: PageLock | None = None,
    ) -> None:
        self._pool = HostMemory(layout.block_bytes, blocks)
        if page_lock is not None:
            page_lock(self._pool.buffer)
        self.blocks = blocks
        self.memory: BlockMemory | None = self._pool
        self._passes = Passes(Digester(layout), layout.block_bytes)
        self._together = max(1, PIECE_BYTES // layout.block_bytes)
        """Blocks that are copied in one piece, where they lie one after the other."""
        self._thread_pool = ThreadPool(threads, "tier-dram")
        self._writing = self._thread_pool.lane()
        self._threads = threads
        self._stall_s = stall_s
        self._free = list(reversed(range(blocks)))
        self._kept: list[_Kept] = [(b"", b"")] * blocks
        """The name and content words of the block in each place, by place."""

    def open(self, owner: BackendOwner) -> None:
        owner.usable(True, "")

    async def write(
        self, items: Sequence[Item], memory: BlockMemory, staged: Callable[[], None]
    ) -> Sequence[int | str]:
        # In order, so that neighbours among the items come to lie side by side.
        places = sorted(self._free.pop() for _ in items)
        try:
            if len(items) * self._pool.block_bytes <= _INLINE_BYTES:
                whole = self._copy_in(items, places, memory)
            else:
                whole = await self._writing.submit(lambda: self._copy_in(items, places, memory))
        finally:
            staged()
        return [self._written(item, place, good) for item, place, good in zip(items, places, whole, strict=True)]

    def _copy_in(self, items: Sequence[Item], places: Sequence[int], memory: BlockMemory) -> list[bool]:
        """Copy items into their places. Gives for each place whether its bytes now match the item's words."""
        whole, slots, size = list[bool](), [item.slot for item in items], self._pool.block_bytes
        for start, end in runs(slots, places, self._together):
            first, place, count = slots[start], places[start], end - start
            source = memory.buffer[first * size : (first + count) * size]
            target = self._pool.buffer[place * size : (place + count) * size]
            words = self._copied(count, target, source)
            whole += [found == item.words for item, found in zip(items[start:end], words, strict=True)]
        return whole

    def _copied(self, count: int, target: memoryview, source: memoryview) -> list[bytes]:
        """Copy blocks that lie one after the other on both sides; their content words where they have arrived."""

        def copy(piece: slice) -> memoryview:
            copy_bytes(target[piece], source[piece])
            return target[piece]

        if count == 1:
            return [self._passes.words_while(copy)]
        return self._words_of(copy(slice(0, len(target))), count)

    def _words_of(self, blocks: memoryview, count: int) -> list[bytes]:
        return self._passes.digester.content_words_of(np.frombuffer(blocks, np.uint8).reshape(count, -1))

    def _written(self, item: Item, place: int, whole: bool) -> int | str:
        if not whole:
            self._free.append(place)
            return "digest"
        self._kept[place] = item.name, item.words
        return place

    def read(self, wanted: Sequence[Wanted], memory: BlockMemory) -> ThreadedReading:
        total = len(wanted) * self._pool.block_bytes
        share = max(_INLINE_BYTES, min(_JOB_BYTES, total // (2 * self._threads)))
        size = max(1, share // self._pool.block_bytes)
        batches = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        jobs = [(batch, self._job(batch, memory)) for batch in batches]
        return ThreadedReading(self._thread_pool, jobs, self._stall_s, lambda error: "io_error", lambda number: None)

    def _job(self, wanted: Sequence[Wanted], memory: BlockMemory) -> Job:
        slots, places = [each.slot for each in wanted], [each.place for each in wanted]
        kept = [self._kept[place] for place in places]

        def work(landing: SlotWriter) -> tuple[BlockRead | BlockReadFailed, ...]:
            outcomes = list[BlockRead | BlockReadFailed]()
            for start, end in runs(slots, places, self._together):
                found = self._brought(wanted[start:end], memory, landing)
                for each, what, words in zip(wanted[start:end], kept[start:end], found, strict=True):
                    good = what == (each.name, words)
                    outcomes.append(BlockRead(each.index, words) if good else BlockReadFailed(each.index, "digest"))
            return tuple(outcomes)

        return work

    def _brought(self, wanted: Sequence[Wanted], memory: BlockMemory, landing: SlotWriter) -> list[bytes]:
        """Copy blocks that lie one after the other on both sides; the content words of what has arrived."""
        size, first, count = self._pool.block_bytes, wanted[0], len(wanted)
        source = self._pool.buffer[first.place * size : (first.place + count) * size]
        slots = memory.buffer[first.slot * size : (first.slot + count) * size]
        if count == 1:
            return [self._passes.words_while(lambda piece: landing.bring(slots[piece], source[piece]))]
        return self._words_of(landing.bring(slots, source), count)

    def take(self) -> int:
        """Take a free place for another component to fill. One is free whenever the owner's book has room."""
        return self._free.pop()

    def filled(self, place: int, name: bytes, words: bytes) -> None:
        """The place has the bytes of `words` now."""
        self._kept[place] = name, words

    def words(self, place: int) -> bytes:
        return self._kept[place][1]

    def free(self, place: int) -> None:
        self._free.append(place)

    async def close(self, within_s: float) -> None:
        await self._thread_pool.close(within_s)
        self._pool.close()
