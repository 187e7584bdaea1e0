"""What a mirror keeps of an object: the fields that its readers read. Pure.

A pod as an API server gives it takes 95 KiB as Python objects, most of it bookkeeping (`managedFields`) and what is
only for the kubelet. A mirror of 10,000 pods has no room for that.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from tandem.kube.kinds import Json

Projection = Callable[[Json], Json]
"""From an object as the API server gives it to what a mirror keeps of it. It always keeps `metadata.name`,
`namespace`, `uid`, `resourceVersion` and `labels`."""
Fields = Mapping[str, Any]
"""Names of fields to keep, each with `ALL` for the whole value or the `Fields` within it. In a list they are those of
each item. Of a value with no fields to keep only an empty object is left, which says that it is there."""
ALL: Final = None
PRESENT: Final[Fields] = {}
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""Annotation in which `kubectl apply` writes the whole object once more."""


def only(value: Any, fields: Fields | None) -> Any:
    """The value with these fields alone."""
    if fields is ALL or value is None:
        return value
    if isinstance(value, list):
        return [only(each, fields) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: only(value[name], inner) for name, inner in fields.items() if name in value}


def without_bookkeeping(obj: Json) -> Json:
    """The object without what API server and kubectl note for themselves: `managedFields` and the last applied
    configuration."""
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    annotations = metadata.get("annotations")
    if annotations and _LAST_APPLIED in annotations:
        metadata["annotations"] = {name: value for name, value in annotations.items() if name != _LAST_APPLIED}
    return {**obj, "metadata": metadata}


def with_status(fields: Fields | None) -> Projection:
    """Keeps an object without bookkeeping, and of its status only `fields`."""

    def kept(obj: Json) -> Json:
        found = without_bookkeeping(obj)
        if "status" in found:
            found["status"] = only(found["status"], fields)
        return found

    return kept
