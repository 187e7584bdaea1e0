"""The two CustomResourceDefinitions: names, columns of `kubectl get`, subresources and schemas."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from control_plane.crds.schema import Schema, rules_of, schema_of, without_defaults
from tandem.spec import engine_pool, service
from tandem.spec.engine_pool import EnginePool, EnginePoolSpec
from tandem.spec.service import API_GROUP, API_VERSION, ModelService, Spec
from tandem.spec.status import EnginePoolStatus, ModelServiceStatus

SCHEMA_ANNOTATION: Final = f"{API_GROUP}/schema"
"""Of which schema an installed CRD is: the control plane compares it with its own at start."""
_DIGITS: Final = 10
_SCALE: Final = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


def definitions() -> dict[str, Schema]:
    """By plural name, as they are applied."""
    return {
        "modelservices": _definition(
            service.KIND,
            ["ms"],
            _object(ModelService, Spec, ModelServiceStatus),
            _MODEL_SERVICE_COLUMNS,
            {"status": {}},
        ),
        "enginepools": _definition(
            engine_pool.KIND,
            ["epool"],
            _object(EnginePool, EnginePoolSpec, EnginePoolStatus),
            _ENGINE_POOL_COLUMNS,
            {"status": {}, "scale": _SCALE},
        ),
    }


def _column(name: str, path: str, kind: str = "string", priority: int = 0) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path}
    return {**column, "priority": priority} if priority else column


def _condition(type_: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].{field}'


_AGE: Final = _column("Age", ".metadata.creationTimestamp", "date")
_MODEL_SERVICE_COLUMNS: Final = [
    _column("Model", ".spec.model.source"),
    _column("Ready", _condition("Ready", "status")),
    _column("Reason", _condition("Ready", "reason")),
    _column("Revision", ".status.currentRevision"),
    _column("Update", ".status.updateRevision"),
    _column("Weight", ".status.updateWeight", "integer"),
    _AGE,
    _column("Workers", ".status.readyWorkers", "integer", priority=1),
    _column("Wanted", ".status.wantedWorkers", "integer", priority=1),
    _column("URL", ".status.url", priority=1),
    _column("Message", _condition("Ready", "message"), priority=1),
]
_ENGINE_POOL_COLUMNS: Final = [
    _column("Service", ".spec.modelServiceName"),
    _column("Role", ".spec.role"),
    _column("Desired", ".spec.replicas", "integer"),
    _column("Ready", ".status.readyReplicas", "integer"),
    _column("Updated", ".status.updatedReplicas", "integer"),
    _column("Draining", ".status.drainingReplicas", "integer"),
    _column("Reason", _condition("Ready", "reason"), priority=1),
    _AGE,
]


def _object(kind: type, spec: type[msgspec.Struct], status: type[msgspec.Struct]) -> Schema:
    """The schema of a whole object; what is outside `spec` and `status` belongs to the API server."""
    schema: Schema = {
        "description": " ".join((kind.__doc__ or "").split()),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": schema_of(spec),
            "status": without_defaults(schema_of(status)),
        },
    }
    rules = rules_of(kind)
    return {**schema, "x-kubernetes-validations": rules} if rules else schema


def _definition(
    kind: str, short: list[str], schema: Schema, columns: list[Schema], subresources: Mapping[str, Any]
) -> Schema:
    plural = f"{kind.lower()}s"
    version = {
        "name": API_VERSION.rpartition("/")[2],
        "served": True,
        "storage": True,
        "subresources": dict(subresources),
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{API_GROUP}",
            "annotations": {
                # A removed chart must not take everybody's services with it.
                "helm.sh/resource-policy": "keep",
                SCHEMA_ANNOTATION: digest(version),
            },
            "labels": {"app.kubernetes.io/part-of": "tandem"},
        },
        "spec": {
            "group": API_GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": short,
                "categories": ["tandem"],
            },
            "versions": [version],
        },
    }


def digest(version: Schema) -> str:
    """10 hexadecimal digits of a CRD's version."""
    return hashlib.sha256(msgspec.json.encode(version, order="sorted")).hexdigest()[:_DIGITS]
