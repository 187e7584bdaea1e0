"""Settings that every service of an installation shares: images, Secrets, addresses."""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from control_plane.objects.worker_defaults import WorkerDefaults
from tandem.spec.pool import Pool, engine_of
from tandem.spec.service import ModelService
from tandem.spec.tenants import Tenants, read_tenants

LINK_PORT: Final = 7400
KV_PORT: Final = 7401
NIXL_PORT: Final = 7402
HEALTH_PORT: Final = 7480
TLS_DIRECTORY: Final = "/var/run/tandem/tls"
SHARED_DIRECTORY: Final = "/var/run/tandem/shared"
"""Where workers have the directory that those of their service on their node share."""


@dataclass(frozen=True)
class Installation:
    """Given once, by the chart. Changes of it reach workers with their next revision; a changed image, Redis or
    default of worker pods makes one."""

    worker_image: str = "tandem-worker"
    """Image of workers whose pool names none."""
    vllm_image: str | None = None
    """Image of workers with the engine vllm whose pool names none; by default `worker_image`."""
    image_pull_policy: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    """Service account of worker pods, which never see its token."""
    key_secret: str | None = "tandem-kv-key"
    """Secret with the ticket keys under `keys`; it must be in every namespace that has a service."""
    key_directory: str = "/var/run/tandem/kv-key"
    tls_secret: str | None = None
    """Secret of type kubernetes.io/tls with the workers' certificate and `ca.crt`; None speaks plain text."""
    tls_name: str = "tandem-worker"
    """The name in that certificate, by which workers know each other."""
    redis_url: str | None = None
    """Redis URL of services that name none, without user and password: workers find it in a ConfigMap."""
    redis_secret: str | None = None
    """`NAME/KEY` of a Secret with that URL instead, so that its password is in no other object."""
    otlp_endpoint: str | None = None
    scaler_secure: bool = False
    """KEDA shows the certificate of `tls_secret` to the scaler and asks it for its own."""
    scaler_address: str = "tandem-operator-scaler:9090"
    """Address at which KEDA asks for metrics."""
    service_url: str = "http://tandem-router:8000"
    """URL at which clients reach the routers; in the status of every service."""
    gate_key_secret: str | None = None
    """`NAME/KEY` of a Secret with the API key by which gates ask the routers, where those want one."""
    accelerator_label: str | None = None
    """Label of nodes whose value is the type of their accelerators, if this cluster has one."""
    rollouts_at_once: int = 0
    """Services that take over a changed default (an image, a Redis, parts of worker pods) at once, the oldest first;
    0 for any number."""
    tenants: tuple[str, ...] = ()
    """Names that the models of each namespace may have, `NAMESPACE=PATTERN` each; without any every name."""
    in_place_after_s: float = 60.0
    """Seconds that new workers of a rollout wait for room before old ones give way first."""
    in_cluster: bool = True
    """Routers and stores are the installation's. Without a cluster (`tandem up`, Ray) they are the services' own."""
    template_secrets: tuple[str, ...] = ()
    """Secrets that the template of a pool may name, besides the model's credentials."""
    template_volumes: tuple[str, ...] = ()
    """Kinds of volumes, and paths of nodes, that the template of a pool may mount besides the usual ones."""
    template_capabilities: tuple[str, ...] = ("IPC_LOCK", "SYS_NICE")
    """Capabilities that the template of a pool may add."""
    template_service_accounts: tuple[str, ...] = ()
    """Service accounts that the template of a pool may name."""
    template_root: bool = False
    """The template of a pool may run containers as root, write to their root file system and escalate."""
    template_locked_memory: bool = False
    """Pools may have `network.lockedMemory: unlimited`."""
    cache_host_path: str | None = None
    """Directory of each node where downloaded models are kept; None downloads for each pod."""
    shared_host_path: str | None = None
    """Directory of each node where workers of one service find each other's sockets, to hand KV over by shared
    memory; None hands it over the network on one node, too."""
    worker_defaults: WorkerDefaults = field(default_factory=WorkerDefaults)
    """Parts of worker pods that the templates of pools go over, as JSON in a flag."""
    cache_size: str = "1Ti"
    """Most of a node's disk that the downloaded model of one pod may take, where nodes keep none."""


def completed(service: ModelService, installation: Installation) -> ModelService:
    """The service with its gaps filled in from the installation, so that its revision changes when, say, the image
    does."""
    spec = service.spec
    pools = tuple(_with_image(service, pool, installation) for pool in spec.pools)
    redis = installation.redis_url if spec.redis is None and spec.redis_secret_ref is None else spec.redis
    return msgspec.structs.replace(service, spec=msgspec.structs.replace(spec, pools=pools, redis=redis))


def tenants_of(installation: Installation) -> Tenants:
    """The names that each namespace may use. Raises `bad_setting`."""
    return read_tenants(installation.tenants)


def redis_secret(service: ModelService, installation: Installation) -> tuple[str, str] | None:
    """The Secret and its key by which the service's workers get the URL of Redis; None where a URL is written out, or
    there is no Redis."""
    ref = service.spec.redis_secret_ref
    if ref is not None:
        return ref.name, ref.key
    if service.spec.redis is not None or installation.redis_secret is None:
        return None
    name, _, key = installation.redis_secret.partition("/")
    return name, key or "url"


def _with_image(service: ModelService, pool: Pool, installation: Installation) -> Pool:
    if pool.image is not None:
        return pool
    vllm = engine_of(service.spec.engine, pool).type == "vllm"
    image = installation.vllm_image if vllm and installation.vllm_image else installation.worker_image
    return msgspec.structs.replace(pool, image=image)
