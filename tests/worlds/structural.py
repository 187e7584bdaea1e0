"""As much of JSON Schema as structural schemas of a CRD have: what of a value a schema refuses, by path."""

import re
from collections.abc import Iterator
from typing import Any

_KINDS: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}


def refused(schema: dict[str, Any], value: Any, path: str = "") -> Iterator[str]:
    kinds = (str, int) if schema.get("x-kubernetes-int-or-string") else _KINDS.get(schema.get("type", ""), object)
    if not isinstance(value, kinds) or (isinstance(value, bool) and schema.get("type") in ("integer", "number")):
        yield f"{path}: not {schema.get('type')}"
    elif isinstance(value, dict):
        yield from _object(schema, value, path)
    elif isinstance(value, list):
        yield from _list(schema, value, path)
    elif isinstance(value, str):
        yield from _text(schema, value, path)
    elif isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{path}: out of bounds"


def _object(schema: dict[str, Any], value: dict[str, Any], path: str) -> Iterator[str]:
    known = schema.get("properties", {})
    if schema.get("x-kubernetes-preserve-unknown-fields") or "properties" not in schema:
        return
    yield from (f"{path}.{key}: unknown" for key in value if key not in known)
    yield from (f"{path}.{key}: required" for key in schema.get("required", ()) if key not in value)
    for key, inner in value.items():
        yield from refused(known.get(key, {}), inner, f"{path}.{key}")


def _list(schema: dict[str, Any], value: list[Any], path: str) -> Iterator[str]:
    if not schema.get("minItems", 0) <= len(value) <= schema["maxItems"]:
        yield f"{path}: bad length"
    keys = schema.get("x-kubernetes-list-map-keys")
    identities = [tuple(one.get(key) for key in keys) if keys else one for one in value]
    if "x-kubernetes-list-type" in schema and any(one in identities[:at] for at, one in enumerate(identities)):
        yield f"{path}: duplicate"
    for index, inner in enumerate(value):
        yield from refused(schema["items"], inner, f"{path}[{index}]")


def _text(schema: dict[str, Any], value: str, path: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: not in enum"
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        yield f"{path}: bad length"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: does not match"
