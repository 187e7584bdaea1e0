"""What is to be true of a service next: a pure function of what there is and of the time."""

from control_plane.reconcile.plan import Deletion, Plan, PlannedEvent
from control_plane.reconcile.reconcile import reconcile

__all__ = ["Deletion", "Plan", "PlannedEvent", "reconcile"]
