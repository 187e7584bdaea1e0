"""Aligns revisions whose pools differ from those of the revision that is asked for, so that the rollout step can
compare them.

A step moves revisions by shares of the goal's pools. A revision that never had one of these pools counts as having
the share there that it has elsewhere. Its replicas in pools that are no longer goals follow the share that the step
gives it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from control_plane.observe.observed import Observed
from control_plane.rollout import PoolPods, PoolTarget, RevisionObserved


@dataclass(frozen=True)
class Alignment:
    """`goals` are the pools of the revision that is asked for; `has` the pools that each revision really has."""

    goals: tuple[PoolTarget, ...]
    has: Mapping[str, frozenset[str]]
    wanted: Mapping[str, int]
    """Replicas by pool, of all pools that there are."""

    def seen(self, observed: Observed, revision: str) -> RevisionObserved:
        """The revision as a step is to see it, without its gate."""
        pools = {
            name: PoolPods(each.replicas, observed.ready(name, revision))
            for name, each in observed.workers_of(revision).items()
        }
        missing = [goal for goal in self.goals if goal.name not in self.has.get(revision, frozenset())]
        beside = [pools.get(name, PoolPods()) for name in self._beside(revision)]
        if not missing and not beside:
            return RevisionObserved(pools)
        held = self._share({name: pods.replicas for name, pods in pools.items()})
        ready = self._share({name: pods.lasting for name, pods in pools.items()}, least=True)
        for goal in missing:
            pools[goal.name] = PoolPods(ceil(held * goal.replicas), ceil(ready * goal.replicas))
        if any(not pods.lasting for pods in beside):
            pools = {name: PoolPods(pods.replicas, 0) for name, pods in pools.items()}
        return RevisionObserved({goal.name: pools.get(goal.name, PoolPods()) for goal in self.goals})

    def beside(self, revision: str, planned: Mapping[str, int]) -> dict[str, int]:
        """Replicas of those pools of the revision that are not goals, given the replicas `planned` for the goals'
        pools."""
        shares = [Fraction(planned.get(goal.name, 0), goal.replicas) for goal in self.goals if goal.replicas]
        share = min(Fraction(1), max(shares, default=Fraction(0)))
        return {name: ceil(share * self.wanted.get(name, 0)) for name in self._beside(revision)}

    def _beside(self, revision: str) -> list[str]:
        goals = {goal.name for goal in self.goals}
        return sorted(self.has.get(revision, frozenset()) - goals)

    def _share(self, counts: Mapping[str, int], *, least: bool = False) -> Fraction:
        shares = [Fraction(count, max(1, self.wanted.get(name, 1))) for name, count in counts.items()]
        share = (min if least else max)(shares, default=Fraction(0))
        return min(Fraction(1), share)
