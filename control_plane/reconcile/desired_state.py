"""Determines which revision should run, and how far the cluster is from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from control_plane.objects.installation import Installation, tenants_of
from control_plane.objects.revisions import PoolRecord, RevisionRecord, rendered
from control_plane.objects.scheduling import nodes_of
from control_plane.objects.workload import record_of
from control_plane.observe.observed import Gate, ModelFacts, Observed
from control_plane.reconcile.align import Alignment
from control_plane.reconcile.capacity_check import pools_over_capacity
from control_plane.reconcile.causes import HELD_UP, gate_verdict, told, worker_causes
from control_plane.reconcile.lacking_room import no_room
from control_plane.reconcile.turns import goes_on_with
from control_plane.rollout import (
    COMPARISON_WAITS,
    Failure,
    GateResult,
    Health,
    InPlace,
    PoolTarget,
    Progress,
    RevisionObserved,
    RolloutSpec,
    RolloutState,
    pool_target,
)
from tandem.core.config_facts import cannot_exchange
from tandem.kube.kinds import Json
from tandem.spec.pool import WHOLE, engine_of
from tandem.spec.rollout import Rollout
from tandem.spec.service import ModelService
from tandem.spec.status import ModelServiceStatus, RolloutStatus
from tandem.spec.vllm import kinds_served

INVALID: Final = "InvalidSpec"
NAME_CONFLICT: Final = "NameConflict"
NAME_NOT_ALLOWED: Final = "NameNotAllowed"
_UNKNOWN: Final[GateResult] = "unknown"


@dataclass(frozen=True)
class Blocked:
    """Why the specification is not carried out; `pools` are those that do not fit."""

    reason: str
    sentence: str
    pools: Mapping[str, str]


@dataclass(frozen=True)
class DesiredState:
    """`target` is the revision that pods are to be of; it differs from the specification's where that is blocked.
    None: nothing can be run yet, and nothing is touched."""

    service: ModelService | None
    target: RevisionRecord | None
    records: Mapping[str, RevisionRecord]
    blocked: Blocked | None
    status: ModelServiceStatus
    awaits_turn: bool = False
    """Whether the specification's revision is not the target yet because other services take over new defaults."""


def desired_state_of(observed: Observed, installation: Installation) -> DesiredState:
    """The state that the service is to reach."""
    status = read_status(observed.object)
    blocked = _blocked(observed, status, installation)
    service = observed.wish.service
    records = {**_without_record(observed), **observed.records}
    kept = goes_on_with(status)
    if blocked is None and service is not None and observed.turns and kept in records:
        return DesiredState(service, records[kept], records, None, status, awaits_turn=True)
    if blocked is None and service is not None:
        revision = observed.wish.revision
        number = max((record.number for record in observed.records.values()), default=0) + 1
        if revision not in observed.records:
            records[revision] = rendered(service, revision, number, installation)
        return DesiredState(service, records[revision], records, None, status)
    return DesiredState(service, records.get(status.current_revision), records, blocked, status)


def read_status(obj: Json) -> ModelServiceStatus:
    """The status of a ModelService as it was last written; a status that cannot be read counts as empty."""
    plain: Any = obj.get("status") or {}
    try:
        return msgspec.convert(plain, ModelServiceStatus)
    except msgspec.ValidationError:
        return ModelServiceStatus()


def _blocked(observed: Observed, status: ModelServiceStatus, installation: Installation) -> Blocked | None:
    wish = observed.wish
    if wish.problem is not None:
        return Blocked(INVALID, wish.problem, {})
    if wish.service is None:
        return Blocked(INVALID, "the specification cannot be read", {})
    if (refused := tenants_of(installation).refused(observed.object)) is not None:
        return Blocked(NAME_NOT_ALLOWED, f"It is not served: {refused}.", {})
    if observed.name_holder not in ("", f"{observed.namespace}/{observed.name}"):
        taken = f"{observed.name_holder} serves a model called {wish.service.model_name!r} already"
        return Blocked(NAME_CONFLICT, f"{taken}: delete one of them, or make one with another model.name.", {})
    wide = [pool for pool in wish.service.spec.pools if nodes_of(wish.service, pool) > 1]
    if wide and not observed.extensions.groups:
        needs = f"Workers of pool {wide[0].name} span nodes, for which this cluster lacks LeaderWorkerSet"
        return Blocked("NeedsLeaderWorkerSet", f"{needs}: install it.", {})
    parted = [pool.name for pool in wide if pool.role not in WHOLE]
    if parted:
        why = f"Workers of pool {parted[0]} span nodes, and ranks on other nodes cannot hand their KV over"
        return Blocked("CannotHandOver", f"{why}: use role unified or auto, fewer ranks or larger nodes.", {})
    if (refused := _cannot_hand_over(wish.service, observed.model)) is not None:
        return Blocked("CannotHandOver", f"{refused}. Use role unified or auto.", {})
    # What runs evidently fits, whatever the arithmetic says.
    if wish.revision == status.current_revision:
        return None
    found = pools_over_capacity(wish.service, observed.model, observed.accelerator_bytes)
    if not found:
        return None
    pool, why = next(iter(found.items()))
    return Blocked("DoesNotFit", f"Pool {pool} does not fit: {why}.", found)


def _cannot_hand_over(service: ModelService, model: ModelFacts | None) -> str | None:
    for pool in service.spec.pools:
        engine = engine_of(service.spec.engine, pool)
        if model is None or pool.role in WHOLE or engine.type != "vllm":
            continue
        if alone := cannot_exchange(kinds_served(model.config, engine)):
            return f"Workers of pool {pool.name} would hand KV over, and cannot: {alone}"
    return None


def _without_record(observed: Observed) -> dict[str, RevisionRecord]:
    """Revisions that have workers and whose ControllerRevision is gone."""
    found: dict[str, dict[str, PoolRecord]] = {}
    for each in observed.workers:
        if each.revision not in observed.records:
            found.setdefault(each.revision, {})[each.pool] = record_of(each.object)
    return {name: RevisionRecord(name, 0, pools, {}) for name, pools in found.items()}


def alignment(observed: Observed, goal: DesiredState, target: RevisionRecord) -> Alignment:
    """The target's pools with the numbers that scaling wants now."""
    rollout = goal.service.spec.rollout if goal.service is not None else Rollout()
    wanted = {name: _wanted(observed, goal, name) for name in _all_pools(goal)}
    goals = tuple(
        pool_target(name, wanted[name], rollout.max_surge, rollout.max_unavailable) for name in sorted(target.pools)
    )
    return Alignment(goals, {name: frozenset(record.pools) for name, record in goal.records.items()}, wanted)


def _all_pools(goal: DesiredState) -> list[str]:
    return sorted({pool for record in goal.records.values() for pool in record.pools})


def _wanted(observed: Observed, goal: DesiredState, name: str) -> int:
    """Replicas wanted of a pool. Replicas that the service sets take precedence over its EnginePool, which may not
    show them yet."""
    pools = {pool.name: pool for pool in goal.service.spec.pools} if goal.service is not None else {}
    own = pools.get(name)
    if own is not None and own.replicas is not None and goal.blocked is None:
        return own.replicas
    wanted = observed.wanted(name)
    if wanted is None:
        wanted = 1 if own is None else own.first_replicas
    if own is None or own.autoscaling is None:
        return wanted
    return min(max(wanted, own.autoscaling.min_replicas), own.autoscaling.max_replicas)


def rollout_spec(
    goal: DesiredState, target: RevisionRecord, goals: tuple[PoolTarget, ...], installation: Installation
) -> RolloutSpec:
    """The rollout that the user's specification asks for: how one revision replaces another."""
    if goal.service is None:
        return RolloutSpec(target.name, goals)
    spec = goal.service.spec
    return RolloutSpec(
        revision=target.name,
        pools=goals,
        weight=spec.rollout.weight,
        paused=spec.rollout.paused,
        auto_rollback=spec.rollout.auto_rollback,
        progress_deadline_s=float(spec.rollout.progress_deadline_seconds),
        gated=spec.rollout.gate is not None,
        error_budget=spec.slo.error_rate,
        in_place=spec.rollout.in_place == "WhenNoRoom",
        in_place_after_s=installation.in_place_after_s,
    )


def rollout_state(status: ModelServiceStatus) -> RolloutState:
    """The state that the last rollout step left, read from the status."""
    kept = status.rollout or RolloutStatus()
    failure = None
    if kept.failed_revision and kept.failure_kind:
        failure = Failure(kept.failed_revision, kept.failure_kind, kept.failure_message)
    progress = Progress(kept.aim, kept.wanted, kept.left, kept.since) if kept.aim else None
    weights = {each.name: each.weight for each in status.revisions if each.weight}
    in_place = InPlace(kept.in_place_revision, kept.in_place_pools) if kept.in_place_pools else None
    return RolloutState(status.current_revision or None, weights, failure, progress, in_place)


def revisions_seen(
    observed: Observed, goal: DesiredState, aligned: Alignment, now: float
) -> dict[str, RevisionObserved]:
    """Every revision that has workers, as a step sees it."""
    names = dict.fromkeys(each.revision for each in observed.workers)
    return {name: _seen(observed, goal, aligned, name, now) for name in sorted(names)}


def _seen(observed: Observed, goal: DesiredState, aligned: Alignment, name: str, now: float) -> RevisionObserved:
    plain = aligned.seen(observed, name)
    gate = gate_of(observed, goal, name)
    result, trouble = (_UNKNOWN, "") if gate is None else gate_verdict(gate, gate_trouble_before(goal), now)
    health = observed.health.get(name, Health())
    before = causes_before(goal)
    held_up = told(worker_causes(observed, before, now, revision=name), before)
    current, target = goal.status.current_revision, goal.target.name if goal.target is not None else ""
    other = current if name == target else target
    lacking = no_room(observed, goal.records, name, other) if name in (current, target) and current != target else {}
    return RevisionObserved(plain.pools, result, health, held_up, trouble, lacking)


def gate_of(observed: Observed, goal: DesiredState, revision: str) -> Gate | None:
    """The comparison of the revision with the one that serves now; None without such a one."""
    gate = observed.gates.get(revision)
    return gate if gate is not None and gate.baseline == goal.status.current_revision else None


def causes_before(goal: DesiredState) -> str:
    """What kept workers from coming up when the status was last written."""
    return _ready_before(goal).partition(HELD_UP)[2]


def gate_trouble_before(goal: DesiredState) -> str:
    """What kept the comparison from being made when the status was last written."""
    return _ready_before(goal).partition(COMPARISON_WAITS)[2].partition(HELD_UP)[0]


def _ready_before(goal: DesiredState) -> str:
    return next((each.message for each in goal.status.conditions if each.type == "Ready"), "")
