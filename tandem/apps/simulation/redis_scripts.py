"""The scripts of the Redis index, in Python: each after its Lua original in `kv_transfer.index.redis_scripts`.

Those stay the truth: `tests/contract/test_redis_connection.py` gives both the same commands and compares all answers.
`now` is in milliseconds. Pure.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kv_transfer.index.protocol import TIERS
from kv_transfer.index.redis_scripts import (
    CHANGE,
    ENTRIES_MAX,
    ENTRY,
    ENTRY_BYTES,
    HOLDERS,
    HOLDERS_MAX,
    ID_BYTES_MAX,
    LOOK_UP,
    RECORD_BYTES_MAX,
    RECORDS_MAX,
    REGISTER,
    RELEASE,
    RENEW,
    SWEEP,
)
from tandem.apps.simulation.redis_data import RedisData
from tandem.core.kv import NAME_BYTES

_ENTRY: Final = struct.Struct(ENTRY)
_NUMBER: Final = struct.Struct(">I")
_BUCKET_BYTES: Final = 2

Arguments = Sequence[bytes]
Script = Callable[[RedisData, int, Arguments], object]
Entry = tuple[int, int, int]
"""Holder number, a bit per tier, time of expiry in seconds."""
Reported = dict[str, dict[bytes, None]]
"""Names by tier."""


def _register(data: RedisData, now: int, arguments: Arguments) -> int:
    prefix, record, lease_ms, holder, first = arguments
    latest, ends = prefix + b"i" + holder, now + int(lease_ms)
    before = data.record(latest, now) if first == b"1" else None
    if before is not None:
        key = prefix + b"h%d" % _NUMBER.unpack_from(before)[0]
        if data.record(key, now) == before[_NUMBER.size :]:
            del data.records[key]
    data.scores.setdefault(prefix + b"z", {})[holder] = now // 1000 * 1000 + int(lease_ms)
    number = data.numbers[prefix + b"n"] = data.numbers.get(prefix + b"n", 0) + 1
    data.records[prefix + b"h%d" % number] = record, ends
    data.records[latest] = _NUMBER.pack(number) + record, ends
    return number


def _release(data: RedisData, now: int, arguments: Arguments) -> int:
    prefix, number, record, holder = arguments
    key = prefix + b"h" + number
    if data.record(key, now) != record:
        return 0
    data.scores.get(prefix + b"z", {}).pop(holder, None)
    del data.records[key]
    return 1


def _renew(data: RedisData, now: int, arguments: Arguments) -> int:
    prefix, number, record, lease_ms, holder = arguments
    key = prefix + b"h" + number
    if data.record(key, now) != record:
        return 0
    data.scores.setdefault(prefix + b"z", {})[holder] = now // 1000 * 1000 + int(lease_ms)
    latest, ends = prefix + b"i" + holder, now + int(lease_ms)
    known = data.record(latest, now)
    if known is not None:
        data.records[latest] = known, ends
    data.records[key] = record, ends
    return 1


def _holders(data: RedisData, now: int, arguments: Arguments) -> list[bytes]:
    (prefix,) = arguments
    second = now // 1000 * 1000
    scores = data.scores[prefix + b"z"] = {
        holder: score for holder, score in data.scores.get(prefix + b"z", {}).items() if score > second
    }
    first = sorted(scores, key=lambda holder: (scores[holder], holder))[:HOLDERS_MAX]
    return [holder for holder in first if len(holder) <= ID_BYTES_MAX]


def _change(data: RedisData, now: int, arguments: Arguments) -> int:
    prefix, number, place, ttl, names, flag, most, record = arguments
    if data.record(prefix + b"h" + number, now) != record:
        return -1
    second, storing = now // 1000, flag == b"1"

    def lives(entry: Entry) -> bool:
        return data.record(prefix + b"h%d" % entry[0], now) is not None

    change = _Change(int(number), 1 << int(place), second, second + int(ttl), storing, int(most), lives)
    for name in _names(names):
        key, rest = _place(prefix, name)
        bucket = data.bucket(key, now)
        value = bucket.fields.get(rest) if bucket is not None else None
        left, displaced = change.of(value or b"")
        if displaced is not None:
            data.displaced.setdefault(data.records[prefix + b"h%d" % displaced][0], set()).add(name)
        if left:
            if left != value:
                data.put(key, rest, left, now)
        elif value is not None:
            data.cut(key, rest)
        bucket = data.bucket(key, now)
        if storing and bucket is not None:
            bucket.expires = max(bucket.expires or 0, now + 1000 * int(ttl))
    return len(names) // NAME_BYTES


@dataclass(frozen=True)
class _Change:
    """A holder gains or loses names in a tier (a bit)."""

    number: int
    tier: int
    second: int
    expires: int
    storing: bool
    most: int
    lives: Callable[[Entry], bool]

    def of(self, value: bytes) -> tuple[bytes, int | None]:
        """The entries of a name after the change: unexpired entries of other holders, then the holder's own. The
        second value is the number of a living holder whose entry had to give way, or None."""
        kept, tiers, displaced = list[Entry](), 0, None
        for number, held, expires in _ENTRY.iter_unpack(value):
            if expires <= self.second:
                continue
            if number == self.number:
                tiers = held
            else:
                kept.append((number, held, expires))
        tiers = tiers | self.tier if self.storing else tiers & ~self.tier
        if tiers:
            if len(kept) >= self.most:
                # Without the holders that are gone, or else without the entry that would expire first.
                living = [entry for entry in kept if self.lives(entry)]
                if len(living) == len(kept):
                    displaced = living.pop(min(range(len(living)), key=lambda at: living[at][2]))[0]
                kept = living
            kept.append((self.number, tiers, self.expires))
        return b"".join(_ENTRY.pack(*entry) for entry in kept), displaced


def _look_up(data: RedisData, now: int, arguments: Arguments) -> list[bytes]:
    prefix, names = arguments
    rows, numbers = list[bytes](), dict[int, None]()
    for name in _names(names):
        key, rest = _place(prefix, name)
        bucket = data.bucket(key, now)
        value = bucket.fields.get(rest) if bucket is not None else None
        if value is None or len(value) > ENTRIES_MAX * ENTRY_BYTES:
            break
        rows.append(bytes((len(value) // ENTRY_BYTES,)) + value)
        numbers.update((number, None) for number, _, _ in _ENTRY.iter_unpack(value))
    answer = [_NUMBER.pack(now // 1000) + b"".join(rows)]
    for number in numbers:
        record = data.record(prefix + b"h%d" % number, now)
        if record is not None and len(record) <= RECORD_BYTES_MAX and len(answer) < 2 * RECORDS_MAX:
            answer += [_NUMBER.pack(number), record]
    return answer


def _sweep(data: RedisData, now: int, arguments: Arguments) -> int:
    prefix, first, last = arguments
    removed, second = 0, now // 1000
    for key in _buckets(data, prefix, int(first), int(last)):
        bucket = data.bucket(key, now)
        for rest, value in list(bucket.fields.items()) if bucket is not None else ():
            kept = b"".join(_ENTRY.pack(*entry) for entry in _ENTRY.iter_unpack(value) if entry[2] > second)
            if not kept:
                data.cut(key, rest)
                removed += 1
            elif len(kept) < len(value):
                data.put(key, rest, kept, now)
    return removed


def _buckets(data: RedisData, prefix: bytes, first: int, last: int) -> list[bytes]:
    """The keys of the buckets there are in a range."""
    keys = (prefix + b"b" + struct.pack(">H", number) for number in range(first, last + 1))
    return [key for key in keys if key in data.buckets]


def _names(packed: bytes) -> list[bytes]:
    return [packed[at : at + NAME_BYTES] for at in range(0, len(packed), NAME_BYTES)]


def _place(prefix: bytes, name: bytes) -> tuple[bytes, bytes]:
    """The bucket and the field of a name."""
    return prefix + b"b" + name[:_BUCKET_BYTES], name[_BUCKET_BYTES:]


SCRIPTS: Final[Mapping[str, Script]] = MappingProxyType(
    {
        REGISTER: _register,
        RELEASE: _release,
        RENEW: _renew,
        HOLDERS: _holders,
        CHANGE: _change,
        LOOK_UP: _look_up,
        SWEEP: _sweep,
    }
)
"""Every script of the index."""


def reported_by(data: RedisData, prefix: bytes, now: int) -> dict[bytes, Reported]:
    """The names by tier that the node would report for every living record."""
    told: dict[bytes, Reported] = {}
    living = {
        int(key[len(prefix) + 1 :]): told.setdefault(value, {tier: {} for tier in TIERS})
        for key, (value, expires) in data.records.items()
        if expires > now and key.startswith(prefix + b"h")
    }
    for key in list(data.buckets):
        bucket = data.bucket(key, now)
        if bucket is None or not key.startswith(prefix + b"b"):
            continue
        for rest, value in bucket.fields.items():
            for number, tiers, expires in _ENTRY.iter_unpack(value):
                if number in living and expires > now // 1000:
                    for bit, tier in enumerate(TIERS):
                        if tiers >> bit & 1:
                            living[number][tier][key[len(prefix) + 1 :] + rest] = None
    return told
