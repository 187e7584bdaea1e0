"""A hash table from block names to rows, in memory that grows without the table ever being built anew.

Buckets of 8 slots; a name lies in one of two, the second when the first is crowded. One word per bucket holds a tag
byte per slot (0: free), so that a search reads a row only where the tag agrees; beside it are the numbers of the
rows. Grown by linear hashing (Litwin 1980): the bucket count rises bucket by bucket, each split moving slots of one
old bucket to one new one, so no operation pays for the whole table. A name that finds both buckets full moves a
neighbour to that one's other bucket; when that fails, too, it is found by a dictionary.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kv_transfer.index.compact_arena import Arena, Ids, Words
from kv_transfer.index.compact_bytes import (
    SLOTS,
    filled,
    first_slot_of,
    first_slots,
    in_slot,
    masks,
    without_first,
    zero_bytes,
    zero_bytes_of,
)
from kv_transfer.index.compact_hash import BUCKET_BITS, Mixer
from kv_transfer.index.compact_rows import KEY_WORDS, Rows
from tandem.core.kv import NAME_BYTES

_FIRST_BUCKETS: Final = 64
_LOAD_MAX: Final = 0.6
_CROWDED: Final = 2
"""Free slots above which a name's first bucket is taken as it is, so that most searches end there."""
_SPLIT_AT_ONCE: Final = 256
_BUCKET_MASK: Final = (1 << BUCKET_BITS) - 1
_EVERY: Final = 0x0101010101010101

_U8, _U255, _U_EVERY = np.uint64(8), np.uint64(255), np.uint64(_EVERY)
_FIRST_SHIFT: Final = np.uint64(64 - BUCKET_BITS)
_U_BUCKET_MASK: Final = np.uint64(_BUCKET_MASK)


class NameTable:
    """Owns where names are found; what the words after a name in its row mean is the index's business."""

    def __init__(self, mixer: Mixer, holder_words: int) -> None:
        self._mixer = mixer
        self._level = _FIRST_BUCKETS
        self._split = 0
        # One bucket more: a search without a match looks behind its bucket.
        self._tags = Arena(np.uint64, 1, _FIRST_BUCKETS + 1)
        self._slots = Arena(np.uint32, SLOTS, _FIRST_BUCKETS + 1)
        self._spilled: dict[bytes, int] = {}
        self.rows = Rows(holder_words)
        self.used = 0
        """Names in the table."""

    # ---- many names ----

    def find(self, names: Words) -> Ids:
        """The row of each of `names[n, 2]`, -1 for those that are not here."""
        return self._look_up(names, self._mix(names))[1]

    def holders(self, names: Words) -> tuple[Ids, Words]:
        """Rows as `find` gives them, and the words after the name of each, zero where it is not here."""
        _, rows, found = self._look_up(names, self._mix(names))
        absent = rows < 0
        if absent.any():
            found[absent] = 0
        return rows, found[:, KEY_WORDS:]

    def put(self, names: Words) -> Ids:
        """The row of each of `names[n, 2]`, a free one for those that were not here. Names may repeat."""
        self._make_room(len(names))
        mixed = self._mix(names)
        rows = self._look_up(names, mixed)[1]
        missing = np.flatnonzero(rows < 0)
        if missing.size:
            rows[missing] = self._insert(names[missing], mixed[missing])
        return rows

    def erase(self, rows: Ids) -> None:
        """Forget the names in these rows, each given once, whose holders are gone."""
        names = self.rows.array[rows, :KEY_WORDS]
        slots = self._look_up(names, self._mix(names))[0]
        for at in np.flatnonzero(slots < 0).tolist():
            del self._spilled[names[at].tobytes()]
        slots = slots[slots >= 0]
        np.bitwise_and.at(self._tags.array[:, 0], slots >> 3, ~in_slot(np.full(slots.size, _U255), slots))
        self.rows.release(rows)
        self.used -= rows.size

    def _mix(self, names: Words) -> Words:
        return self._mixer.many(names[:, 0], names[:, 1])

    def _look_up(self, names: Words, mixed: Words) -> tuple[Ids, Ids, Words]:
        """For each name its slot, -1 when it is spilled or not here; its row, -1 when it is not here; and the row's
        words, arbitrary when it is not here.

        Reads, for each name, the row where the first tag agrees. Few names are missed by that and could yet be found:
        those whose tag equals a neighbour's.
        """
        tags, array = self._tags.array[:, 0], self.rows.array
        numbers = self._slots.array.reshape(-1)
        first, second, pattern = self._first(mixed), self._second(mixed), _tag(mixed) * _U_EVERY
        in_first = zero_bytes(np.take(tags, first.view(np.int64)) ^ pattern)
        in_second = zero_bytes(np.take(tags, second.view(np.int64)) ^ pattern)
        chosen = in_first != 0
        matches = np.where(chosen, in_first, in_second)
        slots = first_slots(np.where(chosen, first, second), matches)
        rows: Ids = np.take(numbers, slots).astype(np.int64)
        found = np.take(array, rows, axis=0)
        same = _same(found, names)
        same &= matches != 0
        if not same.all():
            slots[~same] = rows[~same] = -1
            again = np.flatnonzero(matches != 0)
            again = again[slots[again] < 0]
            for bucket, marks in ((first, in_first), (second, in_second)):
                self._search(names, bucket, marks, again[slots[again] < 0], slots)
            again = again[slots[again] >= 0]
            rows[again] = numbers[slots[again]]
            if self._spilled:
                for at in np.flatnonzero(slots < 0).tolist():
                    rows[at] = self._spilled.get(names[at].tobytes(), -1)
            late = np.flatnonzero(~same & (rows >= 0))
            found[late] = array[rows[late]]
        return slots, rows, found

    def _search(self, names: Words, bucket: Words, marks: Words, at: Ids, slots: Ids) -> None:
        """Try all marked slots of one bucket for the names `at`; those that are found get their `slots`."""
        array, numbers = self.rows.array, self._slots.array.reshape(-1)
        marks = marks.copy()
        at = at[marks[at] != 0]
        while at.size:
            candidates = first_slots(bucket[at], marks[at])
            same = _same(array[numbers[candidates]], names[at])
            slots[at[same]] = candidates[same]
            at = at[~same]
            marks[at] = without_first(marks[at])
            at = at[marks[at] != 0]

    def _insert(self, names: Words, mixed: Words) -> Ids:
        """Rows for names that are not here. Each round gives a slot to one of those that want the same."""
        rows = self.rows.allocate(len(names))
        self.rows.array[rows, :KEY_WORDS] = names
        own = rows.copy()
        tags, numbers = self._tags.array[:, 0], self._slots.array.reshape(-1)
        pending = np.arange(len(names))
        while pending.size:
            bucket, free = self._roomier(tags, mixed[pending])
            full = free == 0
            if full.any():
                for at in pending[full].tolist():
                    rows[at] = self._squeeze_in(names[at], int(mixed[at]), int(own[at]))
                pending = pending[~full]
                continue  # Others may have moved to where these were to go.
            slots = first_slots(bucket, free)
            numbers[slots] = own[pending]
            won = numbers[slots] == own[pending]
            winners, slots = pending[won], slots[won]
            tags[slots >> 3] |= in_slot(_tag(mixed[winners]), slots)
            self.used += slots.size
            pending = pending[~won]
            if pending.size:
                known = self._look_up(names[pending], mixed[pending])[1]
                rows[pending] = np.where(known < 0, own[pending], known)
                pending = pending[known < 0]
        unused = own[rows != own]
        if unused.size:
            self.rows.release(unused)
        return rows

    def _roomier(self, tags: Words, mixed: Words) -> tuple[Words, Words]:
        """For each name the bucket in which to put it, and the free slots of that bucket."""
        first, second = self._first(mixed), self._second(mixed)
        free_first = zero_bytes(np.take(tags, first.view(np.int64)))
        free_second = zero_bytes(np.take(tags, second.view(np.int64)))
        left = np.bitwise_count(free_first)
        other = (left <= _CROWDED) & (np.bitwise_count(free_second) > left)
        return np.where(other, second, first), np.where(other, free_second, free_first)

    def _first(self, mixed: Words) -> Words:
        return self._bucket(mixed >> _FIRST_SHIFT)

    def _second(self, mixed: Words) -> Words:
        return self._bucket((mixed >> _U8) & _U_BUCKET_MASK)

    def _bucket(self, drawn: Words) -> Words:
        """Linear hashing: by one bit more, where that bucket exists already."""
        level = self._level
        bucket = drawn & np.uint64(2 * level - 1)
        bucket -= (bucket >= level + self._split) * np.uint64(level)
        return bucket

    # ---- one name ----

    def find_one(self, name: bytes) -> int:
        """The row of a name, or -1."""
        low, high = _words_of(name)
        return self._find_one(name, low, high, self._mixer.one(low, high))[1]

    def put_one(self, name: bytes) -> int:
        """The row of a name, a free one if it was not here."""
        self._make_room(1)
        low, high = _words_of(name)
        mixed = self._mixer.one(low, high)
        row = self._find_one(name, low, high, mixed)[1]
        if row >= 0:
            return row
        row = self.rows.allocate_one()
        at = row * self.rows.width
        self.rows.flat[at], self.rows.flat[at + 1] = low, high
        first, second = self._buckets_of(mixed)
        tags = self._tags.flat
        free, other = zero_bytes_of(tags[first]), zero_bytes_of(tags[second])
        if free.bit_count() <= _CROWDED and other.bit_count() > free.bit_count():
            first, free = second, other
        if not free:
            return self._squeeze_in(np.frombuffer(name, dtype=np.uint64), mixed, row)
        self._take(first_slot_of(first, free), row, mixed)
        self.used += 1
        return row

    def erase_one(self, row: int) -> None:
        """Forget the name in a row whose holders are gone."""
        self.erase(np.array((row,), dtype=np.int64))

    def _find_one(self, name: bytes, low: int, high: int, mixed: int) -> tuple[int, int]:
        """Slot and row, -1 for none."""
        tags, numbers, flat, width = self._tags.flat, self._slots.flat, self.rows.flat, self.rows.width
        pattern = (mixed & 255 or 1) * _EVERY
        for bucket in self._buckets_of(mixed):
            marks = zero_bytes_of(tags[bucket] ^ pattern)
            while marks:
                slot = first_slot_of(bucket, marks)
                row = numbers[slot]
                at = row * width
                if flat[at] == low and flat[at + 1] == high:
                    return slot, row
                marks &= marks - 1
        return -1, self._spilled.get(name, -1) if self._spilled else -1

    def _buckets_of(self, mixed: int) -> tuple[int, int]:
        level, count = self._level, self._level + self._split
        first, second = mixed >> (64 - BUCKET_BITS) & (2 * level - 1), mixed >> 8 & _BUCKET_MASK & (2 * level - 1)
        return first if first < count else first - level, second if second < count else second - level

    def _take(self, slot: int, row: int, mixed: int) -> None:
        self._tags.flat[slot >> 3] |= (mixed & 255 or 1) << ((slot & 7) << 3)
        self._slots.flat[slot] = row

    # ---- full buckets ----

    def _squeeze_in(self, name: Words, mixed: int, row: int) -> int:
        """Give `row` to a name whose buckets are both full: in the slot of a neighbour that can move to its own other
        bucket, else by the dictionary. The name's row, another one if it has got that meanwhile."""
        key = name.tobytes()
        known = self._find_one(key, int(name[0]), int(name[1]), mixed)[1]
        if known >= 0:
            return known
        self.used += 1
        for bucket in self._buckets_of(mixed):
            slot = self._vacate(bucket)
            if slot >= 0:
                self._take(slot, row, mixed)
                return row
        self._spilled[key] = row
        return row

    def _vacate(self, bucket: int) -> int:
        """Move a name of a full bucket to its other bucket; the slot it left, or -1."""
        rows = self._slots.array[bucket].astype(np.int64)
        mixed = self._mix(self.rows.array[rows, :KEY_WORDS])
        first, second = self._first(mixed), self._second(mixed)
        other = np.where(first == bucket, second, first)
        free = zero_bytes(self._tags.array[other, 0])
        movable = np.flatnonzero((free != 0) & (other != bucket))
        if not movable.size:
            return -1
        place = int(movable[0])
        self._take(first_slot_of(int(other[place]), int(free[place])), int(rows[place]), int(mixed[place]))
        self._tags.flat[bucket] &= ~(255 << (place << 3))
        return SLOTS * bucket + place

    # ---- growth ----

    def _make_room(self, names: int) -> None:
        """Split buckets until so many more names fit in."""
        wanted = -(-int((self.used + names) / _LOAD_MAX) // SLOTS)
        if wanted <= self._level + self._split:
            return
        assert wanted <= _BUCKET_MASK, "the index of blocks is full"
        self._tags.reserve(wanted + 1)
        self._slots.reserve(wanted + 1)
        while self._level + self._split < wanted:
            self._split_some(min(_SPLIT_AT_ONCE, wanted - self._level - self._split, self._level - self._split))

    def _split_some(self, buckets: int) -> None:
        """Split the next so many buckets: each name in them stays, or moves to the same slot of a new bucket."""
        old, new = self._split, self._split + self._level
        self._split += buckets
        tags, numbers = self._tags.array[:, 0], self._slots.array
        before, rows = tags[old : old + buckets], numbers[old : old + buckets]
        mixed = self._mix(np.take(self.rows.array, rows.reshape(-1).astype(np.int64), axis=0))
        own = np.repeat(np.arange(old, old + buckets, dtype=np.uint64), SLOTS)
        moves = ((self._first(mixed) != own) & (self._second(mixed) != own)).reshape(buckets, SLOTS)
        moving = masks(moves & filled(before))
        numbers[new : new + buckets] = rows
        tags[new : new + buckets] = before & moving
        tags[old : old + buckets] = before & ~moving
        if self._split == self._level:
            self._level, self._split = 2 * self._level, 0


def packed_words(packed: bytes) -> Words:
    """Packed names as `[n, 2]` words."""
    return np.frombuffer(packed, dtype=np.uint64).reshape(-1, NAME_BYTES // 8)


def _words_of(name: bytes) -> tuple[int, int]:
    low, high = memoryview(name).cast("Q")
    return low, high


def _tag(mixed: Words) -> Words:
    tag = mixed & _U255
    tag += tag == 0
    return tag


def _same(rows: Words, names: Words) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = rows[:, 0] == names[:, 0]
    same &= rows[:, 1] == names[:, 1]
    return same
