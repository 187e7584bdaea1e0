"""Computes the replicas of one revision in all pools at once: the same share of each pool, within one pod.

A revision that has the share f of a service has about f * n pods of a pool that wants n. Pools that may be exceeded
round up, so that the shares of two revisions always sum up to the whole; pools that may not be exceeded fall short by
less than one pod. Pods are given by pool name.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import ceil, floor

from control_plane.rollout.model import PoolTarget

PoolTargets = tuple[PoolTarget, ...]
Pods = Mapping[str, int]
WHOLE = Fraction(1)
NOTHING = Fraction(0)


def largest(goals: PoolTargets, room: Pods, most: Fraction) -> dict[str, int]:
    """The most pods that fit into `room`, of at most the share `most`; none at all where one pool has no room."""
    if most <= 0 or any(room[goal.name] < 1 for goal in goals):
        return {goal.name: 0 for goal in goals}
    share = min(most, *(_fitting(goal, room[goal.name], grain(goals)) for goal in goals))
    return {goal.name: min(room[goal.name], max(1, ceil(share * goal.replicas))) for goal in goals}


def smallest(goals: PoolTargets, floors: Pods, least: Fraction) -> dict[str, int]:
    """The fewest pods that are at least `floors`, of at least the share `least`; in every pool one, or in none."""
    share = max(least, reaching(goals, floors))
    if share <= 0:
        return {goal.name: 0 for goal in goals}
    return {goal.name: _kept(goal, floors[goal.name], share) for goal in goals}


def reaching(goals: PoolTargets, floors: Pods) -> Fraction:
    """The smallest share whose pods, rounded up, are at least `floors`."""
    needed = [Fraction(floors[goal.name] - 1, goal.replicas) for goal in goals if floors[goal.name] > 0]
    return max(needed) + grain(goals) if needed else NOTHING


def grain(goals: PoolTargets) -> Fraction:
    """Less than any two shares of these pools can lie apart: one pod in each pool when rounded up."""
    most = max(1, *(goal.replicas for goal in goals))
    return Fraction(1, 4 * most * most)


def _fitting(goal: PoolTarget, room: int, fine: Fraction) -> Fraction:
    """The largest share whose pods fit into `room`, or miss it by less than one where rounding up is not allowed."""
    return Fraction(room, goal.replicas) if goal.surge else Fraction(room + 1, goal.replicas) - fine


def _kept(goal: PoolTarget, floor_pods: int, share: Fraction) -> int:
    if goal.surge:
        return max(1, ceil(share * goal.replicas))
    return max(1, floor_pods, floor(share * goal.replicas))
