"""Settings of a pool's workers in a cluster: the ConfigMap has what their service specifies, the command line what
depends on where they run.

Values that only the pod knows are `$(POD_IP)`, which the kubelet fills in. Arguments of vLLM that have no variable of
their own are flags, too.
"""

from collections.abc import Sequence
from typing import Final

from control_plane.objects.installation import (
    HEALTH_PORT,
    KV_PORT,
    LINK_PORT,
    NIXL_PORT,
    SHARED_DIRECTORY,
    TLS_DIRECTORY,
    Installation,
    redis_secret,
)
from control_plane.objects.model_volume import model_volume
from control_plane.objects.names import service_labels, workers_name
from tandem.kube.kinds import CONFIG_MAP, Json
from tandem.process.settings import PREFIX
from tandem.spec.pool import Pool
from tandem.spec.service import ModelService
from tandem.spec.tenants import ROUTER_NAME, tenant_name
from tandem.spec.worker_settings import as_flags, index_environment, worker_settings

_IP: Final = "$(POD_IP)"
_EXTRA: Final = "vllm.extra."
_KEYS: Final = "keys"


def settings_map(service: ModelService, pool: Pool, revision: str, installation: Installation) -> Json:
    """The ConfigMap, as environment of the workers. It never changes: another content is another revision."""
    settings = worker_settings(service, pool, model_volume(service.spec.model, installation).source)
    data = {
        _variable(key): str(value)
        for key, value in settings.items()
        if value is not None and not key.startswith(_EXTRA)
    }
    metadata = service.metadata
    labels = {**service_labels(metadata.name)}
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": {
            "name": workers_name(metadata.name, pool.name, revision),
            "namespace": metadata.namespace,
            "labels": labels,
        },
        "data": {**data, **_index(service, installation)},
    }


def worker_flags(
    service: ModelService, pool: Pool, revision: str, installation: Installation, transports: Sequence[str]
) -> list[str]:
    """The command line. `transports` are the ways of KV, best first."""
    keys = None if installation.key_secret is None else f"{installation.key_directory}/{_KEYS}"
    tls = installation.tls_secret is not None
    settings = worker_settings(service, pool, "")
    return as_flags(
        {
            "revision": revision,
            "link.bind": f"{_IP}:{LINK_PORT}",
            "link.advertise": _IP,
            "link.tls.certificate": f"{TLS_DIRECTORY}/tls.crt" if tls else None,
            "link.tls.private_key": f"{TLS_DIRECTORY}/tls.key" if tls else None,
            "link.tls.authority": f"{TLS_DIRECTORY}/ca.crt" if tls else None,
            **(_names(service, installation) if tls else {}),
            "kv.transports": ",".join(transports),
            "kv.shm_directory": SHARED_DIRECTORY if "shm" in transports else None,
            "kv.node": "$(NODE_NAME)" if "shm" in transports else None,
            "kv.host": _IP,
            "kv.port": KV_PORT,
            "kv.nixl_port": NIXL_PORT if "nixl" in transports else None,
            "kv.advertise": _IP,
            "metrics_bind": f"{_IP}:{HEALTH_PORT}",
            "ticket_key_file": keys,
            "socket_directory": "/tmp",
            "deadlines.drain_s": pool.drain_seconds,
            "log.format": "json",
            **{key: value for key, value in settings.items() if key.startswith(_EXTRA)},
        }
    )


def _names(service: ModelService, installation: Installation) -> dict[str, object]:
    """Names in certificates: by which workers know each other, and which are let in. Of tenants those are routers and
    workers of the same namespace."""
    if not installation.tenants:
        return {"link.tls.server_name": installation.tls_name}
    name = tenant_name(installation.tls_name, service.metadata.namespace or "")
    return {"link.tls.server_name": name, "link.tls.client_names": f"{ROUTER_NAME},{name}"}


def _variable(key: str) -> str:
    return PREFIX + key.upper().replace(".", "__")


def _index(service: ModelService, installation: Installation) -> dict[str, str]:
    name = f"{service.metadata.namespace}.{service.metadata.name}"
    if redis_secret(service, installation) is not None:
        return {"TANDEM_INDEX__SERVICE": name}
    return index_environment(service, name)
