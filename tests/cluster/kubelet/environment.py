"""The environment and command line of a container. Pure: what it refers to is given."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tandem.kube.kinds import Json

Data = Callable[[str, str], Mapping[str, str] | None]
"""The values of ("ConfigMap" or "Secret", name), None where there is no such object."""
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "metadata.name": ("metadata", "name"),
    "metadata.namespace": ("metadata", "namespace"),
    "metadata.uid": ("metadata", "uid"),
    "spec.nodeName": ("spec", "nodeName"),
    "spec.serviceAccountName": ("spec", "serviceAccountName"),
    "status.podIP": ("status", "podIP"),
    "status.podIPs": ("status", "podIP"),
    "status.hostIP": ("status", "hostIP"),
}
_MAP_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class NotThere(Exception):
    """Something that a container refers to does not exist (yet)."""


def variables(container: Json, pod: Json, data: Data, base: Mapping[str, str]) -> dict[str, str]:
    """All variables; `pod` has its addresses in its status. Raises NotThere."""
    made = dict(base)
    for source in container.get("envFrom") or ():
        made |= dict(_all_of(source, data))
    for entry in container.get("env") or ():
        if "valueFrom" in entry:
            value = _value(entry["valueFrom"], container, pod, data)
        else:
            value = expanded(entry.get("value") or "", made)
        if value is not None:
            made[entry["name"]] = value
    return made


def command(container: Json, environment: Mapping[str, str]) -> list[str]:
    """Command and arguments with their $(VARIABLES). Raises NotThere without a command: images are not read."""
    given = list(container.get("command") or ())
    if not given:
        raise NotThere(f"container {container['name']} has no command, and images have none here")
    return [expanded(part, environment) for part in (*given, *(container.get("args") or ()))]


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """$(NAME) replaced where there is such a variable; $$ is one $."""

    def put(found: re.Match[str]) -> str:
        if found.group(1) is None:
            return "$"
        return environment.get(found.group(1), found.group(0))

    return _REFERENCE.sub(put, text)


def field_of(path: str, pod: Json) -> str:
    """A field as the downward API gives it."""
    within = _MAP_FIELD.fullmatch(path)
    if within:
        return str((pod["metadata"].get(within[1]) or {}).get(within[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        held = pod["metadata"].get(path.partition(".")[2]) or {}
        return "".join(f'{key}="{value}"\n' for key, value in sorted(held.items()))
    at: Any = pod
    for step in _FIELDS[path]:
        at = at.get(step) or ""
    return str(at)


def _all_of(source: Json, data: Data) -> Iterator[tuple[str, str]]:
    for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        if key in source:
            held = _held(kind, source[key], data)
            yield from ((source.get("prefix", "") + name, value) for name, value in held.items())


def _value(source: Json, container: Json, pod: Json, data: Data) -> str | None:
    if "fieldRef" in source:
        return field_of(source["fieldRef"]["fieldPath"], pod)
    if "resourceFieldRef" in source:
        which, _, name = source["resourceFieldRef"]["resource"].partition(".")
        return str((container.get("resources", {}).get(which) or {}).get(name, "0"))
    for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if key in source:
            reference = source[key]
            held = _held(kind, reference, data)
            if reference["key"] not in held and not reference.get("optional"):
                raise NotThere(f"{kind} {reference['name']} has no key {reference['key']}")
            return held.get(reference["key"])
    raise NotThere(f"a variable from {', '.join(source)} is not known here")


def _held(kind: str, reference: Json, data: Data) -> Mapping[str, str]:
    held = data(kind, reference["name"])
    if held is None and not reference.get("optional"):
        raise NotThere(f"{kind} {reference['name']} not found")
    return held or {}
