"""Names and labels of what a service consists of."""

from typing import Final

from tandem.kube.kinds import Json
from tandem.spec.service import API_GROUP

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
TANDEM: Final = "tandem"
MANAGED: Final = f"{MANAGED_BY}={TANDEM}"
"""Selects everything that the control plane makes."""
SERVICE: Final = f"{API_GROUP}/service"
POOL: Final = f"{API_GROUP}/pool"
ROLE: Final = f"{API_GROUP}/role"
REVISION: Final = f"{API_GROUP}/revision"
GATE: Final = f"{API_GROUP}/gate"
LINK_PORT_ANNOTATION: Final = f"{API_GROUP}/link-port"
APPLIED: Final = f"{API_GROUP}/applied"
"""Annotation with the digest of what was applied, so that a new operator need not apply it again."""
SCALED_BY: Final = f"{API_GROUP}/replicas-from"
"""Annotation of an EnginePool: `spec` when the ModelService sets the replicas, `scale` when something else does."""
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
LEADER: Final = "leaderworkerset.sigs.k8s.io/worker-index=0"
SPEC_MANAGER: Final = "tandem-operator"
STATUS_MANAGER: Final = "tandem-operator-status"
COST_MANAGER: Final = "tandem-operator-cost"
HANDOVER_MANAGER: Final = "tandem-scale-handover"


def pool_name(service: str, pool: str) -> str:
    """Name of the pool's EnginePool, its Service, PodDisruptionBudget and ScaledObject."""
    return f"{service}-{pool}"


def workers_name(service: str, pool: str, revision: str) -> str:
    """Name of the Deployment or LeaderWorkerSet of a pool's revision, and of its ConfigMap."""
    return f"{service}-{pool}-{revision}"


def revision_name(service: str, revision: str) -> str:
    """Name of the ControllerRevision."""
    return f"{service}-{revision}"


def gate_name(service: str, revision: str) -> str:
    """Name of the Job that compares a revision with its predecessor, and of the ConfigMap with its prompts."""
    return f"{service}-gate-{revision}"


def service_labels(service: str) -> dict[str, str]:
    """Labels of every object that belongs to a service."""
    return {MANAGED_BY: TANDEM, "app.kubernetes.io/part-of": TANDEM, SERVICE: service}


def pool_labels(service: str, pool: str, role: str) -> dict[str, str]:
    """Labels of every object that belongs to a pool."""
    return {**service_labels(service), POOL: pool, ROLE: role}


def selector(service: str, pool: str, revision: str | None = None) -> dict[str, str]:
    """Labels by which a pool's pods are found."""
    found = {SERVICE: service, POOL: pool}
    return found if revision is None else {**found, REVISION: revision}


def labels_of(obj: Json) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def annotations_of(obj: Json) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def owner_reference(owner: Json) -> Json:
    """Reference to `owner` as the controller of an object made for it. The garbage collector deletes the object with
    its owner."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
