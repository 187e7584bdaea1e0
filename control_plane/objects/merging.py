"""Strategic merge as `kubectl patch` does it, for pod templates."""

from collections.abc import Mapping
from typing import Any, Final

_KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
"""Lists whose elements are merged by a key; all others are replaced."""
_DIRECTIVE: Final = "$patch"


def merged(base: Any, patch: Any, name: str = "") -> Any:
    """`base` with `patch` over it. None deletes a key; `$patch: replace` and `$patch: delete` are obeyed."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return _objects(base, patch)
    key = _KEYS.get(name)
    if key is not None and isinstance(base, list) and isinstance(patch, list) and _all_have(key, patch):
        return _lists(base, patch, key)
    return _plain(patch)


def _objects(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    if patch.get(_DIRECTIVE) == "replace":
        return dict(_plain(patch))
    found = dict(base)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value, key)
    return found


def _lists(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    if any(item.get(_DIRECTIVE) == "replace" and key not in item for item in patch):
        return [_plain(item) for item in patch if key in item]
    found = {item[key]: item for item in base}
    for item in patch:
        if item.get(_DIRECTIVE) == "delete":
            found.pop(item[key], None)
        else:
            found[item[key]] = merged(found.get(item[key]), item)
    return list(found.values())


def _all_have(key: str, items: list[Any]) -> bool:
    return all(isinstance(item, dict) and (key in item or _DIRECTIVE in item) for item in items)


def _plain(value: Any) -> Any:
    """A patch where there was nothing: without what it deletes."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if inner is not None and key != _DIRECTIVE}
    if isinstance(value, list):
        deleted = {"delete", "replace"}
        return [_plain(item) for item in value if not (isinstance(item, dict) and item.get(_DIRECTIVE) in deleted)]
    return value
