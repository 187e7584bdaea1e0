"""Turns "which holders have each name, in which tier" into how far each holder gets. Pure; a set of holders is a
Python integer."""

from collections.abc import Iterable
from itertools import repeat

from kv_transfer.index.protocol import Held

Holders = tuple[int, int, int]
"""Holders of one name in the pool, in DRAM, on NVMe: a bit per holder."""


def leading(rows: Iterable[Holders], live: int, lengths: Iterable[int] = repeat(1)) -> dict[int, Held]:
    """How far each holder in `live` gets through the names whose holders are `rows`, in order; by bit number. Each
    row stands for as many names as its length.

    Costs a few integer operations per name that still has a holder, and a step per holder and name that has to be
    read from a lower tier.
    """
    found: dict[int, Held] = {}
    pool: dict[int, int] = {}
    lower: tuple[dict[int, int], dict[int, int]] = {}, {}
    alive, in_pool, count = live, live, 0
    for (hbm, dram, nvme), length in zip(rows, lengths, strict=False):
        left = alive & (hbm | dram | nvme)
        if left != alive:
            for bit in bits(alive & ~left):
                _note(found, bit, count, pool, lower)
            alive = left
            if not alive:
                return found
        ended = in_pool & alive & ~hbm
        if ended:
            for bit in bits(ended):
                pool[bit] = count
        in_pool &= alive & hbm
        beyond = alive & ~hbm
        if beyond:
            _count(lower[0], beyond & dram, length)
            _count(lower[1], beyond & nvme & ~dram, length)
        count += length
    for bit in bits(alive):
        _note(found, bit, count, pool, lower)
    return found


def bits(holders: int) -> list[int]:
    """The numbers of the bits that are set, the lowest first."""
    numbers = []
    while holders:
        lowest = holders & -holders
        numbers.append(lowest.bit_length() - 1)
        holders ^= lowest
    return numbers


def _count(counts: dict[int, int], holders: int, names: int) -> None:
    for bit in bits(holders):
        counts[bit] = counts.get(bit, 0) + names


def _note(
    found: dict[int, Held], bit: int, total: int, pool: dict[int, int], lower: tuple[dict[int, int], dict[int, int]]
) -> None:
    if total:
        found[bit] = Held(total, pool.get(bit, total), lower[0].get(bit, 0), lower[1].get(bit, 0))
