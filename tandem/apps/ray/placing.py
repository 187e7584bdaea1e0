"""What the replicas of a pool ask of a Ray cluster: actor options, gangs, bounds of their lives. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from control_plane.objects.scheduling import nodes_of, parallelism_of
from tandem.apps.ray.serving import ActorOptions, DeploymentPlan, RevisionApp, app_name
from tandem.core.errors import TandemError
from tandem.spec.pool import REPLICAS_MAX, WHOLE, Accelerator, Pool, Topology, engine_of
from tandem.spec.service import ModelService, RouterSpec

ANNOTATION: Final = "ray.tandem.dev"
"""Annotations `ray.tandem.dev/POOL.cpus`, `.resources` and `.max-replicas-per-node` of a ModelService say what its
specification has no field for."""
_CPUS, _RESOURCES, _PER_NODE = "cpus", "resources", "max-replicas-per-node"
_GPU: Final = "/gpu"
_PER_NODE_MAX: Final = 100
_MARGIN_S: Final = 15.0
"""Seconds between the end of a drain and the kill by Serve."""
RAY_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "v100": "V100",
        "p100": "P100",
        "t4": "T4",
        "p4": "P4",
        "k80": "K80",
        "a10g": "A10G",
        "a10": "A10",
        "l4": "L4",
        "l40s": "L40S",
        "a100": "A100",
        "a100-40g": "A100-40G",
        "a100-80g": "A100-80G",
        "h100": "H100",
        "h200": "H200",
        "h20": "H20",
        "b200": "B200",
        "b300": "B300",
        "gb200": "GB200",
        "mi250": "AMD-Instinct-MI250X",
        "mi300x": "AMD-Instinct-MI300X-OAM",
        "mi325x": "AMD-Instinct-MI325X-OAM",
    }
)
"""Ray's names of accelerators by the beginnings of ours."""


@dataclass(frozen=True)
class ReplicaTimes:
    """Bounds in the life of a replica, in seconds, by Serve's names of them."""

    graceful_shutdown_timeout_s: float
    graceful_shutdown_wait_loop_s: float = 0.1
    health_check_period_s: float = 1.0
    health_check_timeout_s: float = 2.0


def refusals(service: ModelService) -> Iterator[str]:
    """What of a service cannot be on Ray, each in one sentence with its path. `service` is as its user wrote it."""
    spec = service.spec
    if spec.store is not None:
        yield "spec.store is not for Ray: workers keep blocks in spec.tiers, and share them through spec.redis"
    if spec.model.source.startswith("pvc://"):
        yield f"spec.model.source {spec.model.source!r} is a claim of Kubernetes; give a path of every node instead"
    if spec.model.credentials_secret is not None:
        yield "spec.model.credentialsSecret is a Secret of Kubernetes; set its variables where Ray is started"
    if spec.redis_secret_ref is not None:
        yield "spec.redisSecretRef is a Secret of Kubernetes; give the URL in spec.redis instead"
    if spec.rollout.gate is not None and spec.rollout.gate.prompts_config_map is not None:
        yield "spec.rollout.gate.promptsConfigMap is a ConfigMap of Kubernetes; leave it out for the usual prompts"
    for index, pool in enumerate(spec.pools):
        yield from _pool_refusals(service, pool, f"spec.pools[{index}]")
    try:
        revision_app(service, "", {})
    except TandemError as error:
        yield error.message


def without_meaning(service: ModelService) -> Iterator[str]:
    """What of a service is set and means nothing on Ray, each in one sentence with its path: `refusals` is about what
    cannot be."""
    router, usual = service.spec.router, RouterSpec()
    if router.host != usual.host:
        yield f"spec.router.host {router.host!r} means nothing on Ray: Serve's ingress is on every address there"
    if router.grpc_port is not None:
        yield f"spec.router.grpcPort {router.grpc_port} means nothing on Ray: routers there have no gRPC API"


def _pool_refusals(service: ModelService, pool: Pool, path: str) -> Iterator[str]:
    if pool.image is not None:
        yield f"{path}.image is not for Ray: workers run in the environment of Ray's nodes"
    if pool.template:
        yield f"{path}.template is a patch of pods; say cpus and resources by annotations {ANNOTATION}/{pool.name}.…"
    if pool.network is not None:
        yield f"{path}.network is for Kubernetes; say resources by annotations {ANNOTATION}/{pool.name}.resources"
    if pool.topology != Topology():
        yield f"{path}.topology goes by labels of Kubernetes; gangs are packed, all else is Ray's own placement"
    if nodes_of(service, pool) > 1 and pool.role not in WHOLE:
        yield f"{path} spans {nodes_of(service, pool)} nodes, which only pools of role unified or auto can"


def revision_app(service: ModelService, revision: str, first: Mapping[str, int]) -> RevisionApp:
    """The application of one revision, with so many workers at first, by pool; 0 for those that are not named.

    Raises `bad_setting` for an annotation that cannot be read.
    """
    pools = tuple(deployment_plan(service, pool, first.get(pool.name, 0)) for pool in service.spec.pools)
    return RevisionApp(app_name(service.metadata.name, revision), service, revision, pools)


def deployment_plan(service: ModelService, pool: Pool, first: int) -> DeploymentPlan:
    """The deployment of a pool with `first` workers at first. Raises `bad_setting` as `revision_app` does."""
    return DeploymentPlan(
        pool=pool.name,
        options=actor_options(service, pool),
        gang=nodes_of(service, pool),
        drain_s=float(pool.drain_seconds),
        most=REPLICAS_MAX,
        first=first,
    )


def replica_times(drain_s: float) -> ReplicaTimes:
    """The bounds of a replica whose worker drains for at most `drain_s` seconds."""
    return ReplicaTimes(graceful_shutdown_timeout_s=drain_s + _MARGIN_S)


def actor_options(service: ModelService, pool: Pool) -> ActorOptions:
    """What one replica of a pool asks of its node: accelerators of its ranks there, the rest by annotations.

    Raises `bad_setting` for an annotation that cannot be read.
    """
    noted = _noted(service, pool)
    resources = _resources(noted.get(_RESOURCES, ""), f"{ANNOTATION}/{pool.name}.{_RESOURCES}")
    gpus, type_ = 0.0, None
    if pool.accelerator is not None:
        each = _ranks_here(service, pool) / pool.accelerator.shared_by
        if pool.accelerator.resource.endswith(_GPU):
            gpus, type_ = each, ray_type(pool.accelerator)
        else:
            resources.setdefault(pool.accelerator.resource, each)
    per_node = None
    if nodes_of(service, pool) == 1:  # Serve allows no such limit for gangs.
        per_node = _per_node(noted.get(_PER_NODE), f"{ANNOTATION}/{pool.name}.{_PER_NODE}")
    cpus = _number(noted.get(_CPUS, "1"), f"{ANNOTATION}/{pool.name}.{_CPUS}")
    return ActorOptions(cpus, gpus, type_, resources, per_node)


def threads_of(service: ModelService, pool: Pool) -> int | None:
    """Threads of each rank of a vLLM worker whose CPUs an annotation names, one of which is left to everything else;
    None where none does, and the worker takes what its node has. Raises `bad_setting` as `actor_options` does."""
    noted = _noted(service, pool)
    if _CPUS not in noted or engine_of(service.spec.engine, pool).type != "vllm":
        return None
    cpus = _number(noted[_CPUS], f"{ANNOTATION}/{pool.name}.{_CPUS}")
    return max(1, (int(cpus) - 1) // _ranks_here(service, pool))


def ray_type(accelerator: Accelerator) -> str | None:
    """Ray's name of an accelerator's type; None where Ray has none, which then places by number alone."""
    named = accelerator.type.lower().replace("_", "-").removeprefix("nvidia-")
    fitting = [each for each in RAY_TYPES if named == each or named.startswith(f"{each}-")]
    return RAY_TYPES[max(fitting, key=len)] if fitting else None


def _ranks_here(service: ModelService, pool: Pool) -> int:
    return parallelism_of(service, pool).ranks // nodes_of(service, pool)


def _noted(service: ModelService, pool: Pool) -> dict[str, str]:
    before = f"{ANNOTATION}/{pool.name}."
    annotations = service.metadata.annotations
    return {key.removeprefix(before): value for key, value in annotations.items() if key.startswith(before)}


def _resources(text: str, where: str) -> dict[str, float]:
    """From `name=amount,name=amount`."""
    found = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, amount = part.partition("=")
        found[name.strip()] = _number(amount.strip(), where)
    return found


def _number(text: str, where: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found < float("inf"):
        raise TandemError("bad_setting", f"annotation {where}: {text!r} is not a number of 0 or more", param=where)
    return found


def _per_node(text: str | None, where: str) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= _PER_NODE_MAX:
        problem = f"annotation {where}: {text!r} is not a whole number from 1 to {_PER_NODE_MAX}"
        raise TandemError("bad_setting", problem, param=where)
    return int(text)
