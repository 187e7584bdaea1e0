"""Placement: which workers run a request, what each choice would have cost, and why."""

from router.placement.costs import CostModel
from router.placement.decision import Breakdown, Candidate, Placement, PlacementRequest, Unplaced
from router.placement.place import place
from router.placement.view import WorkerView

__all__ = [
    "Breakdown",
    "Candidate",
    "CostModel",
    "Placement",
    "PlacementRequest",
    "Unplaced",
    "WorkerView",
    "place",
]
