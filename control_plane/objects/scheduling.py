"""Scheduling of a pool's pods: on which nodes they may run, and which of a node's resources they request."""

from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from typing import Any, Final

from control_plane.objects.installation import Installation
from control_plane.objects.names import SERVICE, selector
from control_plane.objects.tier_volume import mebibytes
from tandem.kube.kinds import Json
from tandem.spec.engine import Parallelism
from tandem.spec.pool import Network, Pool, engine_of
from tandem.spec.service import ModelService

_SPOT: Final = (
    ("cloud.google.com/gke-spot", "true"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("karpenter.sh/capacity-type", "spot"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
)
"""Labels, and on some clouds taints, of nodes that can be taken away at short notice."""
_NEAR_WEIGHT: Final = 100
_RDMA: Final = "rdma/"
_DEVICES: Final = (
    "vpc.amazonaws.com/efa",
    "networking.gke.io.networks/*",
    "openshift.io/*",
    "mellanox.com/*",
    "intel.com/*",
    "nvidia.com/*rdma*",
    "nvidia.com/*nic*",
    "nvidia.com/*sriov*",
    "nvidia.com/*vf*",
    "nvidia.com/mlnx*",
    "nvidia.com/hostdev*",
)
"""Names under which device plugins offer network devices."""


def parallelism_of(service: ModelService, pool: Pool) -> Parallelism:
    """The parallelism of a pool's workers."""
    return engine_of(service.spec.engine, pool).parallelism


def nodes_of(service: ModelService, pool: Pool) -> int:
    """The number of nodes that one worker spans."""
    ranks = parallelism_of(service, pool).ranks
    return 1 if pool.accelerator is None else max(1, -(-ranks // pool.accelerator.per_node))


def resources(service: ModelService, pool: Pool) -> Json:
    """Accelerators and network devices of one pod. Memory and processors are for the pool's template to say; where it
    does not, there are `default_requests`."""
    network = pool.network or Network()
    limits = {name: str(count) for name, count in network.resources.items()}
    if pool.accelerator is not None:
        each = parallelism_of(service, pool).ranks // nodes_of(service, pool)
        limits[pool.accelerator.resource] = str(each)
    claims = [{"name": claim.name} for claim in network.claims]
    return {**({"limits": limits} if limits else {}), **({"claims": claims} if claims else {})}


def default_requests(service: ModelService, pool: Pool, tier_bytes: int = 0) -> dict[str, str]:
    """What one pod asks for where nobody says it: a beginning, so that nodes are not overbooked and quotas count it.
    Weights pass through host memory on their way to an accelerator. `tier_bytes` of disk are the tier's."""
    ranks = 0 if pool.accelerator is None else parallelism_of(service, pool).ranks // nodes_of(service, pool)
    gibibytes = 4 if ranks else 1
    disk = mebibytes((gibibytes << 30) + tier_bytes) if tier_bytes else f"{gibibytes}Gi"
    if not ranks:
        return {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": disk}
    return {"cpu": str(1 + ranks), "memory": f"{4 + 4 * ranks}Gi", "ephemeral-storage": disk}


def with_requests(template: Json, name: str, requests: Mapping[str, str]) -> Json:
    """The template whose container `name` asks for this, too, as far as it has neither a request nor a limit."""
    spec = template["spec"]
    containers = [_requesting(each, requests) if each["name"] == name else each for each in spec["containers"]]
    return {**template, "spec": {**spec, "containers": containers}}


def _requesting(container: Json, requests: Mapping[str, str]) -> Json:
    asked = container.get("resources") or {}
    said = {**(asked.get("limits") or {}), **(asked.get("requests") or {})}
    more = {key: value for key, value in requests.items() if key not in said}
    return {**container, "resources": {**asked, "requests": {**(asked.get("requests") or {}), **more}}}


def spread(service: ModelService, pool: Pool) -> list[Json]:
    """A pool that is to survive the loss of a worker does not put all of them on one node, if there is another."""
    if not pool.spare:
        return []
    constraint = {
        "topologyKey": "kubernetes.io/hostname",
        "maxSkew": 1,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(service.metadata.name, pool.name)},
    }
    return [constraint]


def resource_claims(pool: Pool) -> list[Json]:
    """The claims of one pod for network devices, which `resources` refers to."""
    claims = () if pool.network is None else pool.network.claims
    return [{"name": claim.name, "resourceClaimTemplateName": claim.template} for claim in claims]


def network_devices(pool: Pool, template: Mapping[str, Any]) -> tuple[str, ...]:
    """What the pool's pods get for RDMA: everything that `network` names, and resources called `rdma/` that the
    template asks for."""
    network = pool.network or Network()
    by_name = (name for name in _asked(template) if name.startswith(_RDMA))
    return tuple(sorted({*network.resources, *(claim.name for claim in network.claims), *by_name}))


def transports(pool: Pool, devices: Collection[str]) -> tuple[str, ...]:
    """The ways of KV of workers with these devices, best first."""
    if pool.network is not None and pool.network.transports:
        return pool.network.transports
    return ("nixl", "tcp") if devices else ("tcp",)


def shares_memory(pool: Pool, installation: Installation) -> bool:
    """Whether the pool's workers hand KV over by shared memory on one node: where the installation has a directory
    for that, and the pool does not say how its KV travels."""
    said = pool.network is not None and pool.network.transports
    return installation.shared_host_path is not None and not said


def unnamed_devices(pool: Pool, template: Mapping[str, Any]) -> str | None:
    """One sentence where the pods of a pool get what looks like a network device, and KV goes over TCP all the same,
    since nothing says what the device is for; None where there is nothing to say."""
    if "nixl" in transports(pool, network_devices(pool, template)) or pool.network is not None:
        return None
    accelerator = None if pool.accelerator is None else pool.accelerator.resource
    found = sorted(
        name for name in _asked(template) if name != accelerator and any(fnmatch(name, each) for each in _DEVICES)
    )
    claims = sorted(claim["name"] for claim in template["spec"].get("resourceClaims", ()))
    if not found and not claims:
        return None
    where = " and ".join(f"network.{key}" for key, names in (("resources", found), ("claims", claims)) if names)
    return (
        f"Pods of pool {pool.name} get {', '.join((*found, *claims))}, and KV goes over TCP: if that is for RDMA, "
        f"name it in the pool's {where}."
    )


def _asked(template: Mapping[str, Any]) -> set[str]:
    """Resources that the containers of a pod template ask for."""
    return {
        name
        for container in template["spec"].get("containers", ())
        for part in ("limits", "requests")
        for name in container.get("resources", {}).get(part, {})
    }


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
