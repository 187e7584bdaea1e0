"""Computes where in a table of buckets a name may lie: two buckets and a tag, from one keyed mix of its 16 bytes.

Clients choose prompts and so names; the key keeps them from choosing names that meet in one bucket. The formula has
two forms: for an array of names, and for one.
"""

from typing import Final

import numpy as np

from kv_transfer.index.compact_arena import Words

BUCKET_BITS: Final = 28
"""Two bucket numbers of 28 bits and a tag of 8 make up the 64 mixed bits."""
_MASK: Final = (1 << 64) - 1
_LAST: Final = 0x9E3779B97F4A7C15
_HALF: Final = np.uint64(32)


class Mixer:
    """`key` is 128 random bits."""

    def __init__(self, key: int) -> None:
        self._first, self._second = (key & _MASK) | 1, (key >> 64 & _MASK) | 1
        self._factors = np.uint64(self._first), np.uint64(self._second), np.uint64(_LAST)

    def many(self, low: Words, high: Words) -> Words:
        """The mixed bits of names, given as their low and high words."""
        first, second, last = self._factors
        mixed: Words = low * first
        mixed += high * second
        mixed ^= mixed >> _HALF
        mixed *= last
        mixed ^= mixed >> _HALF
        return mixed

    def one(self, low: int, high: int) -> int:
        """The mixed bits of one name."""
        mixed = (low * self._first + high * self._second) & _MASK
        mixed = ((mixed ^ mixed >> 32) * _LAST) & _MASK
        return mixed ^ mixed >> 32
