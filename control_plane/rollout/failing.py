"""Decides when a rollout has failed: by its gate, by what routers see, or by the clock."""

from control_plane.rollout.model import Failure, Progress, RolloutSpec
from control_plane.rollout.progress import aim_of
from control_plane.rollout.regression import regression
from control_plane.rollout.view import View


def failure(view: View, progress: Progress | None, now: float) -> Failure | None:
    """The reason why the revision that the spec asks for must not go on; None when nothing speaks against it.

    Only a revision that replaces another can fail: without one there is nothing to go back to.
    """
    if view.replaced is None:
        return None
    update, spec = view.of(view.update), view.spec
    if view.gated(view.update) and update.gate == "failed":
        return Failure(view.update, "gate", "its answers differ too much from those of the old revision")
    worse = regression(update.health, view.of(view.replaced).health, spec.error_budget)
    if worse is not None:
        return Failure(view.update, *worse)
    # Without automatic rollback a late rollout goes on and only says so. A clock that ran for something else, as
    # during a pause, says nothing.
    if progress is None or progress.aim != aim_of(view) or not spec.auto_rollback or spec.paused or view.asleep:
        return None
    return Failure(view.update, "deadline", _late(spec)) if overdue(spec, progress, now) else None


def overdue(spec: RolloutSpec, progress: Progress, now: float) -> bool:
    """Whether there has been no progress for longer than the spec allows."""
    return progress.left > 0 and now - progress.since >= spec.progress_deadline_s


def _late(spec: RolloutSpec) -> str:
    return f"no pod became ready within {spec.progress_deadline_s:.0f} s"
