"""Assigns a role's need to its pools, when there are several. Pure.

Pools of fixed size carry what they can. The others are filled in the order of the specification: the first one
reaches its maximum before the next gets more than its minimum.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """One pool: what one worker carries relative to the role's first pool, and between which numbers it is scaled;
    equal numbers for one that is not."""

    name: str
    worth: float
    least: int
    most: int


def assign_workers(need: float, shares: Sequence[Share]) -> dict[str, float]:
    """Workers' worth by pool, each in its own workers. `need` is in workers of the first pool."""
    left = need - sum(share.least * share.worth for share in shares)
    allotted = {}
    for share in shares:
        more = min(max(0.0, left) / share.worth, float(share.most - share.least))
        left -= more * share.worth
        allotted[share.name] = share.least + more
    if len(shares) == 1:
        # With one pool there is nothing to spread: what it carries may be below its least, and is told as it is.
        return {shares[0].name: need / shares[0].worth}
    return allotted
