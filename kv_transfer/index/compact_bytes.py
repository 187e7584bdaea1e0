"""Eight bytes in a word, each a slot: which are zero, which comes first. For arrays of words and for one. Pure."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kv_transfer.index.compact_arena import Ids, Words

SLOTS: Final = 8
_LOW7: Final = 0x7F7F7F7F7F7F7F7F
_TOPS: Final = 0x8080808080808080
_U1, _U3, _U7 = np.uint64(1), np.uint64(3), np.uint64(7)
_U255: Final = np.uint64(255)
_U_LOW7: Final = np.uint64(_LOW7)
_SHIFTS: Final = np.arange(0, 64, 8, dtype=np.uint64)


def zero_bytes(words: Words) -> Words:
    """The top bit of every byte that is zero, no other bit (Warren, Hacker's Delight, 6-1)."""
    filled: Words = words & _U_LOW7
    filled += _U_LOW7
    filled |= words
    filled |= _U_LOW7
    return np.invert(filled, out=filled)


def zero_bytes_of(word: int) -> int:
    return ~(((word & _LOW7) + _LOW7) | word) & _TOPS


def first_slots(buckets: Words, marks: Words) -> Ids:
    """The slot, counted through all buckets, of the lowest mark in each; behind the bucket where there is none."""
    below = marks - _U1
    below &= ~marks
    slots: Ids = buckets.view(np.int64) << 3
    slots += np.bitwise_count(below) >> 3
    return slots


def first_slot_of(bucket: int, marks: int) -> int:
    return (bucket << 3) + (((marks & -marks).bit_length() - 1) >> 3)


def without_first(marks: Words) -> Words:
    """The marks but for the lowest of each word."""
    rest: Words = marks & (marks - _U1)
    return rest


def in_slot(octets: Words, slots: Ids) -> Words:
    """Each octet shifted to where its slot lies in its bucket's word."""
    shifted: Words = octets << ((slots.astype(np.uint64) & _U7) << _U3)
    return shifted


def filled(words: Words) -> NDArray[np.bool_]:
    """`[n, 8]`: which bytes are not zero."""
    some: NDArray[np.bool_] = ((words[:, None] >> _SHIFTS) & _U255) != 0
    return some


def masks(chosen: NDArray[np.bool_]) -> Words:
    """The words in which the `chosen[n, 8]` bytes are 255 and the others 0."""
    words: Words = np.bitwise_or.reduce(chosen * (_U255 << _SHIFTS), axis=1)
    return words
