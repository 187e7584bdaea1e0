"""Pools of equal workers: their role, number, hardware and pods."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from tandem.spec.engine import EngineSpec, Parallelism, Share
from tandem.spec.quantity import Quantity
from tandem.spec.text import SET, Count, Cron, LabelKey, Line, Name, PoolName, Strict

REPLICAS_MAX: Final = 10_000
Role = Literal["prefill", "decode", "unified", "auto"]
WHOLE: Final = ("unified", "auto")
"""Roles whose workers can serve whole requests for good, so that KV that cannot be handed over is no reason against
them."""
Replicas = Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]


class Accelerator(Strict, frozen=True):
    """What a node offers."""

    type: Annotated[str, Meta(min_length=1, max_length=63)]
    """Such as `h100-sxm`: what sizing and prices go by."""
    per_node: Annotated[int, Meta(ge=1, le=64)] = 8
    """Accelerators of one node."""
    memory: Quantity | None = None
    """Of each; by default that of the type."""
    resource: LabelKey = "nvidia.com/gpu"
    """What pods ask for."""
    shared_by: Annotated[int, Meta(ge=1, le=64)] = 1
    """How many pods have one together, where the device plugin hands it out several times (time slicing, MPS)."""
    dollars_per_hour: Annotated[float, Meta(ge=0, le=100_000)] | None = None
    """Price of a node."""


class Topology(Strict, frozen=True):
    """Where pods lie to each other, by keys of node labels."""

    pack: LabelKey | None = None
    """All pods of one worker are in one domain of this label."""
    near: LabelKey | None = None
    """Workers of prefill and decode prefer the same domain of this label."""


class NetworkClaim(Strict, frozen=True):
    """A device that a DRA driver gives each pod."""

    name: Name
    """Of the claim within the pod."""
    template: Name
    """ResourceClaimTemplate in the service's namespace, after which each pod gets a claim of its own."""


class Network(Strict, frozen=True):
    """Devices by which a pool's workers move KV in a cluster. With one of them KV goes by RDMA (`nixl`) where both
    ends can, else over TCP."""

    resources: Annotated[dict[LabelKey, Count], Meta(max_length=16)] = msgspec.field(default_factory=dict)
    """What each pod asks a device plugin for, by name: `rdma/ib: 1`, `vpc.amazonaws.com/efa: 4`."""
    claims: Annotated[tuple[NetworkClaim, ...], Meta(max_length=8)] = ()
    """Devices that come by dynamic resource allocation."""
    transports: Annotated[tuple[Literal["nixl", "tcp"], ...], Meta(max_length=2, extra_json_schema=SET)] = ()
    """Ways of KV in the order of preference; by default nixl and tcp with a device, tcp without."""
    locked_memory: Literal["node", "unlimited"] = "node"
    """How much memory workers may register with the devices: `node`, as much as the container runtime of their node
    lets every pod lock; `unlimited`, where the installation allows it, by IPC_LOCK, for which the container begins as
    root."""


class ScheduledFloor(Strict, frozen=True):
    """At least so many replicas while a window of time is open."""

    start: Cron
    """When it opens, in UTC: minute, hour, day, month and weekday as in cron."""
    duration_seconds: Annotated[int, Meta(ge=60, le=604_800)]
    """How long it stays open."""
    replicas: Replicas
    """At least so many meanwhile."""


class Autoscaling(Strict, frozen=True):
    """Between which numbers of replicas a pool is scaled, against the service's SLO."""

    max_replicas: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)]
    """Never more."""
    min_replicas: Replicas = 1
    """Never fewer; 0 lets the whole service go to sleep."""
    idle_after_seconds: Annotated[int, Meta(ge=30, le=604_800)] | None = None
    """Without any request for so long, a service whose pools may all have 0 replicas goes to sleep."""
    scale_down_stabilization_seconds: Annotated[int, Meta(ge=0, le=3600)] = 300
    """Fewer only when fewer have sufficed for so long."""
    schedule: Annotated[tuple[ScheduledFloor, ...], Meta(max_length=16)] = ()
    """Floors by the clock."""


class Pool(Strict, frozen=True):
    """Workers of one role. On one machine they are called `NAME-0`, `NAME-1`, and so on."""

    name: PoolName
    """In the names of all its workers."""
    role: Role
    """`prefill`, `decode`, `unified` for both, or `auto`: routers choose, as the load asks for it, which of its
    workers compute prompts for the others. It cannot be changed later; add a new pool instead."""
    replicas: Replicas | None = None
    """How many workers. Without it 1 at first, and then whoever scales the EnginePool has the number."""
    autoscaling: Autoscaling | None = None
    """Instead of `replicas`."""
    parallelism: Parallelism | None = None
    """Of this pool's workers; by default the engine's."""
    gpu_memory_share: Share | None = None
    """Of this pool's workers; by default the engine's."""
    accelerator: Accelerator | None = None
    """Without one, workers run on CPUs."""
    topology: Topology = Topology()
    network: Network | None = None
    """Devices for RDMA; without one KV goes over TCP."""
    engine: EngineSpec | None = None
    """Replaces the service's engine for this pool."""
    image: Line | None = None
    """Container image of the workers; by default the installation's for the engine."""
    spot: bool = False
    """Workers may run where they can be taken away at short notice."""
    spare: Annotated[int, Meta(ge=0, le=64)] = 0
    """Workers beyond what the load asks for, so that losing so many keeps the SLO."""
    drain_seconds: Annotated[int, Meta(ge=0, le=7200)] = 120
    """How long a worker that leaves may take to finish or move what it runs."""
    template: Annotated[dict[str, Any], Meta(max_length=16)] = msgspec.field(default_factory=dict)
    """Strategic-merge patch over the generated pod template."""

    @property
    def first_replicas(self) -> int:
        """How many workers there are before anybody scales the pool."""
        return 1 if self.replicas is None else self.replicas


def engine_of(engine: EngineSpec, pool: Pool) -> EngineSpec:
    """What a pool's workers run, given the service's engine."""
    own = pool.engine or engine
    given = {"parallelism": pool.parallelism, "gpu_memory_share": pool.gpu_memory_share}
    return msgspec.structs.replace(own, **{key: value for key, value in given.items() if value is not None})
