"""The workers of every revision: what is to be applied, what deleted, and which pods are to go first."""

from collections.abc import Iterator, Mapping
from typing import Final

from control_plane.objects.children import config_map
from control_plane.objects.names import DELETION_COST, GATE, REVISION, labels_of
from control_plane.objects.workload import workload
from control_plane.observe.observed import Observed, Pod
from control_plane.reconcile.align import Alignment
from control_plane.reconcile.desired_state import DesiredState
from control_plane.reconcile.plan import Deletion
from control_plane.rollout import RolloutPlan
from tandem.kube.kinds import CONFIG_MAP, DEPLOYMENT, JOB, LEADER_WORKER_SET, POD, Json, Kind, Ref

_COST_MAX: Final = 1_000_000
_TOKENS_PER_SEQUENCE: Final = 1024
_REVISIONED: Final[tuple[Kind, ...]] = (DEPLOYMENT, LEADER_WORKER_SET, CONFIG_MAP)
_GATED: Final[tuple[Kind, ...]] = (JOB, CONFIG_MAP)

Counts = Mapping[tuple[str, str], int]
"""Replicas by pool and revision."""


def counts_of(
    observed: Observed, goal: DesiredState, aligned: Alignment, plan: RolloutPlan
) -> dict[tuple[str, str], int]:
    """Replicas of every Deployment that there is or is to be."""
    found: dict[tuple[str, str], int] = {}
    for revision in sorted({name for _, name in plan.replicas}):
        record = goal.records.get(revision)
        if record is None:
            continue
        planned = {pool: count for (pool, name), count in plan.replicas.items() if name == revision}
        beside = aligned.beside(revision, planned)
        there = observed.workers_of(revision)
        for pool in record.pools:
            count = beside[pool] if pool in beside else planned.get(pool, 0)
            if count or pool in there:
                found[pool, revision] = count
    return found


def objects(observed: Observed, goal: DesiredState, counts: Counts, retired: tuple[str, ...]) -> list[Json]:
    """Deployments or LeaderWorkerSets and their settings, of pools whose EnginePool is there to own them."""
    found: list[Json] = []
    for (pool, revision), count in sorted(counts.items()):
        owner, record = observed.engine_pools.get(pool), goal.records[revision].pools[pool]
        if owner is None or revision in retired or (record.nodes > 1 and not observed.extensions.groups):
            continue
        if record.settings:
            found.append(config_map(observed.name, record, revision, owner))
        found.append(workload(observed.name, record, revision, count, owner))
    return found


def deletions(observed: Observed, counts: Counts, retired: tuple[str, ...]) -> Iterator[Deletion]:
    """Deletions of everything that belongs to retired revisions, except their records, and of settings whose workers
    were never made."""
    kept = {revision for _, revision in counts} - set(retired)
    for ref, obj in observed.children.items():
        revision = labels_of(obj).get(REVISION) if ref.kind in _REVISIONED else None
        if revision in retired or (ref.kind == CONFIG_MAP and revision is not None and revision not in kept):
            yield deletion(ref, obj)


def old_gates(observed: Observed, stable: str | None, update: str, *, given_up: bool) -> Iterator[Deletion]:
    """Gates that are over, that compared with another revision than the one that serves now, or whose revision is
    given up before they have a verdict."""
    for ref, obj in observed.children.items():
        gate = labels_of(obj).get(GATE) if ref.kind in _GATED else None
        if gate is None:
            continue
        made = observed.gates.get(gate)
        moot = made is not None and (made.baseline != stable or (given_up and made.result == "unknown"))
        if gate != update or stable in (None, update) or moot:
            yield deletion(ref, obj)


def deletion(ref: Ref, obj: Json) -> Deletion:
    return Deletion(ref, obj["metadata"]["uid"])


def deletion_costs(observed: Observed, counts: Counts) -> Iterator[Json]:
    """Updates of the deletion cost of each pod of a Deployment that is about to lose some: idle pods cost least."""
    for each in observed.workers:
        if counts.get((each.pool, each.revision), each.replicas) >= each.replicas:
            continue
        for pod in observed.pods_of(each.pool, each.revision):
            cost = str(_cost(pod))
            if not pod.leaving and pod.cost != cost:
                yield _costing(observed, pod, cost)


def _cost(pod: Pod) -> int:
    """Pods that are not ready have nothing to lose; else by what would have to be moved or finished."""
    if not pod.ready:
        return -1
    return min(_COST_MAX, pod.running + -(-pod.queued_tokens // _TOKENS_PER_SEQUENCE))


def _costing(observed: Observed, pod: Pod, cost: str) -> Json:
    metadata = {"name": pod.name, "namespace": observed.namespace, "uid": pod.uid}
    return {
        "apiVersion": POD.api_version,
        "kind": POD.kind,
        "metadata": {**metadata, "annotations": {DELETION_COST: cost}},
    }
