"""A small cluster for rollouts: pods become ready late or never, die, and plans are applied in part."""

from dataclasses import dataclass, field, replace

from control_plane.rollout import (
    Health,
    NoRoom,
    PoolPods,
    PoolTarget,
    RevisionObserved,
    RolloutPlan,
    RolloutSpec,
    RolloutState,
    step,
)
from control_plane.rollout.view import feasible

NEVER_READY, WRONG, REFUSED, SLOW = "never-ready", "wrong", "refused", "slow"
"""Revisions that cannot be rolled out: a pool that does not start, errors, a gate that fails, a missed SLO."""
GOOD = ("one", "two", "three")
READY_AFTER_S = 30.0
POOLS = (PoolTarget("prefill", 2), PoolTarget("decode", 6))


@dataclass
class Pod:
    """One pod; it is ready from `ready_at` on. Since `unplaced_at` no node has had room for it; None: one has."""

    ready_at: float
    unplaced_at: float | None = None
    placed: bool = True

    def ready(self, now: float) -> bool:
        return self.ready_at <= now


@dataclass
class RolloutWorld:
    """The cluster, the spec, and the state that the last complete write left."""

    spec: RolloutSpec
    now: float = 0.0
    state: RolloutState = field(default_factory=RolloutState)
    pods: dict[tuple[str, str], list[Pod]] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    gates: dict[str, str] = field(default_factory=dict)
    last: RolloutPlan | None = None
    room: dict[str, int] = field(default_factory=dict)
    """Pods of a pool that nodes have room for; any number where it is absent."""

    def observed(self) -> dict[str, RevisionObserved]:
        revisions = dict.fromkeys(name for _, name in self.pods)
        return {name: self._revision(name) for name in revisions}

    def _revision(self, name: str) -> RevisionObserved:
        pools = {
            pool: PoolPods(len(pods), sum(pod.ready(self.now) for pod in pods))
            for (pool, revision), pods in self.pods.items()
            if revision == name
        }
        bad = 100 if self.told.get(name) else 0
        health = Health(1000, bad if name == WRONG else 0, bad if name == SLOW else 0)
        no_room = {
            pool: NoRoom(min(waits))
            for (pool, revision), pods in self.pods.items()
            if revision == name and (waits := [pod.unplaced_at for pod in pods if pod.unplaced_at is not None])
        }
        return RevisionObserved(pools, self.gates.get(name, "unknown"), health, no_room=no_room)  # type: ignore[arg-type]

    def decide(self) -> RolloutPlan:
        self.last = step(self.state, self.spec, self.observed(), self.now)
        return self.last

    def apply(self, plan: RolloutPlan, crash: int | None = None) -> None:
        """Carry out the plan; with `crash`, only the writes whose bits are set."""
        for number, ((pool, name), count) in enumerate(sorted(plan.replicas.items())):
            if crash is None or crash >> (number + 1) & 1:
                self._scale(pool, name, count)
        self._place()
        if crash is None or crash & 1:
            self.state, self.told = plan.state, dict(plan.weights)
        if crash is None:
            for key in [key for key in self.pods if key[1] in plan.retired]:
                del self.pods[key]

    def _scale(self, pool: str, name: str, count: int) -> None:
        pods = self.pods.setdefault((pool, name), [])
        pods.sort(key=lambda pod: pod.ready_at)  # what is not ready goes first
        del pods[count:]
        never = name == NEVER_READY and pool == self.spec.pools[-1].name
        starts = float("inf") if never or pool in self.room else self.now + READY_AFTER_S
        pods += [Pod(starts, placed=pool not in self.room) for _ in range(count - len(pods))]

    def _place(self) -> None:
        """As a scheduler: pods that wait get a node as soon as another one of their pool has left it."""
        for pool, most in self.room.items():
            pods = [(name, pod) for (of, name), pods in self.pods.items() if of == pool for pod in pods]
            free = most - sum(pod.placed for _, pod in pods)
            for name, pod in pods:
                if pod.placed:
                    continue
                if free > 0:
                    free -= 1
                    never = name == NEVER_READY and pool == self.spec.pools[-1].name
                    pod.placed, pod.unplaced_at = True, None
                    pod.ready_at = float("inf") if never else self.now + READY_AFTER_S
                elif pod.unplaced_at is None:
                    pod.unplaced_at = self.now

    def kill(self, number: int) -> None:
        """A pod dies and is started again."""
        pods = [pod for _, pods in sorted(self.pods.items()) for pod in pods]
        if pods:
            victim = pods[number % len(pods)]
            victim.ready_at = max(victim.ready_at, self.now + READY_AFTER_S)

    def verify(self) -> None:
        """The gate of the update revision gives its answer, once it has pods."""
        name = self.spec.revision
        if all(self.ready(pool.name, name) for pool in self.spec.pools):
            self.gates[name] = "failed" if name == REFUSED else "passed"

    def scale(self, number: int, replicas: int) -> None:
        pools = list(self.spec.pools)
        pools[number % len(pools)] = replace(pools[number % len(pools)], replicas=replicas)
        self.spec = replace(self.spec, pools=tuple(pools))

    def goals(self) -> tuple[PoolTarget, ...]:
        revisions = {name for (_, name), pods in self.pods.items() if pods} | {self.spec.revision}
        known = self.last.state.in_place if self.last is not None else None
        pools = known.pools if known is not None and known.revision == self.spec.revision else ()
        return feasible(self.spec.pools, len(revisions), pools)

    def ready(self, pool: str, name: str) -> int:
        return sum(pod.ready(self.now) for pod in self.pods.get((pool, name), []))

    def count(self, pool: str, name: str | None = None) -> int:
        return sum(len(pods) for key, pods in self.pods.items() if key[0] == pool and name in (None, key[1]))

    def routable(self, name: str) -> bool:
        return all(self.ready(pool.name, name) for pool in self.spec.pools)

    def reachable(self) -> bool:
        """Whether a request finds a revision: routers have been told of it, and each pool of it has a ready pod."""
        return any(weight and self.routable(name) for name, weight in self.told.items())

    def available(self, pool: str) -> int:
        names = dict.fromkeys(name for _, name in self.pods)
        return sum(self.ready(pool, name) for name in names if self.routable(name))

    def settle(self, seconds: float) -> None:
        """Let time pass, with every plan applied whole, until nothing changes any more or `seconds` are over."""
        end = self.now + seconds
        while self.now < end:
            self.now += 15.0
            if self.spec.gated:
                self.verify()
            self.apply(self.decide())
            if self._quiet():
                return

    def _quiet(self) -> bool:
        plan = self.decide()
        waits = any(self.now < pod.ready_at < float("inf") for pods in self.pods.values() for pod in pods)
        ended = plan.verdict.done or plan.verdict.reason == "RolledBack"
        return ended and not waits and plan.state == self.state and not plan.retired


def updating(revision: str = "two", **spec: object) -> RolloutWorld:
    """A world whose first revision serves alone, and whose spec asks for another."""
    world = RolloutWorld(RolloutSpec("one", POOLS, progress_deadline_s=300))
    world.settle(200)
    world.spec = replace(world.spec, revision=revision, **spec)  # type: ignore[arg-type]
    return world


def seen(*, starting: int = 0, **pods: int) -> RevisionObserved:
    """A revision with ready pods in each pool, and in each pool some more that are only starting."""
    return RevisionObserved({pool: PoolPods(count + starting, count) for pool, count in pods.items()})
