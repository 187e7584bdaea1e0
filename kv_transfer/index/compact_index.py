"""`BlockIndex` for fleets with millions of blocks: numpy arrays of about 50 bytes per block.

Events are kept as they come, packed, and applied many at a time: numpy's fixed cost is that of some dozen events.
A look-up first applies what is there, a few events one by one. A dropped worker's bit means nothing at once; its
entries are cleared slice by slice.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kv_transfer.index.compact_arena import Ids, Words
from kv_transfer.index.compact_bits import GROUP, HolderBits, column_of
from kv_transfer.index.compact_hash import Mixer
from kv_transfer.index.compact_holders import leading_of
from kv_transfer.index.compact_rows import KEY_WORDS
from kv_transfer.index.compact_runs import holders_by_runs, leading_runs
from kv_transfer.index.compact_table import NameTable, packed_words
from kv_transfer.index.leading import Holders, leading
from kv_transfer.index.protocol import TIERS, Held
from tandem.core.kv import NAME_BYTES, packed_names

_BATCH: Final = 1024
"""Events that are applied at once; less than a millisecond."""
_SINGLY: Final = 32
"""Up to so many events, or names to look up, are cheaper one by one than as arrays."""
_SWEPT: Final = 8192
"""Rows that are cleared of dropped workers at once."""
_STORED: Final = 1
_ROW_WORDS: Final = KEY_WORDS + len(TIERS)
_NOTHING: Final = np.empty(0, dtype=np.int64), np.empty((0, len(TIERS)), dtype=np.uint64)


class CompactIndex:
    """Exact and synchronous. `key` is 128 random bits that keep names from being chosen to collide."""

    def __init__(self, key: int) -> None:
        self._table = NameTable(Mixer(key), len(TIERS))
        self._bits = HolderBits()
        self._codes: list[int] = []
        self._counts: list[int] = []
        self._pieces: list[bytes] = []
        self._pending = 0
        self._sweeping = 0
        self._swept = 0

    def __len__(self) -> int:
        """Number of names that have a holder, those of dropped workers included until they are cleared."""
        self._settle()
        return self._table.used

    # ---- events ----

    def stored(self, worker: str, names: Sequence[bytes], tier: str = "hbm") -> None:
        self.change(worker, packed_names(names), b"", tier)

    def removed(self, worker: str, names: Sequence[bytes], tier: str = "hbm") -> None:
        self.change(worker, b"", packed_names(names), tier)

    def change(self, worker: str, stored: bytes, removed: bytes, tier: str = "hbm") -> None:
        if tier not in TIERS or not (stored or worker in self._bits):
            return
        code = column_of(self._bits.number(worker), tier) << 1
        if stored:
            self._keep(code | _STORED, stored)
        if removed:
            self._keep(code, removed)

    def replace(self, worker: str, names: Sequence[bytes]) -> None:
        self.drop(worker)
        self.stored(worker, names)

    def drop(self, worker: str) -> None:
        if worker in self._bits:
            self._settle()
            self._bits.drop(worker)

    def _keep(self, code: int, packed: bytes) -> None:
        assert len(packed) % NAME_BYTES == 0, "a block name has 16 bytes"
        for start in range(0, len(packed), _BATCH * NAME_BYTES):
            piece = packed[start : start + _BATCH * NAME_BYTES]
            count = len(piece) // NAME_BYTES
            if self._pending + count > _BATCH:
                self._settle()
            self._codes.append(code)
            self._counts.append(count)
            self._pieces.append(piece)
            self._pending += count

    def _settle(self) -> None:
        """Apply what has come."""
        if not self._pending:
            return
        codes, counts, pieces = self._codes, self._counts, self._pieces
        many = self._pending > _SINGLY
        self._codes, self._counts, self._pieces, self._pending = [], [], [], 0
        while len(self._table.rows.extensions) < self._bits.groups - 1:
            self._table.rows.extend()
        if many:
            self._apply_many(np.repeat(np.array(codes), counts), packed_words(b"".join(pieces)))
            self.tend()
        else:
            for code, piece in zip(codes, pieces, strict=True):
                for start in range(0, len(piece), NAME_BYTES):
                    self._apply_one(code, piece[start : start + NAME_BYTES])

    def _apply_many(self, codes: Ids, names: Words) -> None:
        stores = (codes & _STORED) == 1
        if stores.all():
            rows = self._table.put(names)
        elif not stores.any():
            rows = self._table.find(names)
        else:
            rows = np.empty(len(names), dtype=np.int64)
            rows[stores] = self._table.put(names[stores])
            rows[~stores] = self._table.find(names[~stores])
            last = _last_of_each(rows, codes >> 1)
            rows, codes = rows[last], codes[last]
        known = rows >= 0
        if not known.all():
            rows, codes = rows[known], codes[known]
        self._set_bits(rows, codes)

    def _set_bits(self, rows: Ids, codes: Ids) -> None:
        """Set and clear bits of rows; no bit is both set and cleared."""
        masks = np.uint64(1) << (codes >> 1 & GROUP - 1).astype(np.uint64)
        stores = (codes & _STORED) == 1
        words = codes >> 7
        for word in np.unique(words).tolist():
            column = self._column(word)
            chosen = words == word
            storing, removing = chosen & stores, chosen & ~stores
            np.bitwise_or.at(column, rows[storing], masks[storing])
            np.bitwise_and.at(column, rows[removing], ~masks[removing])
        if not stores.all():
            self._erase_empty(np.unique(rows[~stores]))

    def _apply_one(self, code: int, name: bytes) -> None:
        table, word, mask = self._table, code >> 7, 1 << (code >> 1 & GROUP - 1)
        row = table.put_one(name) if code & _STORED else table.find_one(name)
        if row < 0:
            return
        group, tier = divmod(word, len(TIERS))
        if group == 0:
            flat, at = table.rows.flat, row * _ROW_WORDS + KEY_WORDS + tier
        else:
            flat, at = table.rows.extensions[group - 1].flat, row * len(TIERS) + tier
        if code & _STORED:
            flat[at] |= mask
        else:
            flat[at] &= ~mask
            if not any(self._holders_at(row)):
                table.erase_one(row)

    def _column(self, word: int) -> Words:
        """The bit sets of one tier and group of holders, by row."""
        group, tier = divmod(word, len(TIERS))
        if group == 0:
            return self._table.rows.array[:, KEY_WORDS + tier]
        return self._table.rows.extensions[group - 1].array[:, tier]

    def _erase_empty(self, rows: Ids) -> None:
        held = np.bitwise_or.reduce(self._table.rows.array[rows, KEY_WORDS:], axis=1)
        for extension in self._table.rows.extensions:
            held |= np.bitwise_or.reduce(extension.array[rows], axis=1)
        empty = rows[held == 0]
        if empty.size:
            self._table.erase(empty)

    # ---- look-up ----

    def longest(self, names: Sequence[bytes]) -> dict[str, Held]:
        self._settle()
        if len(names) > _SINGLY:
            found = self._leading_many(packed_names(names))
        else:
            found = leading((self._by_tier(name) for name in names), self._bits.live)
        return {self._bits.holder(number): held for number, held in found.items()}

    def _leading_many(self, packed: bytes) -> dict[int, Held]:
        """Leading names of each holder, by bit number. Runs give them as far as there are any; names after the runs
        are looked up, up to where no holder has any."""
        runs = leading_runs(self._table, packed)
        rest = packed[runs.names * NAME_BYTES :]
        bound = 0 if runs.ended else self._bound(rest)
        if not (runs.rows or bound):
            return {}
        rows, behind = holders_by_runs(self._table, packed_words(rest[: bound * NAME_BYTES])) if bound else _NOTHING
        found: dict[int, Held] = {}
        for group in range(self._bits.groups):
            live = self._bits.live >> group * GROUP & (1 << GROUP) - 1
            if live:
                parts = [self._holders_in(group, run) for run in runs.rows]
                if bound:
                    parts.append(behind if group == 0 else self._extended(group, rows))
                held = leading_of(parts[0] if len(parts) == 1 else np.concatenate(parts), live)
                found.update({group * GROUP + number: each for number, each in held.items()})
        return found

    def _bound(self, packed: bytes) -> int:
        """How many names need to be looked at: up to the first probed name that no live holder has."""
        at, count = 0, len(packed) // NAME_BYTES
        while at < count:
            hbm, dram, nvme = self._by_tier(packed[at * NAME_BYTES : (at + 1) * NAME_BYTES])
            if not (hbm | dram | nvme) & self._bits.live:
                return at
            at = 4 * at + _SINGLY - 1
        return count

    def _holders_in(self, group: int, rows: slice) -> Words:
        """The holders of a group in neighbouring rows, by tier; not a copy."""
        if group == 0:
            return self._table.rows.array[rows, KEY_WORDS:]
        return self._table.rows.extensions[group - 1].array[rows]

    def _extended(self, group: int, rows: Ids) -> Words:
        """The holders of a further group, by tier."""
        holders: Words = np.take(self._table.rows.extensions[group - 1].array, np.maximum(rows, 0), axis=0)
        holders[rows < 0] = 0
        return holders

    def _by_tier(self, name: bytes) -> Holders:
        row = self._table.find_one(name)
        return (0, 0, 0) if row < 0 else self._holders_at(row)

    def _holders_at(self, row: int) -> Holders:
        rows, at = self._table.rows, row * _ROW_WORDS + KEY_WORDS
        hbm, dram, nvme = rows.flat[at : at + len(TIERS)]
        for group, extension in enumerate(rows.extensions, start=1):
            more = extension.flat[row * len(TIERS) : (row + 1) * len(TIERS)]
            hbm |= more[0] << group * GROUP
            dram |= more[1] << group * GROUP
            nvme |= more[2] << group * GROUP
        return hbm, dram, nvme

    # ---- dropped workers ----

    def tend(self) -> bool:
        if not self._sweeping:
            if not self._bits.dropped:
                return False
            self._settle()
            self._sweeping, self._swept = self._bits.dropped, 0
        last = min(self._swept + _SWEPT, self._table.rows.top)
        self._sweep(self._swept, last)
        self._swept = last
        if last == self._table.rows.top:
            self._bits.cleared(self._sweeping)
            self._sweeping = 0
        return bool(self._sweeping or self._bits.dropped)

    def _sweep(self, first: int, last: int) -> None:
        """Clear dropped workers' bits in a range of rows, and forget names that no other worker has. Rows do not
        move, and new names have no dropped bits."""
        rows = self._table.rows
        holders = [rows.array[first:last, KEY_WORDS:], *(each.array[first:last] for each in rows.extensions)]
        before, after = np.zeros((2, last - first), dtype=np.uint64)
        for group, words in enumerate(holders):
            before |= np.bitwise_or.reduce(words, axis=1)
            words &= np.uint64(~(self._sweeping >> group * GROUP) & (1 << GROUP) - 1)
            after |= np.bitwise_or.reduce(words, axis=1)
        emptied = np.flatnonzero((before != 0) & (after == 0))
        if emptied.size:
            self._table.erase(emptied + first)


def _last_of_each(rows: Ids, columns: Ids) -> Ids:
    """Positions of the last change of each bit, the one that counts."""
    order = np.lexsort((columns, rows))
    ends = np.ones(len(order), dtype=np.bool_)
    ends[:-1] = (rows[order[1:]] != rows[order[:-1]]) | (columns[order[1:]] != columns[order[:-1]])
    return order[ends]
