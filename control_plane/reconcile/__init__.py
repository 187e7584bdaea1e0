"""The next desired state of a service: a pure function of the observed state and of the time."""

from control_plane.reconcile.plan import Deletion, Plan, PlannedEvent
from control_plane.reconcile.reconcile import reconcile

__all__ = ["Deletion", "Plan", "PlannedEvent", "reconcile"]
