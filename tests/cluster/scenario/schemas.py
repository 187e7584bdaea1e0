"""JSON schemas for kubeconform, from the description of Kubernetes' API and from custom resource definitions.

One file for each kind, complete in itself. They are strict: a field that is not described is none.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]

LOCATION: Final = "{{.Group}}_{{.ResourceKind}}_{{.ResourceAPIVersion}}.json"
"""How kubeconform is to find the file of a kind; its group of the core API is the version."""
_REFERENCE: Final = "#/definitions/"
_KINDS: Final = "x-kubernetes-group-version-kind"
_OPEN: Final = "x-kubernetes-preserve-unknown-fields"
_EITHER: Final = "x-kubernetes-int-or-string"
_TEXT_OR_NUMBER: Final = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
}
"""What the description calls a string and the server takes as a number, too."""


def write(directory: Path, described: Json, definitions: Iterable[Json]) -> None:
    """Write a file for each kind that the OpenAPI 2 document `described` and the `definitions` have."""
    known = {**{name: strict(each) for name, each in described["definitions"].items()}, **_TEXT_OR_NUMBER}
    for name, each in described["definitions"].items():
        for kind in each.get(_KINDS, ()):
            whole = {"$ref": f"{_REFERENCE}{name}", "definitions": {one: known[one] for one in _needed(name, known)}}
            _write(directory, kind["group"], kind["version"], kind["kind"], whole)
    for definition in definitions:
        spec = definition["spec"]
        for version in spec["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            schema["properties"] |= {key: {} for key in ("apiVersion", "kind", "metadata")}
            _write(directory, spec["group"], version["name"], spec["names"]["kind"], schema)


def strict(schema: Any) -> Any:
    """The schema without room for fields that it does not describe, and with numbers where these are texts, too."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if schema.get(_EITHER) is True:
        found.pop("type", None)
    named = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if named and "additionalProperties" not in schema and not schema.get(_OPEN):
        found["additionalProperties"] = False
    return found


def _needed(name: str, known: Json) -> set[str]:
    found, open_ends = {name}, [name]
    while open_ends:
        for other in _named(known[open_ends.pop()]):
            if other not in found:
                found.add(other)
                open_ends.append(other)
    return found


def _named(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix(_REFERENCE)
        for value in schema.values():
            yield from _named(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _named(value)


def _write(directory: Path, group: str, version: str, kind: str, schema: Json) -> None:
    path = directory / f"{group or version}_{kind.lower()}_{version}.json"
    path.write_text(json.dumps(schema), "utf-8")
