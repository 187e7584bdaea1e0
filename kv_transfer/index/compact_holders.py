"""Computes how far each holder gets through a long prompt, from arrays of bit sets: `leading` in vectors. Pure."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kv_transfer.index.compact_arena import Words
from kv_transfer.index.leading import bits, leading
from kv_transfer.index.protocol import Held

_RUNS: Final = 64
"""Maximum number of runs of names with equal holders that are processed run by run."""
_FIRST: Final = np.zeros(1, dtype=np.int64)
_COUNTED: Final = 255
"""Rows that are added up at once: as many as a byte can count."""


def leading_of(rows: Words, live: int) -> dict[int, Held]:
    """How far each holder in `live` gets through the names, by bit number. `rows[n, 3]` has the holders of each name
    by tier."""
    changes = rows[1:, 0] != rows[:-1, 0]
    changes |= rows[1:, 1] != rows[:-1, 1]
    changes |= rows[1:, 2] != rows[:-1, 2]
    starts = np.concatenate((_FIRST, np.flatnonzero(changes) + 1))
    if len(starts) <= _RUNS:
        lengths: list[int] = np.diff(starts, append=len(rows)).tolist()
        return leading([(hbm, dram, nvme) for hbm, dram, nvme in rows[starts].tolist()], live, lengths)
    return _leading_of_all(rows, live)


def _leading_of_all(rows: Words, live: int) -> dict[int, Held]:
    hbm, dram, nvme = np.ascontiguousarray(rows.T)
    somewhere = hbm | dram
    somewhere |= nvme
    somewhere[0] &= np.uint64(live)
    alive: Words = np.bitwise_and.accumulate(somewhere)
    totals = _lengths(alive)
    below = alive & ~hbm
    if not below.any():
        return {bit: Held(total, total) for bit, total in totals.items()}
    hbm[0] &= np.uint64(live)
    pools = _lengths(np.bitwise_and.accumulate(hbm))
    in_dram, on_nvme = _counts(below & dram), _counts(below & nvme & ~dram)
    return {
        bit: Held(total, pools.get(bit, 0), int(in_dram[bit]), int(on_nvme[bit])) for bit, total in totals.items()
    }


def _lengths(alive: Words) -> dict[int, int]:
    """For each bit of the first word, the number of words that have it. A bit that is gone does not come back."""
    lengths: dict[int, int] = {}
    for at in np.flatnonzero(alive[1:] != alive[:-1]).tolist():
        for bit in bits(int(alive[at] & ~alive[at + 1])):
            lengths[bit] = at + 1
    for bit in bits(int(alive[-1])):
        lengths[bit] = len(alive)
    return lengths


def _counts(words: Words) -> NDArray[np.int64]:
    """For each of the 64 bits, the number of words that have it."""
    octets = np.ascontiguousarray(words[words != 0], dtype="<u8").view(np.uint8).reshape(-1, 8)
    flags = np.unpackbits(octets, axis=1, bitorder="little")
    whole = len(flags) - len(flags) % _COUNTED
    some = flags[:whole].reshape(-1, _COUNTED, 64).sum(axis=1, dtype=np.uint8)
    return _summed(flags[whole:]) + _summed(some)


def _summed(rows: NDArray[np.integer]) -> NDArray[np.int64]:
    totals: NDArray[np.int64] = rows.sum(axis=0, dtype=np.int64)
    return totals
