"""Placement: which workers run a request, what each choice would have cost, and why."""

from router.placement.costs import CostModel
from router.placement.decision import (
    Breakdown,
    Candidate,
    Objective,
    Placement,
    PlacementRequest,
    SourceChoice,
    Unplaced,
    Work,
)
from router.placement.policies import make_policy
from router.placement.policy import Policy
from router.placement.view import WorkerView

__all__ = [
    "Breakdown",
    "Candidate",
    "CostModel",
    "Objective",
    "Placement",
    "PlacementRequest",
    "Policy",
    "SourceChoice",
    "Unplaced",
    "Work",
    "WorkerView",
    "make_policy",
]
