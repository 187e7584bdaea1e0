"""Rollouts of a revision over all pools of a service: one pure step, called until there is nothing left to change."""

from control_plane.rollout.decide import step
from control_plane.rollout.model import (
    Failure,
    GateResult,
    Health,
    InPlace,
    NoRoom,
    PoolPods,
    PoolTarget,
    Progress,
    RevisionObserved,
    RolloutPlan,
    RolloutSpec,
    RolloutState,
    SurgeReport,
    Verdict,
)
from control_plane.rollout.shares import pool_target
from control_plane.rollout.verdicts import COMPARISON_WAITS, LATE

__all__ = [
    "COMPARISON_WAITS",
    "LATE",
    "Failure",
    "GateResult",
    "Health",
    "InPlace",
    "NoRoom",
    "PoolPods",
    "PoolTarget",
    "Progress",
    "RevisionObserved",
    "RolloutPlan",
    "RolloutSpec",
    "RolloutState",
    "SurgeReport",
    "Verdict",
    "pool_target",
    "step",
]
