"""Builds the pod template of a pool's workers in one revision.

The pool's `template` is merged over it. What other parts rely on (labels, the name of the container) stays whatever
the template says.
"""

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
from control_plane.objects.locked_memory import with_locked_memory
from control_plane.objects.merging import merged
from control_plane.objects.model_volume import CACHE, ModelVolume, model_volume
from control_plane.objects.names import LINK_PORT_ANNOTATION, REVISION, pool_labels, workers_name
from control_plane.objects.scheduling import (
    affinity,
    default_requests,
    network_devices,
    node_selector,
    resource_claims,
    resources,
    shares_memory,
    spread,
    tolerations,
    transports,
    with_requests,
)
from control_plane.objects.tier_volume import with_tier
from control_plane.objects.worker_flags import worker_flags
from tandem.kube.kinds import Json
from tandem.spec.pool import Pool
from tandem.spec.service import ModelService
from tandem.spec.worker_settings import worker_module

CONTAINER: Final = "worker"
USER: Final = 10001
"""The user of workers whose template names none."""
_START_S: Final = 3600
"""Seconds that a worker may take to load its model before it is restarted."""
_MARGIN_S: Final = 30
"""Seconds between the end of the drain and the kill."""
_OWN: Final = '[ "$(stat -c %u "$1")" = "${0%:*}" ] || exec chown "$0" "$1"'
"""Gives the directory $1 to the owner $0, `USER:GROUP`, unless it is that user's."""
_SHARED_MOUNT: Final = {"name": "shared", "mountPath": SHARED_DIRECTORY}
FETCH: Final = "fetch"
_FETCHING: Final = {"cpu": "500m", "memory": "1Gi"}
_FETCHING_LARGE: Final = {"cpu": "2", "memory": "4Gi"}
"""What fetching has, without and with accelerators: no more than the worker that follows asks for by default."""
_CONFINED: Final[Json] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""The securityContext that lies under every container's; that they are not root is the pod's."""


def pod_template(service: ModelService, pool: Pool, revision: str, installation: Installation) -> Json:
    """A PodTemplateSpec."""
    volume, defaults = model_volume(service.spec.model, installation), installation.worker_defaults
    plain = _template(service, pool, revision, installation, volume, ())
    devices = network_devices(pool, merged(defaults.over(plain, CONTAINER), pool.template))
    generated = _template(service, pool, revision, installation, volume, devices) if devices else plain
    confined: Json = merged(_CONFINED, defaults.security_context)
    patched = _limited(_confined(merged(defaults.over(generated, CONTAINER), pool.template), confined))
    named = frozenset(each.get("name", "") for each in (pool.template.get("spec") or {}).get("volumes") or ())
    patched, disk = with_tier(patched, service.spec.tiers, CONTAINER, named)
    patched = with_requests(patched, CONTAINER, default_requests(service, pool, disk))
    user = _user(patched["spec"])
    unlimited = pool.network is not None and pool.network.locked_memory == "unlimited"
    if devices or unlimited:
        patched = with_locked_memory(patched, CONTAINER, user, unlimited=unlimited)
    owned = {"cache": CACHE} if volume.on_node else {}
    if shares_memory(pool, installation):
        owned["shared"] = SHARED_DIRECTORY
    if owned:
        spec = patched["spec"]
        owning = [_owning(pool, installation, user, each, path) for each, path in owned.items()]
        patched = {**patched, "spec": {**spec, "initContainers": [*owning, *spec.get("initContainers", ())]}}
    return _with_labels(patched, generated)


def _template(
    service: ModelService,
    pool: Pool,
    revision: str,
    installation: Installation,
    volume: ModelVolume,
    devices: tuple[str, ...],
) -> Json:
    name = service.metadata.name
    container = _container(service, pool, revision, installation, volume, devices)
    spec: Json = {
        "terminationGracePeriodSeconds": pool.drain_seconds + _MARGIN_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": _fetching(service, pool, installation, volume),
        "containers": [container],
        "volumes": [*_volumes(installation, volume), *_shared(service, pool, installation)],
        "resourceClaims": resource_claims(pool),
        "affinity": affinity(service, pool),
        "topologySpreadConstraints": spread(service, pool),
        "tolerations": tolerations(pool),
        "nodeSelector": node_selector(pool, installation),
        "serviceAccountName": installation.service_account,
        "imagePullSecrets": [{"name": each} for each in installation.image_pull_secrets],
    }
    labels = {
        **pool_labels(name, pool.name, pool.role),
        REVISION: revision,
        "app.kubernetes.io/name": "tandem-worker",
    }
    return {
        "metadata": {
            "labels": {**labels, "app.kubernetes.io/name": "tandem-worker"},
            "annotations": {
                LINK_PORT_ANNOTATION: str(LINK_PORT),
                "kubectl.kubernetes.io/default-container": CONTAINER,
            },
        },
        "spec": {key: value for key, value in spec.items() if value not in (None, [], {})},
    }


def _container(
    service: ModelService,
    pool: Pool,
    revision: str,
    installation: Installation,
    volume: ModelVolume,
    devices: tuple[str, ...],
) -> Json:
    shared = shares_memory(pool, installation)
    ways = (*(("shm",) if shared else ()), *transports(pool, devices))
    container: Json = {
        "name": CONTAINER,
        "image": pool.image,
        "imagePullPolicy": installation.image_pull_policy,
        "command": ["python", "-m", worker_module(pool)],
        "args": worker_flags(service, pool, revision, installation, ways),
        "env": [*_identity(shared), *volume.environment, *_redis(installation, service), *_telemetry(installation)],
        "envFrom": _settings(service, pool, revision),
        "ports": [
            {"name": "link", "containerPort": LINK_PORT},
            {"name": "kv", "containerPort": KV_PORT},
            *([{"name": "nixl", "containerPort": NIXL_PORT}] if "nixl" in ways else []),
            {"name": "health", "containerPort": HEALTH_PORT},
        ],
        "resources": resources(service, pool),
        # The model may take long to come; from then on a process that does not answer at all is started anew.
        "startupProbe": _probe("/alive", period_s=10, failures=_START_S // 10),
        "livenessProbe": _probe("/alive", period_s=10, failures=6),
        "readinessProbe": _probe("/ready", period_s=2, failures=2),
        "volumeMounts": [*_mounts(installation, volume), *([_SHARED_MOUNT] if shared else [])],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {key: value for key, value in container.items() if value not in (None, [], {})}


def _confined(template: Json, confined: Json) -> Json:
    """The template whose containers, those that a pool adds, too, have the security context `confined` unless they
    say more."""
    spec = template["spec"]
    lists = {
        key: [{**each, "securityContext": merged(confined, each.get("securityContext") or {})} for each in spec[key]]
        for key in ("initContainers", "containers")
        if key in spec
    }
    return {**template, "spec": {**spec, **lists}}


def _user(spec: Json) -> int:
    """The user that workers run as."""
    workers = (each.get("securityContext") for each in spec["containers"] if each["name"] == CONTAINER)
    for context in (*workers, spec.get("securityContext")):
        if context and context.get("runAsUser") is not None:
            return int(context["runAsUser"])
    return USER


def _owning(pool: Pool, installation: Installation, user: int, volume: str, path: str) -> Json:
    """Gives a directory of the node to the workers' user: the kubelet makes it for root, and `fsGroup` leaves it
    alone. As root, since only root may; with no other right than that. What is theirs already stays untouched: on
    NFS that squashes root nobody else could give it."""
    container: Json = {
        "name": f"{volume}-owner",
        "image": pool.image,
        "imagePullPolicy": installation.image_pull_policy,
        "command": ["sh", "-c", _OWN, f"{user}:{user}", path],
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
        },
        "resources": {part: {"cpu": "100m", "memory": "64Mi"} for part in ("requests", "limits")},
        "volumeMounts": [{"name": volume, "mountPath": path}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {key: value for key, value in container.items() if value is not None}


def _limited(template: Json) -> Json:
    """The template whose fetching container has limits that are its requests, unless a pool says others: a pod is
    Guaranteed only if all of its containers have such."""
    spec = template["spec"]
    containers = []
    for each in spec.get("initContainers", ()):
        asked = each.get("resources") or {}
        limits = {**(asked.get("requests") or {}), **(asked.get("limits") or {})}
        fetches = each["name"] == FETCH and limits
        containers.append({**each, "resources": {**asked, "limits": limits}} if fetches else each)
    return {**template, "spec": {**spec, "initContainers": containers}} if containers else template


def _fetching(service: ModelService, pool: Pool, installation: Installation, volume: ModelVolume) -> list[Json]:
    """Brings the weights before the worker starts, where it does not read them from where they are."""
    if not volume.fetch:
        return []
    credentials = service.spec.model.credentials_secret
    container: Json = {
        "name": FETCH,
        "image": pool.image,
        "imagePullPolicy": installation.image_pull_policy,
        "command": ["python", "-m", "tandem.apps.cli", "fetch"],
        "args": list(volume.fetch),
        "resources": {"requests": _FETCHING if pool.accelerator is None else _FETCHING_LARGE},
        "env": list(volume.environment),
        "envFrom": [] if credentials is None else [{"secretRef": {"name": credentials}}],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *volume.mounts],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return [{key: value for key, value in container.items() if value not in (None, [], {})}]


def _probe(path: str, *, period_s: int, failures: int) -> Json:
    return {
        "httpGet": {"path": path, "port": "health"},
        "periodSeconds": period_s,
        "timeoutSeconds": 2,
        "failureThreshold": failures,
    }


def _shared(service: ModelService, pool: Pool, installation: Installation) -> list[Json]:
    """The directory of the node that workers of this service share. Those of another service have another one: who
    reaches a socket may ask for blocks."""
    if not shares_memory(pool, installation):
        return []
    path = f"{installation.shared_host_path}/{service.metadata.namespace}/{service.metadata.name}"
    return [{"name": _SHARED_MOUNT["name"], "hostPath": {"path": path, "type": "DirectoryOrCreate"}}]


def _identity(shared: bool) -> list[Json]:
    """Environment variables that identify the pod, with `shared` its node, too. They precede the settings, whose
    values may refer to them."""
    node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    return [
        *([node] if shared else []),
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "TANDEM_WORKER_ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]


def _redis(installation: Installation, service: ModelService) -> list[Json]:
    found = redis_secret(service, installation)
    if found is None:
        return []
    name, key = found
    return [{"name": "TANDEM_INDEX__REDIS_URL", "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}]


def _telemetry(installation: Installation) -> list[Json]:
    endpoint = installation.otlp_endpoint
    return [] if endpoint is None else [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": endpoint}]


def _settings(service: ModelService, pool: Pool, revision: str) -> list[Json]:
    name = workers_name(service.metadata.name, pool.name, revision)
    credentials = service.spec.model.credentials_secret
    found: list[Json] = [{"configMapRef": {"name": name}}]
    return found if credentials is None else [*found, {"secretRef": {"name": credentials}}]


def _volumes(installation: Installation, volume: ModelVolume) -> list[Json]:
    found: list[Json] = [
        {"name": "tmp", "emptyDir": {"sizeLimit": "16Gi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
    ]
    if installation.key_secret is not None:
        found.append({"name": "kv-key", "secret": {"secretName": installation.key_secret, "defaultMode": 0o440}})
    if installation.tls_secret is not None:
        found.append({"name": "tls", "secret": {"secretName": installation.tls_secret, "defaultMode": 0o440}})
    return [*found, *volume.volumes]


def _mounts(installation: Installation, volume: ModelVolume) -> list[Json]:
    found: list[Json] = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}]
    if installation.key_secret is not None:
        found.append({"name": "kv-key", "mountPath": installation.key_directory, "readOnly": True})
    if installation.tls_secret is not None:
        found.append({"name": "tls", "mountPath": TLS_DIRECTORY, "readOnly": True})
    return [*found, *volume.mounts]


def _with_labels(template: Json, generated: Json) -> Json:
    """Selectors, routers and status go by these labels and annotations."""
    metadata = template.get("metadata", {})
    kept = {part: {**metadata.get(part, {}), **generated["metadata"][part]} for part in ("labels", "annotations")}
    return {**template, "metadata": {**metadata, **kept}}
