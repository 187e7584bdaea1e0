"""Verdicts on a rollout: one reason and one sentence per situation."""

from typing import Final

from control_plane.rollout.failing import overdue
from control_plane.rollout.model import Failure, Progress, Verdict
from control_plane.rollout.view import View

COMPARISON_WAITS: Final = "The comparison waits: "
"""What stands before the causes for which it does."""
LATE: Final = "ProgressDeadlineExceeded"


def verdict(view: View, failure: Failure | None, progress: Progress, now: float) -> Verdict:
    """The state of the rollout after this step."""
    if failure is not None:
        return _failed(view, failure, progress)
    if overdue(view.spec, progress, now) and not (view.asleep or (view.replacing and view.spec.paused)):
        late = f"{progress.left} pods have yet to change and none has for {now - progress.since:.0f} s."
        return Verdict(LATE, f"Revision {view.update}: {late}", stalled=True)
    if view.asleep:
        return Verdict("ScaledToZero", "No pool wants a pod.", done=progress.left == 0)
    if not view.replacing:
        return _steady(view, progress)
    return _replacing(view, progress)


def _failed(view: View, failure: Failure, progress: Progress) -> Verdict:
    why = f"Revision {failure.revision}: {failure.sentence}."
    if not view.spec.auto_rollback:
        return Verdict("RolloutFailed", f"{why} It is held where it is: automatic rollback is off.", stalled=True)
    if progress.left:
        return Verdict(
            "RollingBack", f"{why} Going back to {view.stable}, {progress.left} pods to change.", stalled=True
        )
    return Verdict("RolledBack", f"{why} Revision {view.stable} serves alone.", stalled=True)


def _steady(view: View, progress: Progress) -> Verdict:
    if progress.left == 0:
        return Verdict("Complete", f"Revision {view.update} serves alone.", done=True)
    return Verdict("Progressing", f"Revision {view.update}: {progress.left} pods have yet to change.")


def _replacing(view: View, progress: Progress) -> Verdict:
    what = f"Revision {view.update} replaces {view.stable}"
    if view.spec.paused:
        return Verdict("Paused", f"{what}: paused; set rollout.paused to false to go on.")
    if view.gated(view.update) and view.of(view.update).gate == "unknown" and progress.left == 0:
        trouble = view.of(view.update).gate_trouble
        waits = f" {COMPARISON_WAITS}{trouble}." if trouble else ""
        return Verdict("Verifying", f"{what}: its answers are compared before it gets traffic.{waits}")
    if progress.left == 0:
        return Verdict("WeightReached", f"{what}: it has the {view.spec.weight} % asked for; raise rollout.weight.")
    return Verdict("Progressing", f"{what}: {progress.left} pods have yet to change.")
