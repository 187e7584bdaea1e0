"""Values that the Redis index stores and answers (`kv_transfer.index.redis_scripts` has the layout). Pure."""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from kv_transfer.index.leading import Holders, leading
from kv_transfer.index.protocol import Held
from kv_transfer.index.redis_scripts import ENTRY, ENTRY_BYTES
from tandem.core.messages import Hello

_ENTRY: Final = struct.Struct(ENTRY)
_NUMBER: Final = struct.Struct(">I")


class RedisHolder(NamedTuple):
    """A holder and the number of leading blocks of a prompt that it has according to Redis."""

    hello: Hello
    """The holder's introduction to routers."""
    held: Held


def encoded(hello: Hello) -> bytes:
    """The record of a holder."""
    return msgspec.msgpack.encode(hello)


def read_answer(answer: Sequence[bytes], names: int) -> dict[str, RedisHolder]:
    """The holders in the answer to a look-up of `names` names, by holder id. For a holder that has published under
    two numbers the longer prefix counts. Raises `ValueError` when the answer is torn."""
    if len(answer) % 2 != 1 or len(answer[0]) < _NUMBER.size:
        raise ValueError("the answer has no time or a holder without a record")
    records = [msgspec.msgpack.decode(record, type=Hello) for record in answer[2::2]]
    bits = {_NUMBER.unpack(packed)[0]: 1 << at for at, packed in enumerate(answer[1::2])}
    rows = _rows(answer[0], bits)
    if len(rows) > names:
        raise ValueError(f"{names} names were asked for and {len(rows)} answered")
    found: dict[str, RedisHolder] = {}
    for number, held in leading(rows, (1 << len(records)) - 1).items():
        hello = records[number]
        known = found.get(hello.worker_id)
        if known is None or held.total > known.held.total:
            found[hello.worker_id] = RedisHolder(hello, held._replace(known_by="redis"))
    return found


def _rows(packed: bytes, bits: dict[int, int]) -> list[Holders]:
    """Holders of each name, by tier, without entries that have expired. Neighbours mostly have the same entries."""
    now = _NUMBER.unpack_from(packed)[0]
    rows: list[Holders] = []
    known: dict[bytes, Holders] = {}
    at = _NUMBER.size
    while at < len(packed):
        end = at + 1 + ENTRY_BYTES * packed[at]
        entries = packed[at + 1 : end]
        row = known.get(entries)
        if row is None:
            row = known[entries] = _holders(entries, now, bits)
        rows.append(row)
        at = end
    if at > len(packed):
        raise ValueError("the entries of a name are torn")
    return rows


def _holders(entries: bytes, now: int, bits: dict[int, int]) -> Holders:
    if len(entries) % ENTRY_BYTES:
        raise ValueError("the entries of a name are torn")
    hbm = dram = nvme = 0
    for number, tiers, expires in _ENTRY.iter_unpack(entries):
        bit = bits.get(number, 0) if expires > now else 0
        hbm |= bit * (tiers & 1)
        dram |= bit * (tiers >> 1 & 1)
        nvme |= bit * (tiers >> 2 & 1)
    return hbm, dram, nvme
