"""One rollout as a step sees it: goals made feasible, which revisions can serve, and what each holds."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from control_plane.rollout.model import PoolTarget, RevisionObserved, RolloutSpec, RolloutState


@dataclass(frozen=True)
class View:
    """`goals` are the spec's, made feasible; `serving` are the revisions that may carry traffic now."""

    spec: RolloutSpec
    state: RolloutState
    observed: Mapping[str, RevisionObserved]
    stable: str | None
    rejected: bool
    """The spec's revision has failed and is to go."""
    goals: tuple[PoolTarget, ...] = field(init=False)
    serving: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        gated = self.gated(self.update) and self.of(self.update).gate != "passed"
        outage = allows_outage(self.spec, compared=gated)
        goals = feasible(self.spec.pools, self._alive(), self.in_place, outage)
        object.__setattr__(self, "goals", goals)
        object.__setattr__(self, "serving", self._serving())

    @property
    def update(self) -> str:
        return self.spec.revision

    @property
    def replaced(self) -> str | None:
        """The stable revision, where the spec asks for another."""
        return self.stable if self.stable != self.update else None

    @property
    def replacing(self) -> bool:
        """Whether the spec asks for another revision than the stable one."""
        return self.replaced is not None

    @property
    def in_place(self) -> frozenset[str]:
        """The pools whose old pods give way before new ones start."""
        known = self.state.in_place
        return frozenset(known.pools) if known is not None and known.revision == self.update else frozenset()

    @property
    def asleep(self) -> bool:
        """Scaled to zero: no pool wants a pod."""
        return all(goal.replicas == 0 for goal in self.goals)

    @property
    def others(self) -> tuple[str, ...]:
        """Left over from rollouts that were overtaken."""
        return tuple(sorted(name for name in self.observed if name not in (self.stable, self.update)))

    @property
    def old(self) -> tuple[str, ...]:
        """Every revision that the spec does not ask for, the fallback last."""
        return self.others + ((self.replaced,) if self.replaced is not None else ())

    @property
    def revisions(self) -> tuple[str, ...]:
        return (*self.old, self.update)

    def of(self, revision: str) -> RevisionObserved:
        return self.observed.get(revision, RevisionObserved())

    def replicas(self, revision: str) -> dict[str, int]:
        """Replicas that the revision's Deployments ask for, by pool."""
        return {goal.name: self.of(revision).pods(goal.name).replicas for goal in self.goals}

    def ready(self, revision: str) -> dict[str, int]:
        return {goal.name: self.of(revision).pods(goal.name).lasting for goal in self.goals}

    def gated(self, revision: str) -> bool:
        """A gate compares with an old revision: without one there is nothing to compare with."""
        return self.spec.gated and self.replacing and revision == self.update

    def _alive(self) -> int:
        names = {**dict.fromkeys(self.observed), self.update: None}
        has_pods = [name for name in names if any(pods.replicas for pods in self.of(name).pools.values())]
        return len(has_pods) + (self.update not in has_pods)

    def _routable(self, revision: str) -> bool:
        ready = all(count > 0 for count in self.ready(revision).values())
        return ready and (not self.gated(revision) or self.of(revision).gate == "passed")

    def _serving(self) -> tuple[str, ...]:
        routable = tuple(name for name in self.revisions if self._routable(name))
        failure = self.state.failure
        if self.rejected and failure is not None and failure.kind == "errors" and self.stable in routable:
            # Wrong answers are worse than waiting for the others.
            return tuple(name for name in routable if name != self.update)
        return routable


def allows_outage(spec: RolloutSpec, *, compared: bool) -> bool:
    """Whether all old pods may go before a new one serves: as many as there are may be unavailable, and none has to
    stay for its part of the traffic or to be `compared` with."""
    covered = all(pool.unavailable >= max(1, pool.replicas) for pool in spec.pools)
    return covered and spec.weight == 100 and not compared


def feasible(
    pools: tuple[PoolTarget, ...], alive: int, in_place: Collection[str] = (), outage: bool = False
) -> tuple[PoolTarget, ...]:
    """The goals under which a rollout can always go on, for `alive` revisions with pods.

    Scaling to zero is one decision for a service: while one pool wants a pod, every pool has one, and never are all
    of a pool's pods unavailable on purpose, unless a pool of one pod goes `in_place` and an `outage` is allowed. A
    pool of one pod, or one that may neither be exceeded nor undercut, is exceeded by one, since the old revision
    keeps a pod in each pool as long as it serves. Each further revision that is still alive needs one more, for the
    same reason. A pool of several pods that goes in place is undercut by one instead.
    """
    awake = any(pool.replicas for pool in pools)
    goals = tuple(replace(pool, replicas=max(pool.replicas, 1) if awake else 0) for pool in pools)
    if outage and awake and any(goal.replicas == 1 and goal.name in in_place for goal in goals):
        return tuple(replace(goal, unavailable=goal.replicas) for goal in goals)
    return tuple(_feasible(goal, alive, goal.name in in_place) for goal in goals)


def _feasible(pool: PoolTarget, alive: int, in_place: bool) -> PoolTarget:
    surge, unavailable = pool.surge, pool.unavailable
    if in_place and pool.replicas > 1:
        surge, unavailable = 0, max(1, unavailable)
    if pool.replicas <= 1 or unavailable == 0:
        surge = max(surge, 1)
    if alive > 2:
        surge = max(surge, alive - 1)
    return replace(pool, surge=surge, unavailable=min(unavailable, max(0, pool.replicas - 1)))
