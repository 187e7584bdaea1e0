"""Neither pool outruns the other: each may grow no further than what the other, with what of it is on its way, can
take or give. In requests/s over a whole role.

The failure this prevents: prefill starts faster or is scaled first, prompts flow, and decode workers that are not
there yet leave every running sequence with more neighbours than its time per token allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from control_plane.autoscale.model import PoolLoad

_OVERDUE: Final = 3.0
"""Multiple of the usual cold start after which a starting worker is no longer expected: there may be no room for
it."""


@dataclass(frozen=True)
class RolePool:
    """One pool as the other role sees it: its workers, those this decision adds, and requests/s of each."""

    load: PoolLoad
    decided: int
    cold_start_s: float
    rate: float
    spare: int = 0
    """Workers of the pool that are spares and carry no load."""

    def within(self, seconds: float) -> float:
        """Requests/s of what is ready that soon and stays."""
        coming = sum(
            1 for age in self.load.on_the_way if age <= _OVERDUE * self.cold_start_s and self._left_s(age) <= seconds
        )
        new = max(0, self.decided - self.load.wanted) if self.cold_start_s <= seconds else 0
        return max(0, min(self.load.ready + coming + new, self.decided) - self.spare) * self.rate

    def _left_s(self, age: float) -> float:
        return max(0.0, self.cold_start_s - age)


def rate_within(pools: Sequence[RolePool], seconds: float) -> float:
    """Requests/s of a role that soon."""
    return sum(pool.within(seconds) for pool in pools)


def rate_in_all(pools: Sequence[RolePool]) -> float:
    """Requests/s of a role when all of this decision is there."""
    return sum(max(0, pool.decided - pool.spare) * pool.rate for pool in pools)


def overdue(load: PoolLoad, cold_start_s: float) -> int:
    """The number of pods that have been starting for too long."""
    return sum(1 for age in load.starting_s if age > _OVERDUE * cold_start_s)
