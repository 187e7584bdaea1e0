"""Rollouts of a revision over all pools of a service: one pure step, called until there is nothing left to change."""

from control_plane.rollout.decide import step
from control_plane.rollout.model import (
    Failure,
    Health,
    PoolPods,
    PoolTarget,
    Progress,
    RevisionObserved,
    RolloutPlan,
    RolloutSpec,
    RolloutState,
    Verdict,
)
from control_plane.rollout.shares import pool_target

__all__ = [
    "Failure",
    "Health",
    "PoolPods",
    "PoolTarget",
    "Progress",
    "RevisionObserved",
    "RolloutPlan",
    "RolloutSpec",
    "RolloutState",
    "Verdict",
    "pool_target",
    "step",
]
