"""A cluster in memory as bytes, so that it outlives its process. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tandem.core.errors import TandemError
from tandem.kube.fields import Path
from tandem.kube.kinds import KINDS, Ref
from tandem.kube.stored import Stored

FORMAT: Final = 1


class StoredDump(msgspec.Struct, frozen=True, array_like=True):
    """One object: `system` as in `Stored`, its fields in their order, and the fields that each manager owns."""

    system: dict[str, Any]
    fields: list[tuple[Path, Any]]
    managers: dict[str, list[Path]]


class ClusterDump(msgspec.Struct, frozen=True):
    """All objects of a cluster, with the last version and the number of uids that it has given."""

    format: int
    version: int
    uids: int
    objects: list[StoredDump]

    def by_ref(self) -> dict[Ref, StoredDump]:
        """The objects by reference. Raises `bad_setting` for a kind that is not known."""
        return {_ref_of(each.system): each for each in self.objects}


def write_dump(version: int, uids: int, objects: Mapping[Ref, Stored]) -> bytes:
    """As bytes (msgpack); `uids` is how many uids have been given."""
    dumped = [
        StoredDump(
            stored.system,
            list(stored.fields.items()),
            {manager: list(owned) for manager, owned in stored.managers.items()},
        )
        for stored in objects.values()
    ]
    return msgspec.msgpack.encode(ClusterDump(FORMAT, version, uids, dumped))


def read_dump(dump: bytes) -> ClusterDump:
    """Raises `bad_setting` for bytes that are no dump, or one of another format."""
    try:
        found = msgspec.msgpack.decode(dump, type=ClusterDump)
    except msgspec.DecodeError as error:
        raise TandemError("bad_setting", f"the state of the cluster cannot be read: {error}") from error
    if found.format != FORMAT:
        problem = f"the state of the cluster has format {found.format}; this version reads {FORMAT}"
        raise TandemError("bad_setting", problem)
    return found


def stored_of(dumped: StoredDump) -> Stored:
    """The object as the cluster holds it."""
    managers = {manager: dict.fromkeys(owned) for manager, owned in dumped.managers.items()}
    return Stored(dumped.system, dict(dumped.fields), managers)


def _ref_of(system: dict[str, Any]) -> Ref:
    key = (str(system.get("apiVersion")), str(system.get("kind")))
    if key not in KINDS:
        raise TandemError("bad_setting", f"the state of the cluster has an object of kind {'/'.join(key)}")
    metadata = system["metadata"]
    return Ref(KINDS[key], metadata.get("namespace", ""), metadata["name"])
