"""Scan of what an earlier run left in a directory of segments: from the newest to the oldest, reading heads only."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Final

import msgspec

from kv_transfer.tiers.disk import Disk, reason_of
from kv_transfer.tiers.mac import Seals
from kv_transfer.tiers.record import ALIGN, RecordHead, Unreadable, decode_segment
from kv_transfer.tiers.segment_io import Segment, SegmentIo
from kv_transfer.tiers.thread_pool import Lane

_NAME: Final = re.compile(r"([0-9a-f]{16})\.kv")
_HEADS_PER_JOB: Final = 256
_JOBS_AT_ONCE: Final = 4


def file_name(number: int) -> str:
    """The file of a segment."""
    return f"{number:016x}.kv"


class FoundSegment(msgspec.Struct, frozen=True):
    """A readable segment with its records by number; what cannot be read is there with its reason."""

    number: int
    segment: Segment
    records: tuple[RecordHead | str, ...]


class Stray(msgspec.Struct, frozen=True):
    """A segment file that cannot be used, and why. It occupies its room until that room is needed."""

    number: int
    name: str
    reason: str


Found = FoundSegment | Stray


async def scan(disk: Disk, io: SegmentIo, seals: Seals, lane: Lane) -> AsyncGenerator[tuple[Found, float], None]:
    """Yield every segment file, the newest first, with the share of files examined so far. Raises `OSError` when the
    directory cannot be read; a file that cannot be read is a stray."""
    numbers = _numbers(await lane.submit(disk.names))
    for seen, number in enumerate(numbers, 1):
        yield await _look_at(disk, io, seals, lane, number), seen / len(numbers)


def _numbers(names: Sequence[str]) -> list[int]:
    """Numbers of the segment files among `names`; other files are left alone."""
    return sorted((int(match[1], 16) for name in names if (match := _NAME.fullmatch(name))), reverse=True)


async def _look_at(disk: Disk, io: SegmentIo, seals: Seals, lane: Lane, number: int) -> Found:
    name = file_name(number)
    segment: Segment | None = None
    try:
        segment = await lane.submit(lambda: _open(disk, io, seals, number))
        return FoundSegment(number, segment, await _records(io, segment, lane))
    except Unreadable as problem:
        return Stray(number, name, problem.reason)
    except OSError as error:
        if segment is not None:
            await lane.submit(segment.file.close)
        return Stray(number, name, reason_of(error))


def _open(disk: Disk, io: SegmentIo, seals: Seals, number: int) -> Segment:
    """Open the file of a segment and check its head, on a thread. Raises `Unreadable`, `OSError`."""
    name = file_name(number)
    file = disk.open(name)
    try:
        with io.page() as page:
            got = file.read(page, 0)
            head = decode_segment(bytes(page[: min(got, ALIGN)]), io.shape, seals)
        if head.number != number:
            raise Unreadable("swapped")
    except BaseException:
        file.close()
        raise
    return Segment(head, file, name)


async def _records(io: SegmentIo, segment: Segment, lane: Lane) -> tuple[RecordHead | str, ...]:
    """Heads up to the end of the file, or up to a stretch where nothing was ever written."""
    found, ended = list[RecordHead | str](), False
    while len(found) < segment.head.records and not ended:
        futures = [
            lane.submit(partial(io.heads, segment, first, min(_HEADS_PER_JOB, segment.head.records - first)))
            for first in range(len(found), segment.head.records, _HEADS_PER_JOB)[:_JOBS_AT_ONCE]
        ]
        for heads in await asyncio.gather(*futures):
            ended = ended or len(heads) < _HEADS_PER_JOB or all(head == "empty" for head in heads)
            found += heads
    while found and found[-1] == "empty":
        found.pop()
    return tuple(found)
