"""Layout of a segment file: a header page, then records of equal size, each a header page and a block's bytes.

Everything is little-endian and starts at a multiple of `ALIGN`, as direct I/O requires. A record's head is sealed
together with the segment's id and the record's number, so that a record is only believed where it was written. A file
is written again for another segment: what the previous segment left there is under another id.
"""

import struct
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

import msgspec

from kv_transfer.tiers.mac import TAG_BYTES, Data, Seal, Seals
from tandem.core.kv import NAME_BYTES, Layout

ALIGN: Final = 4096
_SEGMENT_MAGIC: Final = b"TANDEMKV"
_RECORD_MAGIC: Final = b"TdKv"
_VERSION: Final = 1
_SEGMENT_VERSION: Final = 2
_SEGMENT: Final = struct.Struct("<8sHxxI16s16sQ32sQII16s16s")
_RECORD: Final = struct.Struct("<4sHHI16s32s")
_PLACE: Final = struct.Struct("<16sI")


class Unreadable(Exception):
    """A segment or record is not what it should be. `reason` is a metric label."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def aligned(size: int) -> int:
    """`size` rounded up to whole pages."""
    return -(-size // ALIGN) * ALIGN


@dataclass(frozen=True)
class Shape:
    """The blocks of a segment: their size, and what else makes them exchangeable."""

    block_bytes: int
    identity: bytes
    """32 bytes over root name and layout: other models' and other layouts' segments have another."""

    @property
    def stride(self) -> int:
        """Bytes from the beginning of one record to the next."""
        return ALIGN + aligned(self.block_bytes)

    def records(self, segment_bytes: int) -> int:
        """Number of records in a segment of `segment_bytes`."""
        return (segment_bytes - ALIGN) // self.stride

    def offset(self, index: int) -> int:
        """Offset in bytes at which record `index` begins."""
        return ALIGN + index * self.stride


def shape_of(layout: Layout, root: bytes) -> Shape:
    """The shape of blocks of one model (by its root name for the empty salt) in one layout."""
    text = msgspec.json.encode(layout)
    return Shape(layout.block_bytes, blake2b(root + text, digest_size=32, person=b"tandem-tier-blk").digest())


@dataclass(frozen=True)
class SegmentHead:
    """The first page of a segment. `segment_id` is drawn anew for every segment."""

    segment_id: bytes
    number: int
    records: int
    seal: Seal
    before: bytes = bytes(16)
    """The id of the segment whose file this was: what it has left there is not taken for a forgery."""

    @property
    def left(self) -> "SegmentHead":
        """The head under which the records that the previous segment left in this file are sealed."""
        return replace(self, segment_id=self.before)


def encode_segment(head: SegmentHead, shape: Shape) -> bytes:
    """The header page."""
    names = (head.seal.key_id.encode(), head.seal.algorithm.encode())
    assert all(len(name) <= 16 for name in names), f"{names} do not fit"
    fixed = (_SEGMENT_MAGIC, _SEGMENT_VERSION, head.records, head.segment_id, head.before, head.number)
    body = _SEGMENT.pack(*fixed, shape.identity, shape.block_bytes, ALIGN, 0, *names)
    return (body + head.seal.head(body)).ljust(ALIGN, b"\0")


def decode_segment(page: bytes, shape: Shape, seals: Seals) -> SegmentHead:
    """Raises `Unreadable`: `damaged`, `other_version`, `other_key`, `forged`, `foreign`."""
    if len(page) < ALIGN:
        raise Unreadable("damaged")
    magic, version, records, segment_id, before, number, identity, size, align, _, key_id, algorithm = (
        _SEGMENT.unpack_from(page)
    )
    if magic != _SEGMENT_MAGIC:
        raise Unreadable("damaged")
    if version != _SEGMENT_VERSION or align != ALIGN:
        raise Unreadable("other_version")
    seal = seals.find(*(text.rstrip(b"\0").decode("ascii", "replace") for text in (key_id, algorithm)))
    if seal is None:
        raise Unreadable("other_key")
    body, tag = page[: _SEGMENT.size], page[_SEGMENT.size : _SEGMENT.size + TAG_BYTES]
    if seal.head(body) != tag:
        raise Unreadable("forged")
    if identity != shape.identity or size != shape.block_bytes:
        raise Unreadable("foreign")
    return SegmentHead(segment_id, number, records, seal, before)


class RecordHead(msgspec.Struct, frozen=True, gc=False):
    """The first page of a record. What it has in common with the others of its segment is in the segment's head."""

    name: bytes
    tenant: str
    words: bytes
    body_tag: bytes


def fits(tenant: str, words: bytes) -> bool:
    """Whether a head with these has room in its page."""
    return _RECORD.size + len(tenant.encode()) + len(words) + TAG_BYTES <= ALIGN


def encode_record(record: RecordHead, segment: SegmentHead, index: int) -> bytes:
    """The header page of record `index` of a segment."""
    tenant = record.tenant.encode()
    fixed = _RECORD.pack(_RECORD_MAGIC, _VERSION, len(tenant), len(record.words), record.name, record.body_tag)
    body = fixed + tenant + record.words
    return (body + segment.seal.head(_PLACE.pack(segment.segment_id, index) + body)).ljust(ALIGN, b"\0")


def decode_record(page: Data, segment: SegmentHead, index: int) -> RecordHead:
    """Decode the header page of record `index`. Raises `Unreadable`: `empty` (never written), `torn` (not a whole
    header), `forged` (written by another writer, for another place, or changed since)."""
    if len(page) < ALIGN:
        raise Unreadable("torn")
    magic, version, tenant_bytes, words_bytes, name, body_tag = _RECORD.unpack_from(page)
    if magic != _RECORD_MAGIC:
        raise Unreadable("empty" if magic == bytes(4) else "torn")
    end = _RECORD.size + tenant_bytes + words_bytes
    if version != _VERSION or end + TAG_BYTES > ALIGN:
        raise Unreadable("torn")
    body = bytes(page[:end])
    if segment.seal.head(_PLACE.pack(segment.segment_id, index) + body) != bytes(page[end : end + TAG_BYTES]):
        raise Unreadable("forged")
    tenant, words = body[_RECORD.size : end - words_bytes], body[end - words_bytes :]
    assert len(name) == NAME_BYTES
    return RecordHead(name, tenant.decode(), words, body_tag)
