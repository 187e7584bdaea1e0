"""Leaves out of an object what its kind does not declare in the version that a cluster has. Pure.

Server-side apply refuses an object with one undeclared field as a whole, so that one field which a newer version
added would take everything else with it.
"""

from collections.abc import Mapping
from typing import Any, Final

from tandem.kube.kinds import Json, Kind

_OPEN: Final = "x-kubernetes-preserve-unknown-fields"
_OUTSIDE: Final = ("apiVersion", "kind", "metadata")
"""What every kind has, whatever its schema says."""


def served_schema(definition: Json, kind: Kind) -> Json | None:
    """The OpenAPI schema of a kind's version in its CustomResourceDefinition; None where it is not served."""
    for version in definition["spec"]["versions"]:
        if version["name"] == kind.version and version.get("served"):
            schema: Json | None = (version.get("schema") or {}).get("openAPIV3Schema")
            return schema
    return None


def pruned(obj: Json, schema: Json) -> tuple[Json, tuple[str, ...]]:
    """The object with declared fields alone, and the paths of what was left out, in order."""
    lost: list[str] = []
    inner = {key: value for key, value in obj.items() if key not in _OUTSIDE}
    kept = _pruned(inner, schema, "", lost)
    return {**{key: obj[key] for key in _OUTSIDE if key in obj}, **kept}, tuple(sorted(set(lost)))


def _pruned(value: Any, schema: Mapping[str, Any], path: str, lost: list[str]) -> Any:
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [_pruned(each, items, f"{path}[]", lost) for each in value]
    if not isinstance(value, dict) or schema.get(_OPEN):
        return value
    properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
    found = {}
    for key, inner in value.items():
        at = f"{path}.{key}" if path else key
        if key in properties:
            found[key] = _pruned(inner, properties[key], at, lost)
        elif others:
            found[key] = _pruned(inner, others if isinstance(others, dict) else {_OPEN: True}, at, lost)
        else:
            lost.append(at)
    return found
