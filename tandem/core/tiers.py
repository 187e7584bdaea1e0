"""The tiers in which a cached token of a prompt can be found: the closed list, and counts over it."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

TIERS: Final = ("hbm", "dram", "nvme", "peer", "store")
"""The computing worker's pool, its DRAM and its NVMe; another worker; a store: in the order they are asked in."""
SEGMENT_BYTES: Final = 256 << 20
"""The size in bytes of one file of the NVMe tier, unless it is set otherwise."""

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


def bounded(by_tier: Mapping[str, int], tokens_max: int) -> Mapping[str, int]:
    """The counts of `by_tier` for at most `tokens_max` tokens altogether, leaving out those found last; only known
    tiers."""
    found, left = dict[str, int](), max(0, tokens_max)
    for tier in TIERS:
        count = min(max(0, by_tier.get(tier, 0)), left)
        if count:
            found[tier] = count
            left -= count
    return found or _NOTHING


def summed(counts: Iterable[Mapping[str, int] | None]) -> Mapping[str, int] | None:
    """The sum over all; None when one of them is not known."""
    found = dict[str, int]()
    for each in counts:
        if each is None:
            return None
        for tier, count in each.items():
            found[tier] = found.get(tier, 0) + count
    return found or _NOTHING
