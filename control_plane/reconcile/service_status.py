"""The status of a ModelService."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from control_plane.objects.installation import Installation
from control_plane.objects.scheduling import unnamed_devices
from control_plane.observe.observed import Observed
from control_plane.observe.pods import seconds
from control_plane.reconcile.causes import HELD_UP, Cause, cut, told, worker_causes
from control_plane.reconcile.conditions import ConditionUpdate, condition_update, conditions
from control_plane.reconcile.desired_state import DesiredState, causes_before, rollout_state
from control_plane.reconcile.kv_paths import awaits_paths, kv_over_tcp
from control_plane.rollout import RolloutPlan, RolloutState, Verdict
from tandem.kube.kinds import MODEL_SERVICE, Json
from tandem.spec.service import ModelService, RouterSpec
from tandem.spec.status import WORD_MAX, Condition, ModelServiceStatus, PoolStatus, RevisionStatus, RolloutStatus

_RESTING: Final = ("WeightReached", "Paused")
HEARD_WITHIN_S: Final = 30.0
"""Seconds that a complete service waits for routers before it counts as ready. Routers learn of a change at once,
after an outage of the API server within seconds; a broken router holds up no service for longer."""
FIELDS_IGNORED: Final = "FieldsIgnored"
AWAITS_TURN: Final = "AwaitsTurn"
NEXT_REVISION: Final = "AwaitsNextRevision"
UNNAMED_DEVICE: Final = "NetworkNotNamed"
KV_OVER_TCP: Final = "KvOverTcp"
NO_SURGE: Final = "SurgeWithoutRoom"
NOTICES: Final = (FIELDS_IGNORED, NEXT_REVISION, UNNAMED_DEVICE, KV_OVER_TCP, NO_SURGE)
"""Conditions that only say something, and are there only while there is something to say."""
_OF_ONE_MACHINE: Final = {"router": RouterSpec(), "store": None}
"""Parts of a specification that are for a platform on one machine, with their defaults."""
_NAMED_MAX: Final = 3
GOING_BACK: Final = ("RollingBack", "RolledBack")
"""Reasons of verdicts that have the cause in their sentence."""
_STARTING: Final = Verdict("Progressing", "Its pools are being made.")


@dataclass(frozen=True)
class ServiceState:
    """The state of a service. `verdict` is that of the rollout, or of what blocks it."""

    verdict: Verdict
    available: bool
    asleep: bool
    causes: tuple[Cause, ...] = ()
    """What keeps its workers from coming up, worst first."""

    @property
    def ready(self) -> bool:
        rests = self.verdict.reason in _RESTING and self.available
        return (self.verdict.done or rests) and not self.verdict.stalled


def service_state(observed: Observed, goal: DesiredState, plan: RolloutPlan | None, now: float) -> ServiceState:
    """`plan` is None while there is nothing to roll out."""
    causes = worker_causes(observed, causes_before(goal), now)
    weights = plan.weights if plan is not None else rollout_state(goal.status).weights
    available = any(weight and routable(observed, goal, name) for name, weight in weights.items())
    asleep = plan is not None and plan.verdict.reason == "ScaledToZero"
    if goal.blocked is not None:
        kept = f" Revision {goal.target.name} goes on." if goal.target is not None else ""
        said = f"{goal.blocked.sentence}{kept}"
        return ServiceState(Verdict(goal.blocked.reason, said, stalled=True), available, asleep, causes)
    verdict = _STARTING if plan is None else plan.verdict
    if goal.awaits_turn and (verdict.done or not verdict.stalled):
        what = f"Revision {observed.wish.revision} takes over new defaults of the installation when its turn comes"
        reason = AWAITS_TURN if verdict.done else verdict.reason
        verdict = replace(verdict, reason=reason, message=f"{verdict.message} {what}.")
    return ServiceState(verdict, available, asleep, causes)


def routable(observed: Observed, goal: DesiredState, revision: str) -> bool:
    """Whether every pool of the revision has a worker that takes work."""
    record = goal.records.get(revision)
    return record is not None and all(observed.ready(pool, revision) for pool in record.pools)


def service_status(
    observed: Observed,
    goal: DesiredState,
    plan: RolloutPlan | None,
    stands: ServiceState,
    installation: Installation,
    now: float,
) -> ModelServiceStatus:
    """The status to write for the service."""
    generation = int(observed.object["metadata"].get("generation", 0))
    state = plan.state if plan is not None else rollout_state(goal.status)
    weights = dict(state.weights)
    stable = state.stable or ""
    update = goal.target.name if goal.target is not None and goal.target.name != stable else ""
    before = next((each for each in goal.status.conditions if each.type == "Ready"), None)
    pools = tuple(_pools(observed, goal))
    ready = _ready(stands, causes_before(goal), _unheard(observed, weights), before, now)
    return ModelServiceStatus(
        observed_generation=generation,
        url=installation.service_url,
        current_revision=stable,
        update_revision=update,
        update_weight=weights.get(update, 0) if update else None,
        revisions=tuple(_revisions(observed, goal, weights)),
        ready_workers=sum(pool.ready_replicas for pool in pools),
        wanted_workers=sum(observed.wanted(pool.name) or 0 for pool in pools),
        pools=pools,
        rollout=_kept(state),
        conditions=conditions(
            goal.status.conditions,
            (*_sayings(stands, ready), *_surges(plan), *_notices(observed, goal, installation)),
            generation,
            now,
        ),
    )


def as_object(observed: Observed, status: Json) -> Json:
    """The object of a status write."""
    metadata = observed.object["metadata"]
    return {
        "apiVersion": MODEL_SERVICE.api_version,
        "kind": MODEL_SERVICE.kind,
        "metadata": {key: metadata[key] for key in ("name", "namespace", "uid")},
        "status": status,
    }


def awaits_routers(observed: Observed) -> bool:
    """Whether a service that is complete still waits for routers to know its revisions."""
    stated = (observed.object.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "Unknown" for each in stated)


def _unheard(observed: Observed, weights: dict[str, int]) -> str:
    """One sentence about the routers that do not know every revision that should get requests; empty when there are
    none."""
    wanted = {name for name, weight in weights.items() if weight}
    names = sorted(name for name, known in observed.routers.items() if not wanted <= known)
    if not names:
        return ""
    others = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"Routers that do not know which revisions get requests: {', '.join(names[:_NAMED_MAX])}{others}."


def _ready(
    stands: ServiceState, told_before: str, unheard: str, before: Condition | None, now: float
) -> ConditionUpdate:
    """The Ready condition of a service. The service becomes ready when every router that takes requests knows it, or
    has had its time to learn of it. A service that was ready stays ready: requests find it."""
    verdict = stands.verdict
    if not stands.ready:
        causes = () if verdict.reason in GOING_BACK else stands.causes
        if not causes:
            return condition_update("Ready", False, verdict.reason, verdict.message)
        reason = verdict.reason if verdict.stalled else causes[0].reason
        return condition_update("Ready", False, reason, f"{verdict.message}{HELD_UP}{told(causes, told_before)}.")
    if not unheard or (before is not None and before.status == "True"):
        return condition_update("Ready", True, verdict.reason, verdict.message)
    since = seconds(before.last_transition_time) if before is not None and before.status == "Unknown" else None
    if since is None or now - since < HEARD_WITHIN_S:
        return ConditionUpdate("Ready", "Unknown", "RoutersNotReached", unheard)
    return condition_update("Ready", True, verdict.reason, f"{verdict.message} {unheard}")


def _sayings(stands: ServiceState, ready: ConditionUpdate) -> Iterator[ConditionUpdate]:
    verdict, said = stands.verdict, (ready.reason, ready.message)
    yield ready
    reconciling = (ready.status != "True" or verdict.reason == AWAITS_TURN) and not verdict.stalled
    yield condition_update("Reconciling", reconciling, *(said if reconciling else ("Settled", "")))
    yield condition_update("Stalled", verdict.stalled, *(said if verdict.stalled else ("Going", "")))
    if stands.available:
        yield condition_update("Available", True, "Routable", "Every pool of a revision with traffic has a worker.")
    elif stands.asleep:
        yield condition_update("Available", False, "ScaledToZero", "The first request wakes the service.")
    else:
        yield condition_update("Available", False, "NoRoutableRevision", "No revision has a worker in every pool.")


def _surges(plan: RolloutPlan | None) -> Iterator[ConditionUpdate]:
    """The condition for new workers that find no room beside the old ones; none where all do."""
    if plan is not None and plan.surges:
        yield condition_update(NO_SURGE, True, plan.surges[0].reason, " ".join(each.sentence for each in plan.surges))


def _notices(observed: Observed, goal: DesiredState, installation: Installation) -> Iterator[ConditionUpdate]:
    """Conditions for what the specification says in vain, or for later; none where it says nothing of the kind."""
    service = observed.wish.service
    if service is None:
        return
    if waiting := tuple(_waiting(service, goal)):
        said = f"{'; '.join(waiting)}. Pods have their drain from their start, and are not replaced for another one."
        yield condition_update(NEXT_REVISION, True, "DrainSeconds", said)
    if not installation.in_cluster:
        return
    records = goal.target.pools if goal.target is not None else {}
    unnamed = [
        sentence
        for pool in service.spec.pools
        if pool.name in records and (sentence := unnamed_devices(pool, records[pool.name].template)) is not None
    ]
    if unnamed:
        yield condition_update(UNNAMED_DEVICE, True, UNNAMED_DEVICE, " ".join(unnamed))
    before = next((each for each in goal.status.conditions if each.type == KV_OVER_TCP), None)
    if slow := tuple(kv_over_tcp(observed, goal)):
        yield condition_update(KV_OVER_TCP, True, KV_OVER_TCP, " ".join(slow))
    elif before is not None and awaits_paths(observed, goal):
        # Routers that restart do not know yet; nothing says that it is over.
        yield condition_update(KV_OVER_TCP, True, KV_OVER_TCP, before.message)
    found = [name for name, said in _OF_ONE_MACHINE.items() if getattr(service.spec, name) != said]
    if found:
        names = " and ".join(f"spec.{name}" for name in found)
        why = "in a cluster routers and KV stores are the chart's (values router and kvStore)"
        yield condition_update(FIELDS_IGNORED, True, FIELDS_IGNORED, f"{names}: for `tandem up` alone; {why}.")


def _waiting(service: ModelService, goal: DesiredState) -> Iterator[str]:
    """Drain times that hold from the next revision: those of the target's pods are others."""
    pools = goal.target.spec.get("pools", ()) if goal.target is not None else ()
    running = {each["name"]: each.get("drainSeconds") for each in pools}
    for pool in service.spec.pools:
        has = running.get(pool.name)
        if has is not None and has != pool.drain_seconds:
            yield f"drainSeconds {pool.drain_seconds} of pool {pool.name} holds from the next revision (now {has})"


def _revisions(observed: Observed, goal: DesiredState, weights: dict[str, int]) -> Iterator[RevisionStatus]:
    names = {each.revision for each in observed.workers} | set(weights)
    for name in sorted(names):
        yield RevisionStatus(name, weights.get(name, 0), routable(observed, goal, name))


def _pools(observed: Observed, goal: DesiredState) -> Iterator[PoolStatus]:
    newest = goal.target.name if goal.target is not None else ""
    for name in sorted({*observed.engine_pools, *(each.pool for each in observed.workers)}):
        pods = observed.pods_of(name)
        staying = [pod for pod in pods if not pod.leaving]
        yield PoolStatus(
            name=name,
            replicas=len(staying),
            ready_replicas=sum(pod.ready for pod in staying),
            updated_replicas=sum(pod.revision == newest for pod in staying),
            draining_replicas=len(pods) - len(staying),
        )


def _kept(state: RolloutState) -> RolloutStatus | None:
    failure, progress, in_place = state.failure, state.progress, state.in_place
    kept: dict[str, Any] = {}
    if failure is not None:
        kept |= {"failed_revision": failure.revision, "failure_kind": failure.kind}
        kept["failure_message"] = cut(failure.sentence, WORD_MAX)
    if progress is not None:
        kept |= asdict(progress)
    if in_place is not None:
        kept |= {"in_place_revision": in_place.revision, "in_place_pools": in_place.pools}
    return RolloutStatus(**kept) if kept else None
