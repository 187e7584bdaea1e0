"""Reads and writes runs of records of one segment, on a thread, through a buffer that the job owns meanwhile.

A read ends in the buffer. Bytes are copied on from there while the job has the right to, so that a disk that does not
answer never holds a slot. The content words of a block are compared with its bytes when it is written; from then on
the seal vouches for both. The disk has a set number of reads and of writes in hand. A job that waits for its turn to
write has already sealed its data, and other jobs check what they have read.
"""

import hmac
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import msgspec
import numpy as np

from kv_transfer.tiers.backend import BlockRead, BlockReadFailed, Item, Wanted
from kv_transfer.tiers.disk import DiskFile, aligned_buffer
from kv_transfer.tiers.passes import PIECE_BYTES, Passes
from kv_transfer.tiers.record import (
    ALIGN,
    RecordHead,
    SegmentHead,
    Shape,
    Unreadable,
    decode_record,
    encode_record,
)
from kv_transfer.tiers.runs import runs
from kv_transfer.tiers.slot_writer import SlotWriter, copy_bytes
from tandem.engine.digest import Digester
from tandem.engine.protocol import BlockMemory

_RECORDS_MAX: Final = 512
"""Two pieces each, of which the operating system takes 1,024 at a time."""
_IN_PLACE_BYTES: Final = 64 << 10
"""Smaller blocks are put together: many small pieces cost the disk more than a copy."""


class Scratch:
    """Buffers of `size` bytes, made when all others are in use. The one that was used last is the next to be used:
    its pages are there, and some of it may still be in a cache."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._idle: list[memoryview] = []

    @contextmanager
    def buffer(self, size: int) -> Iterator[memoryview]:
        """Lend the first `size` bytes of a buffer that no other job uses meanwhile."""
        try:
            whole = self._idle.pop()
        except IndexError:
            whole = aligned_buffer(self.size)
        try:
            yield whole[:size]
        finally:
            self._idle.append(whole)


class Segment(msgspec.Struct):
    """An open segment file. `users` counts the jobs that use it; the file is closed only after the last of them."""

    head: SegmentHead
    file: DiskFile
    name: str
    users: int = 0
    retired: bool = False


class SegmentIo:
    """The operations that threads run on segments of one shape."""

    def __init__(self, shape: Shape, digester: Digester, batch_bytes: int, reads: int, writes: int) -> None:
        self.shape = shape
        self._stride = shape.stride
        self._reads = threading.BoundedSemaphore(reads)
        self._writes = threading.BoundedSemaphore(writes)
        self.batch = min(max(1, batch_bytes // shape.block_bytes), _RECORDS_MAX)
        """Number of records in one read or write: as many as there are blocks in one batch that is handed over."""
        self._passes = Passes(digester, shape.block_bytes)
        self._together = max(1, PIECE_BYTES // shape.block_bytes)
        """Blocks that are copied in one piece, where they lie one after the other."""
        self._scratch = Scratch(self.batch * self._stride)

    def write(self, segment: Segment, first: int, items: Sequence[Item], memory: BlockMemory) -> list[int]:
        """Write `items` as records `first`, `first + 1`, …. One whose bytes are not what its words say is left out:
        its place stays empty. Gives the numbers of these."""
        with self._buffer(len(items)) as buffer:
            pieces, damaged = self._records(segment, first, items, memory, buffer)
            with self._writes:
                segment.file.write(pieces, self.shape.offset(first))
        return damaged

    def _records(
        self, segment: Segment, first: int, items: Sequence[Item], memory: BlockMemory, buffer: memoryview
    ) -> tuple[list[memoryview], list[int]]:
        """The pieces that make up the records, and the numbers of damaged items."""
        damaged, in_place = list[int](), self._in_place(memory.block(items[0].slot))
        pieces = list[memoryview]() if in_place else [buffer]
        for number, (item, tag) in enumerate(
            zip(items, self._tags(segment, items, memory, buffer, in_place), strict=True)
        ):
            page = self._record(buffer, number, len(buffer))[:ALIGN]
            if tag is None:
                damaged.append(number)
                page[:] = bytes(ALIGN)
            else:
                head = RecordHead(item.name, item.tenant, item.words, tag)
                page[:] = encode_record(head, segment.head, first + number)
            if in_place:
                pieces += (page, memory.block(item.slot))
        return pieces, damaged

    def _tags(
        self, segment: Segment, items: Sequence[Item], memory: BlockMemory, buffer: memoryview, in_place: bool
    ) -> list[bytes | None]:
        """The tag of each body, which is in its record then unless it is written from where it is."""
        tags, slots = list[bytes | None](), [item.slot for item in items]
        for start, end in runs(slots, range(len(items)), self._together):
            if end - start == 1:
                source = memory.block(slots[start])
                body = source if in_place else self._padded(self._record(buffer, start, len(buffer)))
                tags.append(self._seal(segment, items[start], source, body))
            else:
                tags += self._seal_run(segment, items[start:end], start, memory, None if in_place else buffer)
        return tags

    def _seal_run(
        self, segment: Segment, items: Sequence[Item], start: int, memory: BlockMemory, buffer: memoryview | None
    ) -> list[bytes | None]:
        """Seal small adjacent blocks as `_seal` does. They go into the records from `start` on, or stay where they
        are."""
        size, slot, count = self.shape.block_bytes, items[0].slot, len(items)
        blocks = np.frombuffer(memory.buffer[slot * size : (slot + count) * size], np.uint8).reshape(count, size)
        if buffer is None:
            sealed, bodies = blocks, [memory.block(item.slot) for item in items]
        else:
            numbers = range(start, start + count)
            bodies = [self._padded(self._record(buffer, number, len(buffer))) for number in numbers]
            records = np.frombuffer(buffer[start * self._stride : (start + count) * self._stride], np.uint8)
            sealed = records.reshape(count, self._stride)[:, ALIGN : ALIGN + size]
            np.copyto(sealed, blocks)
        tags = list[bytes | None]()
        for item, found, body in zip(items, self._passes.digester.content_words_of(sealed), bodies, strict=True):
            hasher = segment.head.seal.body()
            hasher.update(body)
            tags.append(hasher.digest() if found == item.words else None)
        return tags

    def _in_place(self, block: memoryview) -> bool:
        """Whether a disk can write blocks from where they are. Bytes can change meanwhile only if a disk does not
        answer; they then differ from their tag, which makes them a miss when they are read."""
        size = self.shape.block_bytes
        return (
            size >= _IN_PLACE_BYTES and size % ALIGN == 0 and np.frombuffer(block, np.uint8).ctypes.data % ALIGN == 0
        )

    def _padded(self, record: memoryview) -> memoryview:
        """The part of `record` for its body; the rest of the body's last page is cleared."""
        body = self._body(record)
        if padding := len(record) - ALIGN - len(body):
            record[-padding:] = bytes(padding)
        return body

    def _seal(self, segment: Segment, item: Item, source: memoryview, body: memoryview) -> bytes | None:
        """Copy a block to `body` unless it is there. Gives its tag, or None when the bytes are not those of its
        words."""
        hasher = segment.head.seal.body()

        def seal(piece: slice) -> memoryview:
            sealed = body[piece]
            if body is not source:
                copy_bytes(sealed, source[piece])
            hasher.update(sealed)
            return sealed

        return hasher.digest() if self._passes.words_while(seal) == item.words else None

    def read(
        self, segment: Segment, first: int, wanted: Sequence[Wanted], memory: BlockMemory, landing: SlotWriter
    ) -> tuple[BlockRead | BlockReadFailed, ...]:
        """Read records `first`, `first + 1`, … into slots, each if it is what its name says."""
        with self._buffer(len(wanted)) as buffer:
            with self._reads:
                got = segment.file.read(buffer, self.shape.offset(first))
            return tuple(
                self._land(segment, first + number, each, self._record(buffer, number, got), memory, landing)
                for number, each in enumerate(wanted)
            )

    def _land(
        self,
        segment: Segment,
        index: int,
        wanted: Wanted,
        record: memoryview,
        memory: BlockMemory,
        landing: SlotWriter,
    ) -> BlockRead | BlockReadFailed:
        """Copy a record's body to its slot, which is not in use until the body proves to match its head."""
        try:
            head = self._head(segment, index, wanted.name, record)
        except Unreadable as problem:
            return BlockReadFailed(wanted.index, problem.reason)
        body, slot, hasher = self._body(record), memory.block(wanted.slot), segment.head.seal.body()
        for piece in self._passes.pieces:
            hasher.update(body[piece])
            landing.bring(slot[piece], body[piece])
        good = hmac.compare_digest(hasher.digest(), head.body_tag)
        return BlockRead(wanted.index, head.words) if good else BlockReadFailed(wanted.index, "torn")

    def _head(self, segment: Segment, index: int, name: bytes, record: memoryview) -> RecordHead:
        """The genuine head of a whole record. Raises `Unreadable`."""
        if len(record) < self._stride:
            raise Unreadable("truncated")
        head = decode_record(record[:ALIGN], segment.head, index)
        if head.name != name:
            raise Unreadable("swapped")
        return head

    def move(self, source: Segment, first: int, target: Segment, new_first: int, count: int) -> list[int]:
        """Write `count` records anew, side by side as they are. The tags of their bodies go with them: damage is
        found where they are read. Gives the numbers of those that cannot be read: their new places stay empty."""
        lost = list[int]()
        with self._buffer(count) as buffer:
            got = source.file.read(buffer, self.shape.offset(first))
            for number in range(count):
                page = buffer[number * self._stride : number * self._stride + ALIGN]
                try:
                    if got < (number + 1) * self._stride:
                        raise Unreadable("truncated")
                    head = decode_record(page, source.head, first + number)
                    page[:] = encode_record(head, target.head, new_first + number)
                except Unreadable:
                    page[:] = bytes(ALIGN)
                    lost.append(number)
            target.file.write((buffer,), self.shape.offset(new_first))
        return lost

    def heads(self, segment: Segment, first: int, count: int) -> tuple[RecordHead | str, ...]:
        """The heads of `count` records, or why one cannot be read. Ends early where the file does."""
        found = list[RecordHead | str]()
        with self.page() as page:
            for index in range(first, first + count):
                if segment.file.read(page, self.shape.offset(index)) < ALIGN:
                    break
                found.append(_found(page, segment.head, index))
        return tuple(found)

    def page(self) -> AbstractContextManager[memoryview]:
        """Room for a header page."""
        return self._scratch.buffer(ALIGN)

    def _buffer(self, records: int) -> AbstractContextManager[memoryview]:
        assert records <= self.batch
        return self._scratch.buffer(records * self._stride)

    def _record(self, buffer: memoryview, number: int, got: int) -> memoryview:
        start = number * self._stride
        return buffer[start : min(start + self._stride, max(start, got))]

    def _body(self, record: memoryview) -> memoryview:
        return record[ALIGN : ALIGN + self.shape.block_bytes]


def _found(page: memoryview, head: SegmentHead, index: int) -> RecordHead | str:
    """A record's head, or why there is none. What the segment before has left in the file was never written here."""
    try:
        return decode_record(page, head, index)
    except Unreadable as problem:
        reason = problem.reason
    try:
        decode_record(page, head.left, index)
    except Unreadable:
        return reason
    return "empty"
