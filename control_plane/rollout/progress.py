"""Measures how far a rollout is from its end, and since when it has made no progress."""

from collections.abc import Mapping

from control_plane.rollout.model import Progress
from control_plane.rollout.view import View


def pods_left(view: View, settled: Mapping[str, Mapping[str, int]]) -> int:
    """Pods that have yet to become ready or to go until every revision has what is settled."""
    return sum(
        max(0, aim - view.ready(name)[pool]) + max(0, view.replicas(name)[pool] - aim)
        for name, pods in settled.items()
        for pool, aim in pods.items()
    )


def progressed(view: View, left: int, last: Progress | None, now: float) -> Progress:
    """The clock of the progress deadline. Only getting nearer than ever before moves it, so a pod that comes and goes
    does not; nor do replicas that a scaler changes, which would let a scaler put off the deadline for ever."""
    aim = aim_of(view)
    wanted = ",".join(f"{goal.name}={goal.replicas}" for goal in view.goals)
    if last is None or last.aim != aim or (last.left == 0 and left > 0):
        return Progress(aim, wanted, left, now)
    if wanted != last.wanted:
        return Progress(aim, wanted, left, last.since)
    return Progress(aim, wanted, left, now) if left < last.left else last


def aim_of(view: View) -> str:
    """The aim of the rollout as a string. A change of it restarts the clock, and so does resuming after a pause."""
    gate = view.of(view.update).gate if view.gated(view.update) else "not_required"
    going = "back" if view.rejected else f"{view.spec.weight}%"
    resting = ":paused" if view.spec.paused else ":asleep" if view.asleep else ""
    return f"{view.update}:{going}:{gate}{resting}"
