"""Inputs and results of the rollout decision. Plain values: no cluster, no clock.

A revision spans all pools of a service: prefill pods of one revision serve only with decode pods of the same. So
every number here is per (pool, revision), and a revision counts as routable only when each of its pools has a ready
pod.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

GateResult = Literal["not_required", "unknown", "passed", "failed", "not_compared"]
FailureKind = Literal["gate", "deadline", "errors", "slo"]


@dataclass(frozen=True)
class PoolTarget:
    """One pool of the spec. `replicas` is what scaling wants now; `surge` and `unavailable` are pods, not percent."""

    name: str
    replicas: int
    surge: int = 1
    unavailable: int = 0

    def __post_init__(self) -> None:
        assert min(self.replicas, self.surge, self.unavailable) >= 0


@dataclass(frozen=True)
class RolloutSpec:
    """The rollout that the user asks for: `revision` is to have `weight` percent; 100 replaces the others."""

    revision: str
    pools: tuple[PoolTarget, ...]
    weight: int = 100
    paused: bool = False
    auto_rollback: bool = True
    progress_deadline_s: float = 1800.0
    gated: bool = False
    error_budget: float = 0.01
    """Share of requests that may fail, and by how much a new revision may be worse than the old one."""
    in_place: bool = True
    """Old pods may give way first where no node has room for new ones beside them."""
    in_place_after_s: float = 60.0
    """Seconds that a new pod waits for room before an old one gives way."""

    def __post_init__(self) -> None:
        assert self.pools, "a service has at least one pool"
        assert 0 <= self.weight <= 100


@dataclass(frozen=True)
class Health:
    """Requests of one revision that routers saw finish during the rollout, and how many of them were bad."""

    requests: int = 0
    errors: int = 0
    slo_misses: int = 0


@dataclass(frozen=True)
class PoolPods:
    """One Deployment: its `spec.replicas`, and how many of its pods are ready and proven routable."""

    replicas: int = 0
    ready: int = 0

    @property
    def lasting(self) -> int:
        """Ready pods that stay when nothing is done."""
        return min(self.replicas, self.ready)


@dataclass(frozen=True)
class NoRoom:
    """Pods of one pool and revision for which no node has what they need, since `since` (wall-clock seconds)."""

    since: float
    in_vain: str = ""
    """Why they would find no room either if a pod of the other revision gave way, without a full stop; empty where
    they would."""


@dataclass(frozen=True)
class RevisionObserved:
    """One revision in the cluster, by pool name; a pool that is absent has no pods."""

    pools: Mapping[str, PoolPods] = field(default_factory=dict)
    gate: GateResult = "unknown"
    health: Health = Health()
    trouble: str = ""
    """What keeps its pods from coming up, without a full stop; empty when nothing is known to."""
    gate_trouble: str = ""
    """What keeps its comparison with the old revision from being made, without a full stop; empty when nothing is
    known to."""
    no_room: Mapping[str, NoRoom] = field(default_factory=dict)
    """Its pools with pods that no node has room for, by name."""

    def pods(self, pool: str) -> PoolPods:
        return self.pools.get(pool, PoolPods())


@dataclass(frozen=True)
class Failure:
    """The reason why a revision must not be rolled out. It is forgotten when the spec asks for another revision."""

    revision: str
    kind: FailureKind
    sentence: str


@dataclass(frozen=True)
class Progress:
    """Progress of a rollout: it has not come nearer to its end since `since` (wall-clock seconds); `left` pods are to
    change."""

    aim: str
    wanted: str
    left: int
    since: float


@dataclass(frozen=True)
class InPlace:
    """The pools whose old pods give way before new ones of `revision` start. It is forgotten when the spec asks for
    another revision."""

    revision: str
    pools: tuple[str, ...]


@dataclass(frozen=True)
class RolloutState:
    """State that one step leaves to the next, kept in the service's status. Losing it costs time, never traffic.

    `weights` are those that routers have been given: percent of new sessions per revision, in sum 100 or empty.
    """

    stable: str | None = None
    weights: Mapping[str, int] = field(default_factory=dict)
    failure: Failure | None = None
    progress: Progress | None = None
    in_place: InPlace | None = None


@dataclass(frozen=True)
class SurgeReport:
    """What becomes of a pool whose new pods find no room beside the old ones: a CamelCase reason and a sentence."""

    pool: str
    reason: str
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """The state of a rollout: a CamelCase reason for conditions and events, and a sentence for people."""

    reason: str
    message: str
    done: bool = False
    stalled: bool = False


@dataclass(frozen=True)
class RolloutPlan:
    """The next desired state of a rollout. Every part may be applied without the others, in any order, or not at
    all."""

    replicas: Mapping[tuple[str, str], int]
    """Pods per (pool, revision), for every revision that is in the cluster or wanted."""
    weights: Mapping[str, int]
    state: RolloutState
    verdict: Verdict
    retired: tuple[str, ...]
    """Revisions without pods that are no longer needed: their Deployments can be deleted."""
    requeue_after_s: float | None
    surges: tuple[SurgeReport, ...] = ()
    """Of pools whose new pods find no room, those that nothing is done for first."""
