"""Bookkeeping for a log of segments: which records are where, and which segment makes room next. Decisions only, no
I/O.

A place is one number: the segment's in the upper bits, the record's in the lower 32. Segment numbers only grow.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1


def place_of(segment: int, index: int) -> int:
    return segment << _INDEX_BITS | index


def segment_of(place: int) -> int:
    return place >> _INDEX_BITS


def index_of(place: int) -> int:
    return place & _INDEX_MASK


@dataclass
class _Segment:
    records: int
    names: list[bytes | None] = field(default_factory=list)
    """Names by record number; None for records that are no longer wanted."""
    live: int = 0
    pending: int = 0
    """Records that are being written."""


class SegmentLog:
    """Segments in the order of their numbers; records are appended to the last.

    There are at most `segments_max` at a time, and that many only while one is being emptied into another.
    """

    def __init__(self, segments_max: int) -> None:
        assert segments_max >= 3
        self.segments_max = segments_max
        self._segments: dict[int, _Segment] = {}
        self._open: int | None = None
        self._next = 0

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def full(self) -> bool:
        """Whether the next record needs a new segment."""
        return self._open is None or len(self._open_segment.names) >= self._open_segment.records

    @property
    def crowded(self) -> bool:
        """Whether a segment has to go for a new one."""
        return len(self._segments) >= self.segments_max - 1

    @property
    def _open_segment(self) -> _Segment:
        assert self._open is not None
        return self._segments[self._open]

    def put(self, place: int, name: bytes) -> None:
        """A record of an adopted segment is wanted."""
        segment = self._segments[segment_of(place)]
        assert segment.names[index_of(place)] is None
        segment.names[index_of(place)] = name
        segment.live += 1

    def next_number(self) -> int:
        """The smallest number the next segment can have."""
        return self._next

    def begin(self, number: int, records: int) -> None:
        """A new segment is there, and open."""
        assert number >= self._next
        assert len(self._segments) < self.segments_max
        self._segments[number] = _Segment(records)
        self._open, self._next = number, number + 1

    def adopt(self, number: int, records: int) -> None:
        """A segment of an earlier run, of whose records none is wanted yet. It is not written to any more."""
        assert number not in self._segments
        self._segments[number] = _Segment(records, [None] * records)
        self._segments = dict(sorted(self._segments.items()))
        self._next = max(self._next, number + 1)

    def append(self, name: bytes) -> int:
        """The place of a new record, which is being written until `written`."""
        assert not self.full
        segment = self._open_segment
        segment.names.append(name)
        segment.live += 1
        segment.pending += 1
        assert self._open is not None
        return place_of(self._open, len(segment.names) - 1)

    def written(self, place: int) -> None:
        """The record is written, or will not be."""
        segment = self._segments.get(segment_of(place))
        if segment is not None:
            segment.pending -= 1

    def free(self, place: int) -> None:
        """The record is wanted no more. Places of segments that are gone are ignored."""
        segment = self._segments.get(segment_of(place))
        if segment is not None and segment.names[index_of(place)] is not None:
            segment.names[index_of(place)] = None
            segment.live -= 1

    def oldest(self) -> int | None:
        """The segment to give up next: the oldest that is not being written to. Empty ones come first."""
        settled = [
            (number, segment)
            for number, segment in self._segments.items()
            if number != self._open and not segment.pending
        ]
        empty = next((number for number, segment in settled if not segment.live), None)
        return empty if empty is not None else next((number for number, _ in settled), None)

    def filled(self, number: int) -> bool:
        """Whether every record of the segment was written."""
        segment = self._segments[number]
        return len(segment.names) == segment.records

    def live(self, number: int) -> Iterator[tuple[int, bytes]]:
        """(record number, name) of what is wanted of a segment, in order."""
        names = self._segments[number].names
        return ((index, name) for index, name in enumerate(names) if name is not None)

    def drop(self, number: int) -> None:
        """The segment is gone."""
        del self._segments[number]
        if self._open == number:
            self._open = None

    def names(self) -> tuple[bytes, ...]:
        """Everything that is wanted."""
        return tuple(name for number in self._segments for _, name in self.live(number))

    def check(self) -> None:
        """Assert the counts and the bound."""
        assert len(self._segments) <= self.segments_max
        assert list(self._segments) == sorted(self._segments)
        for number, segment in self._segments.items():
            assert segment.live == sum(name is not None for name in segment.names)
            assert len(segment.names) <= segment.records
            assert number < self._next
