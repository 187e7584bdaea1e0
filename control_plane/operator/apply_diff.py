"""Whether an object has to be applied at all. Pure.

Each applied object bears the digest of what was applied. One that bears it and still has every field as it was
applied needs no write; this also holds for an operator that has just started. Where the API server writes a value in
another form than we do, what it made of it is remembered.
"""

import hashlib
from typing import Any

import msgspec

from control_plane.objects.names import APPLIED, annotations_of
from tandem.kube.fields import MERGE_KEYS
from tandem.kube.kinds import Json

_VOLATILE = ("resourceVersion", "generation", "managedFields", "uid", "creationTimestamp", "deletionTimestamp")
_KEYS = {**MERGE_KEYS, "ports": "containerPort"}


def signed(obj: Json) -> tuple[Json, str]:
    """The object with its digest as an annotation, and the digest."""
    digest = _digest(obj)
    metadata = obj["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED: digest}
    return {**obj, "metadata": {**metadata, "annotations": annotations}}, digest


def fingerprint(stored: Json) -> str:
    """Digest of everything in an object that others could have changed, except its status."""
    metadata = {key: value for key, value in stored["metadata"].items() if key not in _VOLATILE}
    return _digest({**{key: value for key, value in stored.items() if key != "status"}, "metadata": metadata})


def signature(stored: Json) -> str | None:
    """The digest that an object bears."""
    return annotations_of(stored).get(APPLIED)


def holds(stored: Any, wanted: Any, name: str = "") -> bool:
    """Whether every field of `wanted` is in `stored` as it is. Lists with a merge key may have more elements."""
    if isinstance(wanted, dict):
        return isinstance(stored, dict) and all(
            holds(stored.get(key), value, key) for key, value in wanted.items() if value not in (None, {}, [])
        )
    if isinstance(wanted, list) and isinstance(stored, list):
        return _list_holds(stored, wanted, name)
    return bool(stored == wanted)


def _list_holds(stored: list[Any], wanted: list[Any], name: str) -> bool:
    key = _KEYS.get(name)
    if key is None or not all(isinstance(each, dict) and key in each for each in (*stored, *wanted)):
        return len(stored) == len(wanted) and all(holds(*pair) for pair in zip(stored, wanted, strict=True))
    there = {each[key]: each for each in stored}
    return all(each[key] in there and holds(there[each[key]], each) for each in wanted)


def _digest(value: Json) -> str:
    return hashlib.blake2b(msgspec.json.encode(value, order="deterministic"), digest_size=8).hexdigest()
