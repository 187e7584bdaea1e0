"""Sums over what slots hold, so that attending to a long context does not read all of it at every step.

A slot's sum counts its first positions, as part of a sequence in which they end at a certain position; that end says
which block of a sequence the slot was and how many positions of it were counted. A sum is used as long as its end is
the one that is asked for and nobody else can have written to the slot; otherwise the slot's bytes are read.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tandem.engine.simulated.content import Content, Words
from tandem.engine.simulated.memory import WatchedMemory

Indices = NDArray[np.int64]
_UNKNOWN: Final = -1


class SlotSums:
    """Sums of all slots of one memory, whose bytes are `words` [slots, 2 * block_tokens].

    Without a `WatchedMemory` nobody tells who writes, so every sum is taken anew.
    """

    def __init__(self, words: Words, content: Content, memory: WatchedMemory | None) -> None:
        self._words = words
        self._content = content
        self._memory = memory
        self._size = words.shape[1] // 2
        self._sums = np.zeros(len(words), dtype=np.uint64)
        self._ends = np.full(len(words), _UNKNOWN, dtype=np.int64)

    def begin(self) -> None:
        """A step begins: forget what is not certain any more."""
        if self._memory is None or self._memory.open:
            self._ends.fill(_UNKNOWN)
        elif touched := self._memory.take_touched():
            self._ends[touched] = _UNKNOWN

    def attended(self, tables: list[bytes], positions: list[int]) -> tuple[Words, Words]:
        """For each block table (packed uint32) and number of positions, which is not 0: E over those positions,
        and the last block's part of it."""
        size = self._size
        counts = [-(-end // size) for end in positions]
        flat = np.frombuffer(
            b"".join([table[: 4 * count] for table, count in zip(tables, counts, strict=True)]), dtype="<u4"
        )
        edges = np.cumsum(counts)
        starts = edges - counts
        ends = (np.arange(1, len(flat) + 1) - np.repeat(starts, counts)) * size
        ends[edges - 1] = positions
        parts = self._sums[flat]
        stale = np.flatnonzero(self._ends[flat] != ends)
        if len(stale):
            slots, until = flat[stale], ends[stale]
            parts[stale] = read = self._content.block_sums(self._words[slots], until)
            self._sums[slots], self._ends[slots] = read, until
        return np.add.reduceat(parts, starts), parts[edges - 1]

    def know(self, slots: Indices, sums: Words, ends: Indices) -> None:
        """The engine itself has written to these slots, and knows what they sum up to."""
        self._sums[slots], self._ends[slots] = sums, ends

    def forget(self, slot: int) -> None:
        """The engine itself has changed a slot, and does not know its sum."""
        self._ends[slot] = _UNKNOWN

    def copied(self, source: int, target: int) -> None:
        """A slot was copied to another."""
        self._sums[target], self._ends[target] = self._sums[source], self._ends[source]
