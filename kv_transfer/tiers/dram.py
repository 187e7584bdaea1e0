"""The DRAM shelf: a pool of blocks in shared memory, copied to and from by threads.

A block's bytes are compared with its content words as they are copied in, and with the checksum of that pass whenever
they are copied out (`kv_transfer.tiers.proof`). Without such a checksum, and for blocks that others have put into
their places, the content words are compared on the way out.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from kv_transfer.tiers.crew import Crew
from kv_transfer.tiers.crew_reading import CrewReading, Job
from kv_transfer.tiers.landing import Landing, copy_bytes
from kv_transfer.tiers.passes import PIECE_BYTES, Passes
from kv_transfer.tiers.proof import Prove
from kv_transfer.tiers.runs import runs
from kv_transfer.tiers.shelf import Brought, Failed, Item, ShelfOwner, Wanted
from tandem.core.kv import Layout
from tandem.engine.digest import Digester
from tandem.engine.memory import HostMemory
from tandem.engine.protocol import BlockMemory

_INLINE_BYTES: Final = 256 << 10
"""Below this a copy takes less time than handing it to a thread."""
_JOB_BYTES: Final = 16 << 20
_DAMAGED: Final = b""
"""Instead of the proof of a block that is not what its content words say."""
_Kept = tuple[bytes, bytes | None]
"""What is known of a block: its content words, and its proof if there is one."""
PageLock = Callable[[memoryview], None]
"""Locks the pool's pages for a device: an engine on CUDA registers them (`cudaHostRegister`), so that copies to and
from the device run at full speed beside its computing. Engines on the CPU need none."""


class DramShelf:
    """`kv_transfer.tiers.shelf.Shelf` in host memory. A place is a slot of `memory`.

    Raises `bad_setting` when the operating system refuses that much memory.
    """

    tier = "dram"

    def __init__(
        self,
        blocks: int,
        layout: Layout,
        threads: int,
        stall_s: float,
        prove: Prove | None = None,
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
        self._crew = Crew(threads, "tier-dram")
        self._writing = self._crew.lane()
        self._threads = threads
        self._stall_s = stall_s
        self._free = list(reversed(range(blocks)))
        self._words: list[bytes] = [b""] * blocks
        self._prove = prove
        self._proofs: list[bytes | None] = [None] * blocks
        """By place: what the bytes must have, None where the content words are all there is."""

    def open(self, owner: ShelfOwner) -> None:
        owner.usable(True, "")

    async def write(
        self, items: Sequence[Item], memory: BlockMemory, staged: Callable[[], None]
    ) -> Sequence[int | str]:
        # In order, so that neighbours among the items come to lie side by side.
        places = sorted(self._free.pop() for _ in items)
        try:
            if len(items) * self._pool.block_bytes <= _INLINE_BYTES:
                proofs = self._copy_in(items, places, memory)
            else:
                proofs = await self._writing.submit(lambda: self._copy_in(items, places, memory))
        finally:
            staged()
        return [self._written(item, place, proof) for item, place, proof in zip(items, places, proofs, strict=True)]

    def _copy_in(self, items: Sequence[Item], places: Sequence[int], memory: BlockMemory) -> list[bytes | None]:
        """By place: the proof of what is there now, `_DAMAGED` when it is not what the item says."""
        proofs, slots = list[bytes | None](), [item.slot for item in items]
        for start, end in runs(slots, places, self._together if self._prove is not None else 1):
            if end - start == 1:
                source, target = memory.block(slots[start]), self._pool.block(places[start])
                proofs.append(self._copied(items[start], source, target))
            else:
                proofs += self._copied_run(items[start:end], places[start], memory)
        return proofs

    def _copied_run(self, items: Sequence[Item], place: int, memory: BlockMemory) -> list[bytes | None]:
        """The same for small blocks that lie one after the other on both sides."""
        assert self._prove is not None
        size, slot = self._pool.block_bytes, items[0].slot
        copied = self._pool.buffer[place * size : (place + len(items)) * size]
        copy_bytes(copied, memory.buffer[slot * size : (slot + len(items)) * size])
        words = self._passes.digester.content_words_of(np.frombuffer(copied, np.uint8).reshape(len(items), size))
        return [
            self._prove.whole(item.name, copied[start : start + size]) if found == item.words else _DAMAGED
            for item, found, start in zip(items, words, range(0, len(copied), size), strict=True)
        ]

    def _copied(self, item: Item, source: memoryview, target: memoryview) -> bytes | None:
        if self._prove is None:
            copy_bytes(target, source)
            return None
        proof = self._prove(item.name)

        def copy(piece: slice) -> memoryview:
            copied = target[piece]
            copy_bytes(copied, source[piece])
            proof.update(copied)
            return copied

        return proof.digest() if self._passes.words_while(copy) == item.words else _DAMAGED

    def _written(self, item: Item, place: int, proof: bytes | None) -> int | str:
        if proof == _DAMAGED:
            self._free.append(place)
            return "digest"
        self._words[place], self._proofs[place] = item.words, proof
        return place

    def read(self, wanted: Sequence[Wanted], memory: BlockMemory) -> CrewReading:
        total = len(wanted) * self._pool.block_bytes
        share = max(_INLINE_BYTES, min(_JOB_BYTES, total // (2 * self._threads)))
        size = max(1, share // self._pool.block_bytes)
        batches = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        jobs = [(batch, self._job(batch, memory)) for batch in batches]
        return CrewReading(self._crew, jobs, self._stall_s, lambda error: "io_error", lambda number: None)

    def _job(self, wanted: Sequence[Wanted], memory: BlockMemory) -> Job:
        slots, places = [each.slot for each in wanted], [each.place for each in wanted]
        kept = [(self._words[place], self._proofs[place]) for place in places]

        def work(landing: Landing) -> tuple[Brought | Failed, ...]:
            outcomes = list[Brought | Failed]()
            for start, end in runs(slots, places, self._together):
                run = self._run(wanted[start:end], kept[start:end], memory, landing)
                for each, (words, _), good in zip(wanted[start:end], kept[start:end], run, strict=True):
                    outcomes.append(Brought(each.index, words) if good else Failed(each.index, "digest"))
            return tuple(outcomes)

        return work

    def _run(
        self, wanted: Sequence[Wanted], kept: Sequence[_Kept], memory: BlockMemory, landing: Landing
    ) -> Sequence[bool]:
        """Copy blocks that lie one after the other on both sides; for each whether what has arrived is what was
        kept."""
        size, first = self._pool.block_bytes, wanted[0]
        if self._together == 1:
            source, slot = self._pool.block(first.place), memory.block(first.slot)
            return (self._bring(first.name, source, slot, landing, *kept[0]),)
        source = self._pool.buffer[first.place * size : (first.place + len(wanted)) * size]
        slots = memory.buffer[first.slot * size : (first.slot + len(wanted)) * size]
        landing.bring(slots, source)
        return [
            self._is(each.name, slots[start : start + size], *what)
            for each, what, start in zip(wanted, kept, range(0, len(slots), size), strict=True)
        ]

    def _is(self, name: bytes, block: memoryview, words: bytes, kept: bytes | None) -> bool:
        if kept is None or self._prove is None:
            return self._passes.digester.content_words(block) == words
        return self._prove.whole(name, block) == kept

    def _bring(
        self, name: bytes, source: memoryview, slot: memoryview, landing: Landing, words: bytes, kept: bytes | None
    ) -> bool:
        """Copy a block piece by piece; whether what has arrived is what was kept."""
        if kept is None or self._prove is None:
            return self._passes.words_while(lambda piece: landing.bring(slot[piece], source[piece])) == words
        proof = self._prove(name)
        for piece in self._passes.pieces:
            proof.update(landing.bring(slot[piece], source[piece]))
        return proof.digest() == kept

    def take(self) -> int:
        """A place that somebody else fills. There is one when the owner's book has room."""
        return self._free.pop()

    def filled(self, place: int, name: bytes, words: bytes) -> None:
        """The place has the bytes of `words` now."""
        self._words[place], self._proofs[place] = words, None

    def words(self, place: int) -> bytes:
        return self._words[place]

    def free(self, place: int) -> None:
        self._free.append(place)

    async def close(self, within_s: float) -> None:
        await self._crew.close(within_s)
        self._pool.close()
