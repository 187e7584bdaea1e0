"""`ModelService`: what users write, on a laptop (`tandem up FILE`) and in a cluster (`kubectl apply`) alike.

Every type reached from here becomes a part of the CRD (`tools/generate_crds.py`): limits are `Meta`, docstrings are
descriptions, and what needs two fields at once is in `tandem.spec.rules`.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tandem.spec.engine import EngineSpec
from tandem.spec.model import Model
from tandem.spec.pool import Pool
from tandem.spec.quantity import Quantity
from tandem.spec.rollout import Rollout, Routing, Slo
from tandem.spec.status import LIST_BY_NAME, ModelServiceStatus
from tandem.spec.text import DataKey, Line, Name, Strict

API_GROUP: Final = "tandem.dev"
API_VERSION: Final = "tandem.dev/v1alpha1"
KIND: Final = "ModelService"
STORE: Final = "kv-store"
"""Of the store process: the beginning of its name."""


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Of the object; a cluster adds more, which is of no matter here."""

    name: str
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    generation: int = 0
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class RouterSpec(Strict, frozen=True):
    """The router of a platform on one machine. In a cluster the installation has routers for all services."""

    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    """Of the HTTP API; 0 lets the system choose."""
    grpc_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """Of the public gRPC API; 0 lets the system choose, and without it there is none."""
    host: Annotated[str, Meta(min_length=1, max_length=253)] = "127.0.0.1"
    """Interface to listen on."""
    max_streams: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Requests that it holds at once, 4,096 by default; each worker that generates then computes an even share of
    them at once, instead of 256."""


class TiersSpec(Strict, frozen=True):
    """What each worker keeps below its engine's pool. Blocks on NVMe are found again by a worker that comes back
    under its name."""

    dram: Quantity | None = None
    """Host memory, a size such as `4Gi`; without it no such tier. Of vLLM workers it is their stage's size, and there
    always is one: without a size a quarter of the pod's memory limit, or of the machine's shared by its workers."""
    nvme: Quantity | None = None
    """Disk, a size such as `100Gi`; without it no such tier."""
    nvme_dir: Line | None = None
    """Where that is."""


class StoreSpec(Strict, frozen=True):
    """A process that keeps blocks for all workers and outlives them, of a platform on one machine. In a cluster the
    installation has stores."""

    dram: Quantity = "1Gi"
    """Host memory."""
    nvme: Quantity | None = None
    """Disk; without it none."""
    nvme_dir: Line | None = None
    """Where that is."""


class RedisSecretRef(Strict, frozen=True):
    """A Secret with the URL of a Redis."""

    name: Name
    """Of the Secret, in the namespace of the service."""
    key: DataKey = "url"
    """Whose value is the URL, several nodes by commas."""


class Spec(Strict, frozen=True, kw_only=True):
    """What is wanted."""

    model: Model = Model()
    engine: EngineSpec = EngineSpec()
    pools: Annotated[
        tuple[Pool, ...],
        Meta(min_length=1, max_length=16, extra_json_schema=LIST_BY_NAME),
    ]
    """At least one of them can decode."""
    router: RouterSpec = RouterSpec()
    tiers: TiersSpec = TiersSpec()
    store: StoreSpec | None = None
    redis: Line | None = None
    """URL of the Redis where workers tell, and routers find, which blocks there are; several nodes by commas. In a
    cluster without user and password: such a URL is in a Secret."""
    redis_secret_ref: RedisSecretRef | None = None
    """Secret with that URL, in a cluster, where routers look in the Redis of the installation: this is the same one
    under a user of its own."""
    rollout: Rollout = Rollout()
    routing: Routing = Routing()
    slo: Slo = Slo()


class ModelService(Strict, frozen=True):
    """One model served by pools of prefill and decode workers."""

    api_version: str
    kind: str
    metadata: Metadata
    spec: Spec
    status: ModelServiceStatus = ModelServiceStatus()

    @property
    def model_name(self) -> str:
        """What clients ask for."""
        return self.spec.model.name or self.metadata.name
