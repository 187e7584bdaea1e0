"""Rows of the table of names: `[low word, high word, holders by tier …]`, packed without gaps but for freed ones.

A row stays where it is for as long as its name is known. Rows of names that come together lie together, so that a
prompt that was stored at once is read back from neighbouring memory. A free row has no holders.
"""

from typing import Final

import numpy as np

from kv_transfer.index.compact_arena import Arena, Ids, Words

KEY_WORDS: Final = 2
_FIRST_ROWS: Final = 1024


class Rows:
    """Owns which rows are free. Holders beyond the first group lie in `extensions`, arenas by the same numbers."""

    def __init__(self, holder_words: int) -> None:
        self._holder_words = holder_words
        self._main = Arena(np.uint64, KEY_WORDS + holder_words, _FIRST_ROWS)
        self._free = Arena(np.uint32, 1, _FIRST_ROWS)
        self._freed = 0
        self.extensions: list[Arena[np.uint64]] = []
        self.top = 0
        """Every row in use is below this."""

    @property
    def array(self) -> Words:
        """`[rows, 2 + holder words]`. Let go of it before the next `allocate`, which may move it."""
        return self._main.array

    @property
    def flat(self) -> "memoryview[int]":
        """The memory of `array`, word by word."""
        return self._main.flat

    @property
    def width(self) -> int:
        """Words of a row."""
        return KEY_WORDS + self._holder_words

    def extend(self) -> None:
        """One more arena of holders."""
        self.extensions.append(Arena(np.uint64, self._holder_words, len(self._main)))

    def allocate(self, count: int) -> Ids:
        """Rows for so many names, neighbours as far as there are any."""
        reused = min(count, self._freed)
        fresh = np.arange(self.top, self.top + count - reused, dtype=np.int64)
        self._reserve(self.top + count - reused)
        self.top += count - reused
        if not reused:
            return fresh
        self._freed -= reused
        # What was freed last lies on top, and what was freed together was freed in order.
        old = self._free.array[self._freed : self._freed + reused, 0].astype(np.int64)
        return np.concatenate((old, fresh))

    def allocate_one(self) -> int:
        """A row for one name."""
        if self._freed:
            self._freed -= 1
            return self._free.flat[self._freed]
        self._reserve(self.top + 1)
        self.top += 1
        return self.top - 1

    def release(self, rows: Ids) -> None:
        """Free these rows, whose holders are gone."""
        self._free.reserve(self._freed + len(rows))
        self._free.array[self._freed : self._freed + len(rows), 0] = rows
        self._freed += len(rows)

    def _reserve(self, rows: int) -> None:
        if rows > len(self._main):
            self._main.reserve(rows)
            for extension in self.extensions:
                extension.reserve(len(self._main))
