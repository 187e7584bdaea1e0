"""Decides which pools of a rollout go in place: where no node has room for new pods beside the old ones, an old pod
gives way first.

A pool that goes in place is no longer exceeded; it may fall short by one pod instead, which is what its disruption
budget allows, or by as many as the specification does. It stays so until the rollout is over, since the new pod takes
the place at once and nothing would tell that there is still no other.
"""

from collections.abc import Iterator
from typing import Final

from control_plane.rollout.model import InPlace, NoRoom, SurgeReport
from control_plane.rollout.view import View, allows_outage

IN_PLACE: Final = "InPlace"
NEVER: Final = "Never"
IN_VAIN: Final = "InVain"
NEEDS_OUTAGE: Final = "NeedsOutage"
_BESIDE: Final = "no node has room for a new worker beside the old ones"


def pools_in_place(view: View, held: bool, now: float) -> InPlace | None:
    """The pools that go in place from now on, with those that did already. A rollout that is `held` begins none."""
    if not view.replacing or not view.spec.in_place:
        return None
    if view.rejected and not any(view.replicas(view.update).values()):
        # The way back is over, but for pods that anybody may have taken the room from.
        return None
    # The revision serves with every pool or not at all: where one cannot go in place, others would do so in vain.
    due = {pool: _obstacle(view, pool, lack) for pool, lack in _due(view, now) if pool not in view.in_place}
    entering = () if held or any(due.values()) else due
    pools = tuple(sorted(view.in_place.union(entering)))
    return InPlace(view.update, pools) if pools else None


def surge_reports(view: View, now: float) -> tuple[SurgeReport, ...]:
    """What becomes of the pools whose new pods find no room, those that nothing is done for first."""
    due = {pool: _obstacle(view, pool, lack) for pool, lack in _due(view, now) if pool not in view.in_place}
    blocked = next((pool for pool, obstacle in due.items() if obstacle is not None), None)
    found = []
    for pool, obstacle in due.items():
        if obstacle is not None:
            found.append(SurgeReport(pool, *obstacle))
        elif blocked is not None:
            why = f"an old one that gives way would not help while pool {blocked} has no room"
            found.append(SurgeReport(pool, IN_VAIN, f"Pool {pool}: {_BESIDE}, and {why}."))
    return (*found, *(SurgeReport(pool, IN_PLACE, _going(pool)) for pool in sorted(view.in_place)))


def next_due_s(view: View, now: float) -> float | None:
    """Seconds until a pod has been without room for long enough; None when none will be."""
    dues = (lack.since + view.spec.in_place_after_s - now for _, lack in _lacking(view))
    return min((due for due in dues if due > 0), default=None)


def _lacking(view: View) -> Iterator[tuple[str, NoRoom]]:
    """The pools in which pods that are to come lack room while the other revision has pods."""
    if view.replaced is None:
        return
    coming, going = (view.replaced, view.update) if view.rejected else (view.update, view.replaced)
    for pool, lack in sorted(view.of(coming).no_room.items()):
        if view.replicas(going).get(pool):
            yield pool, lack


def _due(view: View, now: float) -> Iterator[tuple[str, NoRoom]]:
    return (each for each in _lacking(view) if now - each[1].since >= view.spec.in_place_after_s)


def _obstacle(view: View, pool: str, lack: NoRoom) -> tuple[str, str] | None:
    """Why the pool cannot go in place, as a reason and a sentence; None when it can."""
    goal = next(goal for goal in view.goals if goal.name == pool)
    if not view.spec.in_place:
        return NEVER, f"Pool {pool}: {_BESIDE}, and rollout.inPlace is Never."
    if lack.in_vain:
        return IN_VAIN, f"Pool {pool}: {_BESIDE}, and an old one that gives way would not help: {lack.in_vain}."
    if goal.replicas <= 1 and not allows_outage(view.spec, compared=view.gated(view.update) and not _passed(view)):
        why = "its only worker would have to go before the new one starts, an outage"
        cure = "rollout.maxUnavailable allows it where it is all of every pool, with weight 100 and no gate to pass"
        return NEEDS_OUTAGE, f"Pool {pool}: {_BESIDE}, and {why}: {cure}."
    return None


def _passed(view: View) -> bool:
    return view.of(view.update).gate == "passed"


def _going(pool: str) -> str:
    return f"Pool {pool}: {_BESIDE}, so old ones give way one by one, each before the new one that takes its place."
