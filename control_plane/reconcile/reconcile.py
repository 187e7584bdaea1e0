"""Reconciles a service in one look: every object that it should consist of, its status, and the events about it.

Nothing is remembered here. What one look leaves to the next is in the cluster, so that it does not matter how much of
a plan was carried out before its operator died.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from control_plane.objects.children import (
    disruption_budget,
    engine_pool,
    headless_service,
    needed,
    scaled_object,
    trigger_authentication,
    undeclared,
)
from control_plane.objects.gate import gate_job, gate_prompts
from control_plane.objects.installation import Installation
from control_plane.objects.names import SCALED_BY, annotations_of, pool_name
from control_plane.objects.pruning import pruned
from control_plane.objects.revisions import controller_revision
from control_plane.observe.observed import Observed
from control_plane.reconcile import pool_status, service_status
from control_plane.reconcile.causes import gate_causes, news, next_due_s
from control_plane.reconcile.conditions import changed
from control_plane.reconcile.desired_state import (
    INVALID,
    DesiredState,
    alignment,
    causes_before,
    desired_state_of,
    gate_of,
    gate_trouble_before,
    revisions_seen,
    rollout_spec,
    rollout_state,
)
from control_plane.reconcile.history import expired_records
from control_plane.reconcile.kv_paths import awaits_paths
from control_plane.reconcile.plan import Deletion, Plan, PlannedEvent
from control_plane.reconcile.service_status import GOING_BACK, NOTICES, ServiceState, routable
from control_plane.reconcile.splitting import CONDITION
from control_plane.reconcile.workers import counts_of, deletion, deletion_costs, deletions, objects, old_gates
from control_plane.rollout import RolloutPlan, step
from tandem.kube.kinds import ENGINE_POOL, SCALED_OBJECT, TRIGGER_AUTHENTICATION, Json, ref_of
from tandem.spec.pool import Pool
from tandem.spec.status import EnginePoolStatus, ModelServiceStatus

_LOOK_AT_LOAD_S: Final = pool_status.LOAD_EVERY_S
_LOOK_AT_GATE_S: Final = 10.0
"""Seconds between looks at a comparison that is under way: nothing tells of one that cannot start."""


def reconcile(observed: Observed, now: float, installation: Installation) -> Plan:
    """The plan of what to do next for a service. `now` is wall-clock seconds."""
    if "deletionTimestamp" in observed.object["metadata"]:
        # What belongs to it goes with it.
        return Plan()
    goal = desired_state_of(observed, installation)
    rollout, counts = None, {}
    if goal.target is not None and _owned(observed, goal):
        aligned = alignment(observed, goal, goal.target)
        seen = revisions_seen(observed, goal, aligned, now)
        spec = rollout_spec(goal, goal.target, aligned.goals, installation)
        rollout = step(rollout_state(goal.status), spec, seen, now)
        counts = counts_of(observed, goal, aligned, rollout)
    retired = rollout.retired if rollout is not None else ()
    stands = service_status.service_state(observed, goal, rollout, now)
    statuses, notes = _statuses(observed, goal, rollout, stands, installation, now)
    return Plan(
        handovers=tuple(_handovers(observed, goal)),
        costs=tuple(deletion_costs(observed, counts)),
        apply=(
            *_records(observed, goal),
            *_pools(observed, goal, installation),
            *objects(observed, goal, counts, retired),
            *_gates(observed, goal, rollout, installation),
        ),
        delete=(
            *(deletions(observed, counts, retired) if rollout is not None else ()),
            *_gates_over(observed, goal, rollout),
            *_unwanted(observed, goal),
            *expired_records(observed, goal),
        ),
        statuses=statuses,
        notes=(*notes, *_undone(observed, goal)),
        requeue_after_s=_requeue(observed, goal, rollout, installation, now),
    )


def _owned(observed: Observed, goal: DesiredState) -> bool:
    """Whether every pool that is to have workers has an EnginePool, which is to own them."""
    return goal.target is not None and all(pool in observed.engine_pools for pool in goal.target.pools)


def _records(observed: Observed, goal: DesiredState) -> Iterator[Json]:
    """The record of a revision that is new; those that are there are never changed."""
    if goal.target is not None and goal.target.name not in observed.records and goal.target.spec:
        yield controller_revision(goal.target, observed.object)


def _spec_pools(goal: DesiredState) -> tuple[Pool, ...]:
    """Pools of a sound specification, also of one that cannot be carried out: their EnginePools say why."""
    sound = goal.blocked is None or goal.blocked.reason != INVALID
    return goal.service.spec.pools if goal.service is not None and sound else ()


def _pools(observed: Observed, goal: DesiredState, installation: Installation) -> Iterator[Json]:
    """EnginePools, and what belongs to those that are there."""
    for pool in _spec_pools(goal):
        yield engine_pool(observed.object, pool)
        owner = observed.engine_pools.get(pool.name)
        if owner is None:
            continue
        yield headless_service(observed.name, pool, owner)
        yield disruption_budget(observed.name, pool, owner)
        if pool.autoscaling is not None and observed.extensions.keda:
            authentication = trigger_authentication(observed.name, pool, owner, installation)
            if authentication is not None:
                yield authentication
            scaled = scaled_object(observed.name, pool, pool.autoscaling, owner, installation)
            schema = observed.extensions.keda_schema
            if not needed(undeclared(schema)):
                yield scaled if schema is None else pruned(scaled, schema)[0]


def _undone(observed: Observed, goal: DesiredState) -> Iterator[PlannedEvent]:
    """Events about pools whose number of workers was set from outside, though the service sets it. A service that was
    edited after its status was written sets another number itself."""
    if goal.status.observed_generation != observed.object["metadata"].get("generation", 0):
        return
    for pool in _spec_pools(goal):
        wanted = observed.wanted(pool.name)
        if pool.replicas is not None and wanted not in (None, pool.replicas):
            said = f"{wanted} workers were asked for from outside; the ModelService says {pool.replicas}, which holds"
            cure = f"change replicas of pool {pool.name} there, or leave it out to scale this object"
            obj = observed.engine_pools[pool.name]
            yield PlannedEvent(obj, "Warning", "ScaleUndone", f"{said}: {cure}.", of_apply=True)


def _handovers(observed: Observed, goal: DesiredState) -> Iterator[Json]:
    """EnginePools whose replicas the service no longer sets. The replicas stay as they are until the pool is scaled:
    without another manager they would fall back to the default."""
    for pool in _spec_pools(goal):
        obj = observed.engine_pools.get(pool.name)
        if obj is None or pool.replicas is not None or annotations_of(obj).get(SCALED_BY) != "spec":
            continue
        metadata = {key: obj["metadata"][key] for key in ("name", "namespace", "uid")}
        yield {
            "apiVersion": ENGINE_POOL.api_version,
            "kind": ENGINE_POOL.kind,
            "metadata": metadata,
            "spec": {
                **{key: obj["spec"][key] for key in ("modelServiceName", "pool", "role")},
                "replicas": observed.wanted(pool.name),
            },
        }


def _unwanted(observed: Observed, goal: DesiredState) -> Iterator[Deletion]:
    """EnginePools of pools that are gone, once nothing of them runs; and what scales a pool no longer."""
    if goal.blocked is not None or goal.service is None:
        return
    pools = {pool.name: pool for pool in goal.service.spec.pools}
    busy = {each.pool for each in observed.workers}
    for name, obj in observed.engine_pools.items():
        if name not in pools and name not in busy:
            yield deletion(ref_of(obj, ENGINE_POOL), obj)
    scaled = {pool_name(observed.name, pool.name) for pool in pools.values() if pool.autoscaling is not None}
    for kind in (SCALED_OBJECT, TRIGGER_AUTHENTICATION):
        for obj in observed.of_kind(kind):
            if obj["metadata"]["name"] not in scaled:
                yield deletion(ref_of(obj, kind), obj)


def _gates(
    observed: Observed, goal: DesiredState, rollout: RolloutPlan | None, installation: Installation
) -> Iterator[Json]:
    """The comparison of a new revision with the one that serves, once both can answer."""
    if rollout is None or goal.service is None or goal.target is None or goal.blocked is not None:
        return
    gate, old, new = goal.service.spec.rollout.gate, rollout.state.stable, goal.target.name
    if gate is None or old is None or old == new or rollout.state.failure is not None:
        return
    if new in observed.gates or not (routable(observed, goal, old) and routable(observed, goal, new)):
        return
    if gate.prompts_config_map is None:
        yield gate_prompts(observed.object, new)
    # One of those that answer: the others may have less than it takes to ask.
    answering = next(pool for _, pool in sorted(goal.target.pools.items()) if pool.role != "prefill")
    model = goal.service.model_name
    yield gate_job(observed.object, gate, model, old, new, answering.template, installation)


def _gates_over(observed: Observed, goal: DesiredState, rollout: RolloutPlan | None) -> Iterable[Deletion]:
    if rollout is None or goal.target is None:
        return ()
    return old_gates(observed, rollout.state.stable, goal.target.name, given_up=rollout.state.failure is not None)


def _statuses(
    observed: Observed,
    goal: DesiredState,
    rollout: RolloutPlan | None,
    stands: ServiceState,
    installation: Installation,
    now: float,
) -> tuple[tuple[Json, ...], tuple[PlannedEvent, ...]]:
    """The statuses that have changed, and the Events about those changes."""
    status = service_status.service_status(observed, goal, rollout, stands, installation, now)
    written: list[Json] = []
    notes: list[PlannedEvent] = []
    if _ordered(status) != _ordered(goal.status):
        written.append(service_status.as_object(observed, plain(status)))
        notes += _service_notes(observed, goal, status, stands)
        notes += _cause_notes(observed, goal, stands, now)
    for name, obj in sorted(observed.engine_pools.items()):
        after, before = (
            pool_status.pool_status(observed, goal, stands, name, now),
            pool_status.read_pool_status(obj),
        )
        if _ordered(after) != _ordered(before):
            written.append(pool_status.as_object(obj, plain(after)))
            notes += _pool_notes(obj, before, after)
    return tuple(written), tuple(notes)


def _service_notes(
    observed: Observed, goal: DesiredState, status: ModelServiceStatus, stands: ServiceState
) -> Iterator[PlannedEvent]:
    ready = next(each for each in status.conditions if each.type == "Ready")
    of_causes = any(ready.reason == cause.reason for cause in stands.causes)
    if changed(goal.status.conditions, "Ready", ready.reason) and not of_causes:
        yield PlannedEvent(
            observed.object, "Warning" if stands.verdict.stalled else "Normal", ready.reason, ready.message
        )
    for each in status.conditions:
        if each.type in NOTICES and changed(goal.status.conditions, each.type, each.reason):
            yield PlannedEvent(observed.object, "Warning", each.type, each.message)
    told = {each.name: each.weight for each in goal.status.revisions if each.weight}
    weights = {each.name: each.weight for each in status.revisions if each.weight}
    if weights != told and weights:
        shares = ", ".join(f"{weight} % to revision {name}" for name, weight in sorted(weights.items()))
        yield PlannedEvent(observed.object, "Normal", "TrafficShifted", f"New requests go {shares}.")


def _cause_notes(observed: Observed, goal: DesiredState, stands: ServiceState, now: float) -> Iterator[PlannedEvent]:
    """An Event for each cause that the status does not tell of yet."""
    if not (stands.ready or stands.verdict.reason in GOING_BACK):
        for cause in news(stands.causes, causes_before(goal)):
            yield PlannedEvent(observed.object, "Warning", cause.reason, f"{cause.phrase}.")
    gate = gate_of(observed, goal, observed.wish.revision)
    if gate is not None and gate.result == "unknown":
        before = gate_trouble_before(goal)
        for cause in news(gate_causes(gate, before, now), before):
            yield PlannedEvent(observed.object, "Warning", cause.reason, f"Comparison of answers: {cause.phrase}.")


def _pool_notes(obj: Json, before: EnginePoolStatus, after: EnginePoolStatus) -> Iterator[PlannedEvent]:
    for each in after.conditions:
        if each.type == "DoesNotFit" and each.status == "True" and changed(before.conditions, each.type, each.reason):
            yield PlannedEvent(obj, "Warning", each.type, each.message)
        if each.type == CONDITION and each.status == "False" and changed(before.conditions, each.type, each.reason):
            yield PlannedEvent(obj, "Normal", each.reason, each.message)


def plain(status: ModelServiceStatus | EnginePoolStatus) -> Json:
    """The status as it is applied: without the fields that are empty."""
    found: Json = msgspec.json.decode(msgspec.json.encode(status))
    return {key: value for key, value in found.items() if value is not None}


def _ordered(status: ModelServiceStatus | EnginePoolStatus) -> Json:
    """The status with its lists of named things sorted, since the API server keeps them in another order."""
    found = plain(status)
    for key in ("conditions", "revisions", "pools"):
        if key in found:
            found[key] = sorted(found[key], key=lambda each: str(each.get("type") or each.get("name")))
    return found


def _requeue(
    observed: Observed, goal: DesiredState, rollout: RolloutPlan | None, installation: Installation, now: float
) -> float | None:
    unheard = installation.in_cluster and awaits_paths(observed, goal)
    waits: Iterable[float | None] = (
        rollout.requeue_after_s if rollout is not None else None,
        next_due_s((*observed.pods, *observed.followers), now),
        _LOOK_AT_GATE_S if any(gate.result == "unknown" for gate in observed.gates.values()) else None,
        _LOOK_AT_LOAD_S if unheard or any(pod.running or pod.queued_tokens for pod in observed.pods) else None,
    )
    return min((wait for wait in waits if wait is not None), default=None)
