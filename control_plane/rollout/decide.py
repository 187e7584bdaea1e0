"""One step of a rollout: from the observed state of the cluster to the next desired one.

The caller applies the plan as far as it gets and calls again whenever something changes: nothing is kept in between
but the state, which may be lost. Two rules make any partly applied plan safe. A revision loses pods only after
routers have received the weights under which it can spare them; and pods that are only starting count for nothing.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from control_plane.rollout.failing import failure
from control_plane.rollout.in_place import next_due_s, pools_in_place, surge_reports
from control_plane.rollout.model import (
    Failure,
    Progress,
    RevisionObserved,
    RolloutPlan,
    RolloutSpec,
    RolloutState,
)
from control_plane.rollout.progress import pods_left, progressed
from control_plane.rollout.split import Split, settled_pods, wanted_shares
from control_plane.rollout.verdicts import verdict
from control_plane.rollout.view import View
from control_plane.rollout.weights import traffic

LOOK_S: Final = 10.0
"""Seconds between looks at the health of a revision that takes over."""
SOON_S: Final = 1.0


def step(state: RolloutState, spec: RolloutSpec, observed: Mapping[str, RevisionObserved], now: float) -> RolloutPlan:
    """The next pods and weights. `observed` has every revision that has a Deployment; `now` is wall-clock seconds."""
    view, failed = _judged(state, spec, observed, now)
    held = view.replacing and not view.rejected and (spec.paused or failed is not None)
    view = replace(view, state=replace(view.state, in_place=pools_in_place(view, held, now)))
    shares = wanted_shares(view)
    pods = Split(view, shares, held).work_out()
    weights = traffic(view, pods)
    waiting = _wait_for_routers(view, pods, weights)
    left = pods_left(view, settled_pods(view, shares))
    progress = progressed(view, left, state.progress, now)
    return RolloutPlan(
        replicas={(pool, name): count for name, by_pool in pods.items() for pool, count in by_pool.items()},
        weights=weights,
        state=RolloutState(view.stable, weights, failed, progress, view.state.in_place),
        verdict=verdict(view, failed, progress, now),
        retired=_retired(view),
        requeue_after_s=SOON_S if waiting else _requeue(view, progress, now),
        surges=surge_reports(view, now),
    )


def _judged(
    state: RolloutState, spec: RolloutSpec, observed: Mapping[str, RevisionObserved], now: float
) -> tuple[View, Failure | None]:
    """The view after promotion and failure have been decided, and the failure."""
    known = state.failure if state.failure is not None and state.failure.revision == spec.revision else None
    view = View(spec, replace(state, failure=known), observed, state.stable, rejected=False)
    if known is None and _complete(view):
        return View(spec, view.state, observed, spec.revision, rejected=False), None
    failed = None if not view.replacing else known or failure(view, state.progress, now)
    rejected = failed is not None and spec.auto_rollback
    return View(spec, replace(state, failure=failed), observed, state.stable, rejected), failed


def _complete(view: View) -> bool:
    """Whether the revision serves alone, with what must be available: from here on there is no way back. A weight
    shares traffic with the revision before; the first one has none."""
    shared = view.stable is not None and view.spec.weight < 100
    if view.stable == view.update or view.asleep or shared or view.update not in view.serving:
        return False
    ready = view.ready(view.update)
    enough = all(ready[goal.name] >= max(1, goal.replicas - goal.unavailable) for goal in view.goals)
    return enough and not any(count for name in view.old for count in view.replicas(name).values())


def _wait_for_routers(view: View, pods: dict[str, dict[str, int]], weights: Mapping[str, int]) -> bool:
    """Give back the pods of revisions that routers still send more to than they are to get; whether there are any."""
    told = view.state.weights
    waiting = False
    for name in view.revisions:
        now = view.replicas(name)
        lowered = any(pods[name][pool] < count for pool, count in now.items())
        if lowered and told.get(name, 0) > weights.get(name, 0):
            pods[name] = {pool: max(count, now[pool]) for pool, count in pods[name].items()}
            waiting = True
    return waiting


def _retired(view: View) -> tuple[str, ...]:
    gone = (name for name in view.others if not any(p.replicas or p.ready for p in view.of(name).pools.values()))
    return tuple(gone)


def _requeue(view: View, progress: Progress, now: float) -> float | None:
    looks = [LOOK_S] if view.replacing and view.update in view.serving and not view.rejected else []
    if progress.left and not view.spec.paused:
        due = progress.since + view.spec.progress_deadline_s - now
        looks += [max(SOON_S, due)] if due > 0 else []
    room_due = next_due_s(view, now)
    looks += [] if room_due is None else [max(SOON_S, room_due)]
    return min(looks, default=None)
