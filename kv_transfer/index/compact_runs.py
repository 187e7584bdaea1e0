"""Looks up the names of a prompt by runs: names that were stored together lie in neighbouring rows, in order.

The first names are compared with the rows behind that of the first, as far as these agree, without any look-up
between: a conversation that was stored at once is one such run. Of a prompt that came in smaller pieces every eighth
name is looked up, and those behind it are expected in the rows behind its row. What is not there is looked up after
all. Where few are, as in a prompt whose blocks came one by one, the rest is looked up without expecting anything.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kv_transfer.index.compact_arena import Ids, Words
from kv_transfer.index.compact_rows import KEY_WORDS
from kv_transfer.index.compact_table import NameTable, packed_words
from tandem.core.kv import NAME_BYTES

_STRIDE: Final = 8
_WORTH: Final = 0.25
"""The share of looked-up names whose neighbours are a stride of rows apart, from which on more is expected."""
_BEHIND: Final = np.arange(_STRIDE)
_LONG: Final = 128
"""A run of so many names costs less to follow than to look up by strides."""
_SHORT_MAX: Final = 2
"""Number of shorter runs after which more of them are expected."""


class Runs(NamedTuple):
    """Leading names by the rows in which they lie one after the other."""

    rows: list[slice]
    names: int
    """The number of names in these runs."""
    ended: bool
    """Whether the next name is not in the table, or there is none."""


def leading_runs(table: NameTable, packed: bytes) -> Runs:
    """The leading ones of packed names, as far as they lie in long runs."""
    names, count = packed_words(packed), len(packed) // NAME_BYTES
    rows, at, short = list[slice](), 0, 0
    while at < count:
        if short == _SHORT_MAX:
            # Short ones alone are looked up with what follows them, so that all holders come in one piece.
            return Runs(rows, at, False) if short < len(rows) else Runs([], 0, False)
        first = table.find_one(packed[at * NAME_BYTES : (at + 1) * NAME_BYTES])
        if first < 0:
            break
        length = _agreeing(table, names, _reach(table, packed, at, first), at, first)
        rows.append(slice(first, first + length))
        at += length
        short += length < _LONG
    return Runs(rows, at, True)


def _reach(table: NameTable, packed: bytes, at: int, first: int) -> int:
    """The number of names from `at` on that seem to lie in the rows from `first` on: all that there is room for, or a
    number found by bisection, as if the rows disagreed with all names after the first that they disagree with."""
    words, flat, width = memoryview(packed).cast("Q"), table.rows.flat, table.rows.width

    def agrees(behind: int) -> bool:
        word, place = 2 * (at + behind), (first + behind) * width
        return flat[place] == words[word] and flat[place + 1] == words[word + 1]

    same, differs = 0, min(len(packed) // NAME_BYTES - at, table.rows.top - first)
    if agrees(differs - 1):
        return differs
    while differs - same > 1:
        middle = (same + differs) // 2
        if agrees(middle):
            same = middle
        else:
            differs = middle
    return differs


def _agreeing(table: NameTable, names: Words, reach: int, at: int, first: int) -> int:
    """The number of names from `at` on, of `reach`, that lie in the rows from `first` on. Row `first` is that of the
    first name."""
    found = table.rows.array[first : first + reach]
    there: NDArray[np.bool_] = found[:, 0] == names[at : at + reach, 0]
    there &= found[:, 1] == names[at : at + reach, 1]
    extensions = [extension.array[first : first + reach] for extension in table.rows.extensions]
    there &= _held(found[:, KEY_WORDS:], extensions)
    return reach if there.all() else max(1, int(there.argmin()))


def holders_by_runs(table: NameTable, names: Words) -> tuple[Ids, Words]:
    """Rows and holders of names, as `NameTable.holders` gives them."""
    heads = table.find(names[::_STRIDE])
    if np.count_nonzero(np.diff(heads) == _STRIDE) < _WORTH * len(heads):
        return table.holders(names)
    rows = (heads[:, None] + _BEHIND).reshape(-1)[: len(names)]
    found = np.take(table.rows.array, rows, axis=0, mode="wrap")
    holders = found[:, KEY_WORDS:]
    there = found[:, 0] == names[:, 0]
    there &= found[:, 1] == names[:, 1]
    there &= _held(holders, [np.take(each.array, rows, axis=0, mode="wrap") for each in table.rows.extensions])
    elsewhere = np.flatnonzero(~there)
    if elsewhere.size:
        rows[elsewhere], holders[elsewhere] = table.holders(names[elsewhere])
    return rows, holders


def _held(holders: Words, extensions: list[Words]) -> NDArray[np.bool_]:
    """Which rows are in use, from their holders and further holders in `extensions`. A free row still has its
    previous name, which may lie elsewhere now."""
    held = holders[:, 0] | holders[:, 1]
    held |= holders[:, 2]
    for extension in extensions:
        held |= np.bitwise_or.reduce(extension, axis=1)
    taken: NDArray[np.bool_] = held != 0
    return taken
