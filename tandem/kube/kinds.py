"""The kinds of objects that the operator reads or writes, and their place in the API."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

Json = dict[str, Any]
"""One object as the API server gives it, decoded and never changed in place."""


@dataclass(frozen=True)
class Kind:
    """A kind of object. `group` is empty for the core group; `status` says whether status is a subresource of its
    own."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    status: bool = True
    scale: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


@dataclass(frozen=True)
class Ref:
    """The name of one object; `namespace` is empty where the kind has none."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind.kind} {place}{self.name}"


MODEL_SERVICE: Final = Kind("tandem.dev", "v1alpha1", "ModelService", "modelservices")
ENGINE_POOL: Final = Kind("tandem.dev", "v1alpha1", "EnginePool", "enginepools", scale=True)
POD: Final = Kind("", "v1", "Pod", "pods")
NODE: Final = Kind("", "v1", "Node", "nodes", namespaced=False)
SERVICE: Final = Kind("", "v1", "Service", "services")
CONFIG_MAP: Final = Kind("", "v1", "ConfigMap", "configmaps", status=False)
DEPLOYMENT: Final = Kind("apps", "v1", "Deployment", "deployments", scale=True)
CONTROLLER_REVISION: Final = Kind("apps", "v1", "ControllerRevision", "controllerrevisions", status=False)
POD_DISRUPTION_BUDGET: Final = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
JOB: Final = Kind("batch", "v1", "Job", "jobs")
LEASE: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases", status=False)
EVENT: Final = Kind("events.k8s.io", "v1", "Event", "events", status=False)
SCALED_OBJECT: Final = Kind("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects")
TRIGGER_AUTHENTICATION: Final = Kind("keda.sh", "v1alpha1", "TriggerAuthentication", "triggerauthentications")
LEADER_WORKER_SET: Final = Kind("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets", scale=True)
CUSTOM_RESOURCE: Final = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)

_ALL: Final = (
    MODEL_SERVICE,
    ENGINE_POOL,
    POD,
    NODE,
    SERVICE,
    CONFIG_MAP,
    DEPLOYMENT,
    CONTROLLER_REVISION,
    POD_DISRUPTION_BUDGET,
    JOB,
    LEASE,
    EVENT,
    SCALED_OBJECT,
    TRIGGER_AUTHENTICATION,
    LEADER_WORKER_SET,
    CUSTOM_RESOURCE,
)
KINDS: Final[Mapping[tuple[str, str], Kind]] = MappingProxyType({(k.api_version, k.kind): k for k in _ALL})


def kind_of(obj: Json) -> Kind:
    """The kind that an object declares. A kind that is not listed here is a bug in Tandem and fails an assertion."""
    key = (obj["apiVersion"], obj["kind"])
    assert key in KINDS, f"unknown kind {key}"
    return KINDS[key]


def ref_of(obj: Json, kind: Kind | None = None) -> Ref:
    """The name of an object. Items of a list do not say their kind: give it."""
    metadata = obj["metadata"]
    return Ref(kind or kind_of(obj), metadata.get("namespace", ""), metadata["name"])
