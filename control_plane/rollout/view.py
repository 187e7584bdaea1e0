"""One rollout as a step sees it: goals made feasible, which revisions can serve, and what each holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
        object.__setattr__(self, "goals", feasible(self.spec.pools, self._alive()))
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


def feasible(pools: tuple[PoolTarget, ...], alive: int) -> tuple[PoolTarget, ...]:
    """The goals under which a rollout can always go on, for `alive` revisions with pods.

    Scaling to zero is one decision for a service: while one pool wants a pod, every pool has one, and never are all
    of a pool's pods unavailable on purpose. A pool of one pod, or one that may neither be exceeded nor undercut, is
    exceeded by one, since the old revision keeps a pod in each pool as long as it serves. Each further revision that
    is still alive needs one more, for the same reason.
    """
    awake = any(pool.replicas for pool in pools)
    return tuple(_feasible(pool, max(pool.replicas, 1) if awake else 0, alive) for pool in pools)


def _feasible(pool: PoolTarget, replicas: int, alive: int) -> PoolTarget:
    surge = pool.surge
    if replicas <= 1 or pool.unavailable == 0:
        surge = max(surge, 1)
    if alive > 2:
        surge = max(surge, alive - 1)
    return PoolTarget(pool.name, replicas, surge, min(pool.unavailable, max(0, replicas - 1)))
