"""Finds the pools of a revision whose pods no node has room for, and whether a pod of the revision that they replace,
or go back from, would make it. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from control_plane.objects.revisions import PoolRecord, RevisionRecord
from control_plane.observe.observed import Observed
from control_plane.rollout import NoRoom
from tandem.kube.kinds import Json
from tandem.spec.quantity import quantity

_INSUFFICIENT: Final = re.compile(r"\bInsufficient ([\w.-]+(?:/[\w.-]+)?)")
_QUANTITY: Final = re.compile(r"([0-9.]+(?:Ki|Mi|Gi|Ti|k|M|G|T)?)(m)?")
_FULL: Final = ("Too many pods", "have free ports", "cannot allocate all claims")
"""What else a scheduler says of nodes on which something is used up."""


def no_room(
    observed: Observed, records: Mapping[str, RevisionRecord], revision: str, other: str
) -> dict[str, NoRoom]:
    """The pools of `revision` with pods that want for what is used up, such as accelerators. Pods that no node would
    take at all, by its labels or taints, are not among them. `other` is the revision whose pods could give way."""
    found: dict[str, NoRoom] = {}
    for pool in sorted({each.pool for each in observed.workers if each.revision == revision}):
        pods = [
            pod
            for pod in (*observed.pods, *observed.followers)
            if (pod.pool, pod.revision) == (pool, revision) and not pod.leaving and pod.unplaced_s is not None
        ]
        lacking = {name for pod in pods for name in _lacks(pod.unplaced_why)}
        if lacking:
            new, old = (records[name].pools.get(pool) if name in records else None for name in (revision, other))
            since = min(pod.unplaced_s for pod in pods if pod.unplaced_s is not None)
            found[pool] = NoRoom(since, "" if new is None or old is None else _in_vain(new, old, lacking))
    return found


def _lacks(why: str) -> set[str]:
    """What is used up on nodes, from a scheduler's message: names of resources, or its words for something else."""
    said = why.partition(" preemption:")[0]
    return {name.rstrip(".") for name in _INSUFFICIENT.findall(said)} | {each for each in _FULL if each in said}


def _in_vain(new: PoolRecord, old: PoolRecord, lacking: set[str]) -> str:
    """Why a worker of `old` that goes makes no room for one of `new`; empty when it does, or may."""
    if new.nodes > old.nodes:
        return f"a new worker spans {new.nodes} nodes, an old one {old.nodes}"
    if any(_placing(new, key) != _placing(old, key) for key in ("nodeSelector", "affinity")):
        return "new workers ask for other nodes than old ones"
    needs, frees = _requests(new), _requests(old)
    for name in sorted(lacking & needs.keys()):  # what no template has is added to all pods alike, as by a LimitRange
        if needs[name] > frees.get(name, 0.0):
            return f"a new worker needs {_shown(needs[name])} {name}, an old one frees {_shown(frees.get(name, 0.0))}"
    return ""


def _placing(pool: PoolRecord, key: str) -> Json:
    found = pool.template["spec"].get(key) or {}
    return found.get("nodeAffinity") or {} if key == "affinity" else found


def _requests(pool: PoolRecord) -> dict[str, float]:
    """What one pod asks for: of its containers together, or of its largest init container."""
    spec = pool.template["spec"]
    asked: dict[str, float] = {}
    for container in spec["containers"]:
        for name, amount in _asked(container):
            asked[name] = asked.get(name, 0.0) + amount
    for container in spec.get("initContainers", ()):
        for name, amount in _asked(container):
            asked[name] = max(asked.get(name, 0.0), amount)
    return asked


def _asked(container: Json) -> Iterator[tuple[str, float]]:
    asked = container.get("resources") or {}
    for name, value in {**(asked.get("limits") or {}), **(asked.get("requests") or {})}.items():
        yield name, _amount(str(value))


def _amount(text: str) -> float:
    """A quantity as Kubernetes writes it; 0 for one that cannot be read."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return 0.0
    plain = quantity(found[1])
    return float(found[1]) / 1000 if found[2] else float(plain or 0)


def _shown(amount: float) -> str:
    return f"{amount / (1 << 30):.4g}Gi" if amount >= 1 << 20 else f"{amount:g}"
