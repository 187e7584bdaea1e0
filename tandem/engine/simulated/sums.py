"""Sums over the content of slots, so that attending to a long context does not read all of it at every step.

A slot's sum counts its first positions, as part of a sequence in which they end at a certain position; that end says
which block of a sequence the slot was and how many positions of it were counted. A sum is used as long as its end is
the one that is asked for and nothing but the engine can have written to the slot; otherwise the slot's bytes are
read.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tandem.engine.simulated.content import Content, Words

Indices = NDArray[np.int64]
_UNKNOWN: Final = -1


class SlotSums:
    """Sums of all slots of one memory, whose bytes are `words` [slots, 2 * block_tokens]."""

    def __init__(self, words: Words, content: Content) -> None:
        self._words = words
        self._content = content
        self._size = words.shape[1] // 2
        self._sums = np.zeros(len(words), dtype=np.uint64)
        self._ends = np.full(len(words), _UNKNOWN, dtype=np.int64)
        self._full = np.arange(1, len(words) + 1, dtype=np.int64) * self._size
        """The positions at which the blocks of any sequence end."""
        self._full_packed = self._full.tobytes()

    def attended(self, tables: list[bytes], positions: list[int]) -> tuple[Words, Words]:
        """For each block table (packed uint32) and its number of positions, which is not 0: E over those positions,
        and the part of E that the last block contributes."""
        size = self._size
        counts = [-(-end // size) for end in positions]
        flat = np.frombuffer(
            b"".join([table[: 4 * count] for table, count in zip(tables, counts, strict=True)]), dtype="<u4"
        )
        lengths = np.array(counts)
        edges = lengths.cumsum()
        starts = edges - lengths
        # Sequences that share blocks may have more of them together than there are.
        full = self._full[: len(flat)] if len(flat) <= len(self._full) else np.arange(1, len(flat) + 1) * size
        ends = full - (starts * size).repeat(lengths)
        ends[edges - 1] = positions
        parts = self._sums[flat]
        (stale,) = (self._ends[flat] != ends).nonzero()
        if len(stale):
            slots, until = flat[stale], ends[stale]
            parts[stale] = read = self._content.block_sums(self._words[slots], until)
            self._sums[slots], self._ends[slots] = read, until
        return np.add.reduceat(parts, starts), parts[edges - 1]

    def attended_one(self, table: bytes, end: int) -> tuple[int, int]:
        """E over the first `end` positions of one block table, and the last block's part of it, at a fraction of a
        batch's overhead."""
        count = -(-end // self._size)
        slots = np.frombuffer(table, dtype="<u4", count=count)
        parts, ends = self._sums[slots], self._ends[slots]
        if ends.tobytes() != self._full_packed[: 8 * count - 8] + end.to_bytes(8, "little"):
            until = self._full[:count].copy()
            until[-1] = end
            stale = np.flatnonzero(ends != until)
            found, until = slots[stale], until[stale]
            parts[stale] = read = self._content.block_sums(self._words[found], until)
            self._sums[found], self._ends[found] = read, until
        return int(np.add.reduce(parts)), int(parts[-1])

    def know_one(self, slot: int, total: int, end: int) -> None:
        """The engine itself has written to this slot, and knows what it sums up to."""
        self._sums[slot], self._ends[slot] = total, end

    def know(self, slots: Indices, sums: Words, ends: Indices) -> None:
        """The engine itself has written to these slots, and knows what they sum up to."""
        self._sums[slots], self._ends[slots] = sums, ends

    def forget(self, slots: int | list[int]) -> None:
        """Forget the sums of slots that were written to, or are about to be: their sums are not known."""
        self._ends[slots] = _UNKNOWN

    def forget_all(self) -> None:
        """Any slot may have been written to."""
        self._ends.fill(_UNKNOWN)

    def copied(self, source: int, target: int) -> None:
        """A slot was copied to another."""
        self._sums[target], self._ends[target] = self._sums[source], self._ends[source]
