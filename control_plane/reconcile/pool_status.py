"""The status of an EnginePool."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from control_plane.objects.children import KEDA_SINCE, needed, undeclared
from control_plane.objects.names import LEADER, POOL, SERVICE, pool_name
from control_plane.observe.observed import Observed, Pod
from control_plane.observe.pods import seconds
from control_plane.reconcile.capacity_check import pools_unchecked
from control_plane.reconcile.causes import NO_ROOM, told, worker_causes
from control_plane.reconcile.conditions import ConditionUpdate, condition_update, conditions
from control_plane.reconcile.desired_state import DesiredState
from control_plane.reconcile.service_status import ServiceState
from control_plane.reconcile.splitting import split_condition
from tandem.kube.kinds import ENGINE_POOL, SCALED_OBJECT, Json, Ref
from tandem.kube.times import timestamp
from tandem.spec.pool import Pool
from tandem.spec.status import EnginePoolStatus, Load

WORKERS_FAILING: Final = "WorkersFailing"
LOAD_EVERY_S: Final = 30.0
"""Minimum seconds between writes of a changed load."""


def pool_status(
    observed: Observed, goal: DesiredState, stands: ServiceState, name: str, now: float
) -> EnginePoolStatus:
    """The status to write for the pool `name`, whose EnginePool exists."""
    obj = observed.engine_pools[name]
    before = read_pool_status(obj)
    pods = observed.pods_of(name)
    staying = tuple(pod for pod in pods if not pod.leaving)
    newest = goal.target.name if goal.target is not None else ""
    generation = int(obj["metadata"].get("generation", 0))
    return EnginePoolStatus(
        observed_generation=generation,
        replicas=len(staying),
        selector=_selector(observed, goal, name),
        ready_replicas=sum(pod.ready for pod in staying),
        updated_replicas=sum(pod.revision == newest for pod in staying),
        draining_replicas=len(pods) - len(staying),
        load=_load(before.load, staying, now),
        conditions=conditions(
            before.conditions, _sayings(observed, goal, stands, name, staying, now), generation, now
        ),
    )


def read_pool_status(obj: Json) -> EnginePoolStatus:
    """The status of the EnginePool as it was last written; a status that cannot be read counts as empty."""
    plain: Any = obj.get("status") or {}
    try:
        return msgspec.convert(plain, EnginePoolStatus)
    except msgspec.ValidationError:
        return EnginePoolStatus()


def as_object(obj: Json, status: Json) -> Json:
    """The object of a status write."""
    metadata = {key: obj["metadata"][key] for key in ("name", "namespace", "uid")}
    return {
        "apiVersion": ENGINE_POOL.api_version,
        "kind": ENGINE_POOL.kind,
        "metadata": metadata,
        "status": status,
    }


def _sayings(
    observed: Observed, goal: DesiredState, stands: ServiceState, name: str, staying: tuple[Pod, ...], now: float
) -> Iterator[ConditionUpdate]:
    spec = _spec(goal, name)
    misfit = goal.blocked.pools.get(name) if goal.blocked is not None else None
    wanted, ready = observed.wanted(name) or 0, sum(pod.ready for pod in staying)
    failing, short = _troubles(observed, name, now)
    stalled = misfit is not None or stands.verdict.stalled
    complete = ready >= wanted and stands.ready
    counted = f"{ready} of {wanted} workers are ready."
    hurt = failing.reason if failing.status == "True" else NO_ROOM if short.status == "True" else ""
    reason = "DoesNotFit" if misfit else hurt or stands.verdict.reason
    yield condition_update("Ready", complete, "Complete" if complete else reason, misfit or counted)
    yield condition_update(
        "Reconciling",
        not complete and not stalled,
        reason if not complete and not stalled else "Settled",
    )
    said = misfit or stands.verdict.message
    yield condition_update("Stalled", stalled, *((reason, said) if stalled else ("Going", "")))
    yield _scaling(observed, spec, name)
    yield failing
    yield short
    known = observed.model, observed.accelerator_bytes
    missing = "" if goal.service is None else pools_unchecked(goal.service, *known).get(name, "")
    fits = "NotChecked" if missing else "Fits"
    yield condition_update("DoesNotFit", misfit is not None, "TooLarge" if misfit else fits, misfit or missing)
    if goal.service is not None and spec is not None and spec.role == "auto":
        yield split_condition(goal.service, spec, observed.model)


def _troubles(observed: Observed, name: str, now: float) -> tuple[ConditionUpdate, ConditionUpdate]:
    """Whether workers of the pool fail, and whether they find no node, each in the words it was said in before."""
    said = {each.type: each.message for each in read_pool_status(observed.engine_pools[name]).conditions}
    before = said.get(WORKERS_FAILING, "")
    causes = worker_causes(observed, f"{before} {said.get(NO_ROOM, '')}", now, pool=name)
    failing = tuple(cause for cause in causes if cause.reason != NO_ROOM)
    unplaced = tuple(cause for cause in causes if cause.reason == NO_ROOM)
    short = told(unplaced, said.get(NO_ROOM, ""))
    return (
        condition_update(
            WORKERS_FAILING, bool(failing), failing[0].reason if failing else "None", _stop(told(failing, before))
        ),
        condition_update(NO_ROOM, bool(short), "Unschedulable" if short else "Placed", _stop(short)),
    )


def _stop(text: str) -> str:
    return f"{text}." if text else ""


def _scaling(observed: Observed, spec: Pool | None, name: str) -> ConditionUpdate:
    if spec is None:
        return condition_update("ScalingActive", False, "Leaving", "The service has no such pool any more.")
    if spec.replicas is not None:
        return condition_update("ScalingActive", False, "Fixed", "The service says how many workers there are.")
    if spec.autoscaling is None:
        return condition_update(
            "ScalingActive", True, "External", "Whoever scales this object says how many there are."
        )
    if not observed.extensions.keda:
        problem = "KEDA is not installed: scale this object by hand, or with a HorizontalPodAutoscaler."
        return condition_update("ScalingActive", False, "NoKeda", problem)
    lost = undeclared(observed.extensions.keda_schema)
    if missing := needed(lost):
        problem = f"KEDA here has no {', '.join(missing)} of a ScaledObject; take {KEDA_SINCE} or later."
        return condition_update("ScalingActive", False, "KedaTooOld", problem)
    ref = Ref(SCALED_OBJECT, observed.namespace, pool_name(observed.name, name))
    stated = (observed.children.get(ref, {}).get("status") or {}).get("conditions") or ()
    ready: Json = next((each for each in stated if each.get("type") == "Ready"), {})
    if ready.get("status") == "False":
        return condition_update("ScalingActive", False, "KedaRefused", str(ready.get("message", "")))
    said = "KEDA asks for the number of workers"
    if lost:
        said += f", without {', '.join(lost)}, which it does not know: scaling is exact from {KEDA_SINCE} on"
    return condition_update("ScalingActive", True, "Keda", f"{said}.")


def _spec(goal: DesiredState, name: str) -> Pool | None:
    if goal.service is None:
        return None
    return next((pool for pool in goal.service.spec.pools if pool.name == name), None)


def _selector(observed: Observed, goal: DesiredState, name: str) -> str:
    """The label selector that matches one pod per worker of a pool."""
    terms = [f"{SERVICE}={observed.name}", f"{POOL}={name}"]
    record = goal.target.pools.get(name) if goal.target is not None else None
    return ",".join([*terms, LEADER] if record is not None and record.nodes > 1 else terms)


def _load(before: Load | None, pods: tuple[Pod, ...], now: float) -> Load | None:
    """The load now, or what was written before where that is recent or the same."""
    fullest = max((pod.kv_used for pod in pods), default=0.0)
    load = Load(
        queued_tokens=sum(pod.queued_tokens for pod in pods),
        running_sequences=sum(pod.running for pod in pods),
        kv_used_percent=min(100, max(0, round(100 * fullest))),
        probed_at=before.probed_at if before is not None else None,
    )
    if load == (before or Load()):
        return before
    probed = seconds(before.probed_at) if before is not None else None
    if probed is not None and now - probed < LOAD_EVERY_S:
        return before
    return msgspec.structs.replace(load, probed_at=timestamp(now))
