"""Objects as flat fields, so that who set which can be written down: server-side apply as far as we use it.

A field is a path of keys. Lists that have a merge key are taken apart by it; all other lists are one value. A list
that is empty, or an object without fields, is a value too.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tandem.kube.kinds import Json

MERGE_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "conditions": "type",
        "containers": "name",
        "initContainers": "name",
        "env": "name",
        "volumes": "name",
        "volumeMounts": "mountPath",
        "ownerReferences": "uid",
        "revisions": "name",
        "pools": "name",
    }
)


class Item(NamedTuple):
    """The element of a list whose merge key has this value."""

    key: str
    value: str


Path = tuple[str | Item, ...]
Fields = dict[Path, Any]


def flatten(obj: Any, path: Path = ()) -> Fields:
    """The fields of an object, in its order."""
    return dict(_fields(obj, path))


def _fields(obj: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(obj, dict) and obj:
        for key, value in obj.items():
            yield from _fields(value, (*path, key))
    elif isinstance(obj, list) and obj and path and _merged(path[-1], obj):
        key = MERGE_KEYS[str(path[-1])]
        for item in obj:
            yield from _fields(item, (*path, Item(key, str(item[key]))))
    else:
        yield path, obj


def _merged(name: str | Item, items: list[Any]) -> bool:
    key = MERGE_KEYS.get(name) if isinstance(name, str) else None
    return key is not None and all(isinstance(item, dict) and key in item for item in items)


def unflatten(fields: Mapping[Path, Any]) -> Json:
    """The object with these fields; lists keep the order in which their elements came."""
    root: dict[str | Item, Any] = {}
    for path, value in fields.items():
        at = root
        for step in path[:-1]:
            at = at.setdefault(step, {})
        at[path[-1]] = value
    built: Json = _built(root)
    return built


def _built(node: Any) -> Any:
    if not isinstance(node, dict) or not node:
        return node
    if all(isinstance(key, Item) for key in node):
        return [_built(value) for value in node.values()]
    return {key: _built(value) for key, value in node.items()}


def clashing(path: Path, other: Path) -> bool:
    """Whether one of two different fields lies inside the other, so that both cannot be there."""
    shorter = min(len(path), len(other))
    return len(path) != len(other) and path[:shorter] == other[:shorter]
