"""The objects of a pool that last longer than a revision, and its settings."""

from collections.abc import Iterable
from typing import Final

from control_plane.objects.installation import HEALTH_PORT, LINK_PORT, Installation
from control_plane.objects.names import (
    REVISION,
    SCALED_BY,
    owner_reference,
    pool_labels,
    pool_name,
    selector,
    workers_name,
)
from control_plane.objects.pruning import pruned
from control_plane.objects.revisions import PoolRecord
from tandem.kube.kinds import (
    CONFIG_MAP,
    ENGINE_POOL,
    POD_DISRUPTION_BUDGET,
    SCALED_OBJECT,
    SERVICE,
    TRIGGER_AUTHENTICATION,
    Json,
    Kind,
)
from tandem.spec.pool import Autoscaling, Pool

_POLL_S: Final = 5
_COOLDOWN_S: Final = 15
_DISPENSABLE: Final = (".tolerance", ".fallback.behavior", ".initialCooldownPeriod")
"""Fields of newer versions of KEDA that make scaling exact. Without them it is coarser, and it is said."""
KEDA_SINCE: Final = "2.18"
"""The first version with all of them."""


def engine_pool(owner: Json, pool: Pool) -> Json:
    """The EnginePool object, through which others scale the pool. It sets the number of workers only where the
    service does."""
    name = owner["metadata"]["name"]
    spec: Json = {"modelServiceName": name, "pool": pool.name, "role": pool.role}
    scaled_by = "scale"
    if pool.replicas is not None:
        spec["replicas"], scaled_by = pool.replicas, "spec"
    return {
        "apiVersion": ENGINE_POOL.api_version,
        "kind": ENGINE_POOL.kind,
        "metadata": {
            "name": pool_name(name, pool.name),
            "namespace": owner["metadata"]["namespace"],
            "labels": pool_labels(name, pool.name, pool.role),
            "annotations": {SCALED_BY: scaled_by},
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": spec,
    }


def headless_service(service: str, pool: Pool, owner: Json) -> Json:
    """Names of all workers, those that are not ready included: routers find out themselves."""
    ports = [("link", LINK_PORT), ("health", HEALTH_PORT)]
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(service, pool.name),
        "ports": [{"name": name, "port": port, "protocol": "TCP"} for name, port in ports],
    }
    return _child(SERVICE, service, pool, owner, spec)


def disruption_budget(service: str, pool: Pool, owner: Json) -> Json:
    """Nodes are drained one worker of a pool at a time. A worker that is not ready holds up no drain."""
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": selector(service, pool.name)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return _child(POD_DISRUPTION_BUDGET, service, pool, owner, spec)


def scaled_object(service: str, pool: Pool, scaling: Autoscaling, owner: Json, installation: Installation) -> Json:
    """The ScaledObject that makes KEDA query our scaler and scale the EnginePool by its answer."""
    # The scaler itself decides when fewer will do and when a service goes to sleep; nobody is to decide it again,
    # and the usual tolerance of a tenth would swallow one worker of more than ten.
    at_once = {"stabilizationWindowSeconds": 0, "tolerance": "0"}
    behavior = {"scaleUp": at_once, "scaleDown": at_once}
    trigger: Json = {
        "type": "external-push",
        "metricType": "AverageValue",
        "metadata": {
            "scalerAddress": installation.scaler_address,
            "service": service,
            "pool": pool.name,
        },
    }
    if _scaler_secret(installation) is not None:
        trigger["metadata"]["enableTLS"] = "true"
        trigger["authenticationRef"] = {"name": pool_name(service, pool.name)}
    spec = {
        "scaleTargetRef": {
            "apiVersion": ENGINE_POOL.api_version,
            "kind": ENGINE_POOL.kind,
            "name": pool_name(service, pool.name),
        },
        "pollingInterval": _POLL_S,
        "cooldownPeriod": _COOLDOWN_S,
        "initialCooldownPeriod": _COOLDOWN_S,
        "minReplicaCount": scaling.min_replicas,
        "maxReplicaCount": scaling.max_replicas,
        "fallback": {
            "failureThreshold": 3,
            "replicas": max(1, scaling.min_replicas),
            "behavior": "currentReplicasIfHigher",
        },
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        "triggers": [trigger],
    }
    return _child(SCALED_OBJECT, service, pool, owner, spec)


def undeclared(schema: Json | None) -> tuple[str, ...]:
    """The fields of our ScaledObjects that KEDA's schema does not declare. None: the schema is not known, and all are
    taken to be there."""
    if schema is None:
        return ()
    owner = {"apiVersion": "", "kind": "", "metadata": {"name": "", "namespace": "", "uid": ""}}
    secure = Installation(tls_secret="any", scaler_secure=True)
    return pruned(scaled_object("any", Pool("any", "unified"), Autoscaling(max_replicas=1), owner, secure), schema)[1]


def needed(paths: Iterable[str]) -> tuple[str, ...]:
    """Those without which KEDA would not do what a pool asks for."""
    return tuple(path for path in paths if not path.endswith(_DISPENSABLE))


def trigger_authentication(service: str, pool: Pool, owner: Json, installation: Installation) -> Json | None:
    """The certificate by which KEDA and our scaler know each other; None where they speak plain text."""
    secret = _scaler_secret(installation)
    if secret is None:
        return None
    keys = (("caCert", "ca.crt"), ("tlsClientCert", "tls.crt"), ("tlsClientKey", "tls.key"))
    references = [{"parameter": parameter, "name": secret, "key": key} for parameter, key in keys]
    return _child(TRIGGER_AUTHENTICATION, service, pool, owner, {"secretTargetRef": references})


def _scaler_secret(installation: Installation) -> str | None:
    return installation.tls_secret if installation.scaler_secure else None


def config_map(service: str, record: PoolRecord, revision: str, owner: Json) -> Json:
    """The settings of a pool's workers in one revision."""
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": {
            "name": workers_name(service, record.name, revision),
            "namespace": owner["metadata"]["namespace"],
            "labels": {**pool_labels(service, record.name, record.role), REVISION: revision},
            "ownerReferences": [owner_reference(owner)],
        },
        "data": dict(record.settings),
    }


def _child(kind: Kind, service: str, pool: Pool, owner: Json, spec: Json) -> Json:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": pool_name(service, pool.name),
            "namespace": owner["metadata"]["namespace"],
            "labels": pool_labels(service, pool.name, pool.role),
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": spec,
    }
