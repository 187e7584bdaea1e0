"""Computes how many pods each revision should have next, so that capacity and the ratio of the pools are kept.

Two moves, each safe by itself. *Lowering* removes pods only as far as ready pods of other serving revisions make up
for them. *Raising* adds pods only as far as every pool stays within its surge, counting pods that are being removed
as still there. Both move a revision by a share of the whole service, so its pools keep their ratio within one pod.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from control_plane.rollout.fractions import NOTHING, WHOLE, grain, largest, smallest
from control_plane.rollout.view import View

Shares = Mapping[str, Fraction]
"""The share that each revision is to have in the end; an absent revision has none."""


def wanted_shares(view: View) -> dict[str, Fraction]:
    """The share of the service that each revision should have, given the spec, the gate and failures."""
    if view.replaced is None:
        return {view.update: WHOLE}
    if view.rejected:
        return {view.replaced: WHOLE}
    weight = Fraction(view.spec.weight, 100)
    if view.gated(view.update) and view.of(view.update).gate != "passed":
        # One pod of each pool, which the old revision makes room for where it must not be exceeded.
        compared = min(weight, grain(view.goals))
        return {view.replaced: WHOLE - compared, view.update: compared}
    return {view.replaced: WHOLE - weight, view.update: weight}


def settled_pods(view: View, shares: Shares) -> dict[str, dict[str, int]]:
    """The pods of each revision once `shares` are reached."""
    pods = {name: dict.fromkeys(view.replicas(name), 0) for name in view.revisions}
    if view.asleep:
        return pods
    fallback = NOTHING if view.replaced is None else shares.get(view.replaced, NOTHING)
    own = {goal.name: min(goal.replicas, goal.replicas + goal.surge - (fallback > 0)) for goal in view.goals}
    pods[view.update] = largest(view.goals, own, shares.get(view.update, NOTHING))
    if view.replaced is not None:
        room = {goal.name: goal.replicas + goal.surge - pods[view.update][goal.name] for goal in view.goals}
        pods[view.replaced] = largest(view.goals, room, shares.get(view.replaced, NOTHING))
    return pods


@dataclass
class Split:
    """The pods per revision and pool as they are being worked out; `held` revisions keep what they have."""

    view: View
    shares: Shares
    held: bool
    pods: dict[str, dict[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.pods = {name: self.view.replicas(name) for name in self.view.revisions}

    def work_out(self) -> dict[str, dict[str, int]]:
        """The next pods of every revision, by pool."""
        if self.view.asleep:
            return {name: dict.fromkeys(pods, 0) for name, pods in self.pods.items()}
        for name in self._lowering_order():
            self._lower(name)
        for name in self._raising_order():
            self._raise(name)
        return self.pods

    def _lowering_order(self) -> tuple[str, ...]:
        """What was overtaken goes first. The order of the other two makes no difference: their shares make up the
        whole."""
        if self.held:
            return (self.view.replaced,) if self.view.replaced is not None else ()
        return self.view.revisions

    def _raising_order(self) -> tuple[str, ...]:
        replaced = (self.view.replaced,) if self.view.replaced is not None else ()
        return replaced if self.held else (*replaced, self.view.update)

    def _lower(self, name: str) -> None:
        floors = self._floors(name)
        if self.held:
            floors = {pool: max(count, self._room(name)[pool]) for pool, count in floors.items()}
        low = smallest(self.view.goals, floors, self.shares.get(name, NOTHING))
        self.pods[name] = {pool: min(count, low[pool]) for pool, count in self.pods[name].items()}

    def _floors(self, name: str) -> dict[str, int]:
        """The ready pods that `name` must keep so that no pool falls below what must be available.

        A revision that cannot serve holds up nothing; the stable one is kept all the same, to come back to.
        """
        if name not in self.view.serving and self.view.replacing and name != self.view.stable:
            return dict.fromkeys(self.pods[name], 0)
        return {
            goal.name: goal.replicas - goal.unavailable - self._ready_elsewhere(name, goal.name)
            for goal in self.view.goals
        }

    def _ready_elsewhere(self, name: str, pool: str) -> int:
        others = (other for other in self.view.serving if other != name)
        return sum(min(self.view.ready(other)[pool], self.pods[other][pool]) for other in others)

    def _raise(self, name: str) -> None:
        goals, room = self.view.goals, self._room(name)
        if name == self.view.replaced:
            # What is missing may take all room; the share that the weight leaves must not keep the update out.
            missing = smallest(goals, self._missing(name), NOTHING)
            missing = {pool: min(count, room[pool]) for pool, count in missing.items()}
            shared = settled_pods(self.view, self.shares)[name]
            shared = largest(
                goals, {pool: min(room[pool], shared[pool]) for pool in room}, self.shares.get(name, NOTHING)
            )
            high = {pool: max(missing[pool], shared[pool]) for pool in room}
        else:
            high = largest(goals, room, self.shares.get(name, NOTHING))
        self.pods[name] = {pool: max(count, high[pool]) for pool, count in self.pods[name].items()}

    def _missing(self, name: str) -> dict[str, int]:
        """Pods that the stable revision must have in each pool, counting pods of the others that are only
        starting."""
        others = [other for other in self.view.serving if other != name]
        return {
            goal.name: goal.replicas - goal.unavailable - sum(self.pods[other][goal.name] for other in others)
            for goal in self.view.goals
        }

    def _room(self, name: str) -> dict[str, int]:
        others = [other for other in self.view.revisions if other != name]
        return {
            goal.name: goal.replicas
            + goal.surge
            - sum(max(self.pods[other][goal.name], self.view.replicas(other)[goal.name]) for other in others)
            for goal in self.view.goals
        }
