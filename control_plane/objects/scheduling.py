"""Scheduling of a pool's pods: on which nodes they may run, and which of a node's resources they request."""

from typing import Final

from control_plane.objects.installation import Installation
from control_plane.objects.names import SERVICE
from tandem.kube.kinds import Json
from tandem.spec.engine import Parallelism
from tandem.spec.pool import Pool, engine_of
from tandem.spec.service import ModelService

_SPOT: Final = (
    ("cloud.google.com/gke-spot", "true"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("karpenter.sh/capacity-type", "spot"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
)
"""Labels, and on some clouds taints, of nodes that can be taken away at short notice."""
_NEAR_WEIGHT: Final = 100


def parallelism_of(service: ModelService, pool: Pool) -> Parallelism:
    """The parallelism of a pool's workers."""
    return engine_of(service.spec.engine, pool).parallelism


def nodes_of(service: ModelService, pool: Pool) -> int:
    """The number of nodes that one worker spans."""
    ranks = parallelism_of(service, pool).ranks
    return 1 if pool.accelerator is None else max(1, -(-ranks // pool.accelerator.per_node))


def resources(service: ModelService, pool: Pool) -> Json:
    """Accelerators of one pod. Memory and processors are for the pool's template to say."""
    if pool.accelerator is None:
        return {}
    each = parallelism_of(service, pool).ranks // nodes_of(service, pool)
    return {"limits": {pool.accelerator.resource: str(each)}}


def node_selector(pool: Pool, installation: Installation) -> dict[str, str]:
    """Nodes of the pool's accelerator, in a cluster that labels them."""
    if pool.accelerator is None or installation.accelerator_label is None:
        return {}
    return {installation.accelerator_label: pool.accelerator.type}


def tolerations(pool: Pool) -> list[Json]:
    """Tolerations of the taints that keep all other pods off the pool's nodes."""
    found = [] if pool.accelerator is None else [{"key": pool.accelerator.resource, "operator": "Exists"}]
    spot = ({"key": key, "operator": "Equal", "value": value} for key, value in _SPOT)
    return [*found, *spot] if pool.spot else found


def affinity(service: ModelService, pool: Pool) -> Json:
    """Away from nodes that can be taken away, unless the pool may use them; near the service's other workers."""
    found: Json = {}
    if not pool.spot:
        terms = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in _SPOT]
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        found["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    if pool.topology.near is not None:
        near = {
            "labelSelector": {"matchLabels": {SERVICE: service.metadata.name}},
            "topologyKey": pool.topology.near,
        }
        preferred = [{"weight": _NEAR_WEIGHT, "podAffinityTerm": near}]
        found["podAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
    return found
