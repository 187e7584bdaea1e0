"""One object in memory with the managers of its fields."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from tandem.kube.cluster import Conflict
from tandem.kube.fields import Fields, Path, clashing, flatten, unflatten
from tandem.kube.kinds import Json

_IDENTITY = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")


@dataclass
class Stored:
    """`fields` are what users and controllers set; `system` is the metadata that only the server sets."""

    system: Json
    fields: Fields = field(default_factory=dict)
    managers: dict[str, dict[Path, None]] = field(default_factory=dict)
    _packed: bytes | None = None
    """The fields as an object, which is read more often than it changes; None since the last change."""

    def json(self) -> Json:
        """The object as it is read: a copy."""
        if self._packed is None:
            self._packed = msgspec.msgpack.encode(unflatten(self.fields))
        body = msgspec.msgpack.decode(self._packed)
        metadata = {**body.pop("metadata", {}), **self.system["metadata"]}
        return {"apiVersion": self.system["apiVersion"], "kind": self.system["kind"], "metadata": metadata, **body}

    def apply(self, obj: Json, manager: str, force: bool, part: str) -> bool:
        """Server-side apply to `part` ("status" or the rest, "main"); whether it changed. May raise `Conflict`."""
        key = f"{manager}/{part}"
        wanted = settable(obj, part)
        self._settle(wanted, key, force)
        before, self._packed = dict(self.fields), None
        for path in self.managers.get(key, {}):
            if path not in wanted and not self._owned_elsewhere(path, key):
                self.fields.pop(path, None)
        self._set(wanted)
        self.managers[key] = dict.fromkeys(wanted)
        return before != self.fields

    def replace(self, obj: Json, part: str) -> bool:
        """Apply an update: every field of `part` becomes that of `obj`, and the update owns the changed ones."""
        wanted = settable(obj, part)
        mine = {path: value for path, value in self.fields.items() if _part(path) == part}
        changed = {path: value for path, value in wanted.items() if path not in mine or mine[path] != value}
        gone = [path for path in mine if path not in wanted]
        self._packed = None
        for path in gone:
            del self.fields[path]
        self._set(wanted)
        for owned in self.managers.values():
            for path in (*changed, *gone):
                owned.pop(path, None)
        self.managers.setdefault(f"update/{part}", {}).update(dict.fromkeys(changed))
        return bool(changed or gone)

    def _settle(self, wanted: Fields, key: str, force: bool) -> None:
        """Take the fields whose value changes from their other managers."""
        for other, owned in self.managers.items():
            if other == key:
                continue
            taken = [path for path in owned if self._disputed(path, wanted)]
            if taken and not force:
                raise Conflict(f"field {_text(taken[0])} is managed by {other.rpartition('/')[0]}")
            for path in taken:
                del owned[path]

    def _disputed(self, path: Path, wanted: Fields) -> bool:
        if path in wanted:
            return bool(self.fields.get(path) != wanted[path])
        return any(clashing(path, new) for new in wanted)

    def _owned_elsewhere(self, path: Path, key: str) -> bool:
        return any(path in owned for other, owned in self.managers.items() if other != key)

    def _set(self, wanted: Fields) -> None:
        for path, value in wanted.items():
            for clash in [old for old in self.fields if clashing(old, path)]:
                del self.fields[clash]
            self.fields[path] = value


def settable(obj: Json, part: str) -> Fields:
    """The fields of `part` that a client may set."""
    body = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
    metadata = {key: value for key, value in obj.get("metadata", {}).items() if key not in _IDENTITY}
    whole = {**body, "metadata": metadata} if metadata else body
    return {path: value for path, value in flatten(whole).items() if path and _part(path) == part}


def _part(path: Path) -> str:
    return "status" if path[0] == "status" else "main"


def _text(path: tuple[Any, ...]) -> str:
    return ".".join(str(step) if isinstance(step, str) else f"[{step[0]}={step[1]}]" for step in path)
