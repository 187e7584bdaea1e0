"""An API server in memory, deterministic: for properties and for the operator's simulation.

What it keeps to: one growing resourceVersion; lists in pages of one moment; watches from any version that is still
kept, else 410; server-side apply with owned fields; `generation` only when something besides metadata and status
changes; no event for a write that changes nothing; finalizers; preconditions; dependents go with the last of their
owners.
"""

import asyncio
from collections.abc import AsyncGenerator
from copy import deepcopy
from typing import Final

from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.kube.cluster import Conflict, Expired, NotFound, Page, Selector, WatchEvent
from tandem.kube.dump import ClusterDump, read_dump, stored_of, write_dump
from tandem.kube.history import Change, History
from tandem.kube.kinds import Json, Kind, Ref, ref_of
from tandem.kube.stored import Stored
from tandem.kube.times import timestamp

_LOST_MAX: Final = 1_000_000
"""Versions and uids that a restored cluster leaves out: those given after the dump are never given again."""


class MemoryCluster:
    """`tandem.kube.cluster.Cluster` without a server. `writes` counts what changed something."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[Ref, Stored] = {}
        self._history = History()
        self._uids = 0
        self._alive: set[str] = set()
        """The uids of all objects."""
        self._open_pages: dict[str, tuple[str, list[Json]]] = {}
        self.writes = 0

    # -- Reading --------------------------------------------------------------------------------------------------

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        await asyncio.sleep(0)
        if token is None:
            version, items = str(self._history.version), self._matching(selector)
        elif token in self._open_pages:
            version, items = self._open_pages.pop(token)
        else:
            raise Expired("the continue token is too old")
        page, rest = items[:limit], items[limit:]
        if not rest:
            return Page(tuple(page), version, None)
        following = f"{version}+{len(rest)}+{selector.kind.plural}"
        self._open_pages[following] = (version, rest)
        return Page(tuple(page), version, following)

    async def watch(self, selector: Selector, version: str) -> AsyncGenerator[WatchEvent, None]:
        async for change in self._history.after(int(version)):
            event = _seen(change, selector)
            if event is not None:
                yield WatchEvent(event.type, deepcopy(event.object))

    async def get(self, ref: Ref) -> Json:
        await asyncio.sleep(0)
        return self._at(ref).json()

    # -- Writing --------------------------------------------------------------------------------------------------

    async def apply(self, obj: Json, manager: str, *, force: bool = True) -> Json:
        await asyncio.sleep(0)
        ref = ref_of(obj)
        stored = self._objects.get(ref)
        uid = obj["metadata"].get("uid")
        if uid is not None and (stored is None or stored.system["metadata"]["uid"] != uid):
            raise Conflict(f"{ref} is not the one with uid {uid}")
        new = stored is None
        stored = stored or self._fresh(ref)
        trial = deepcopy(stored)
        changed = trial.apply(deepcopy(obj), manager, force, "main")
        return self._commit(ref, stored, trial, new, changed)

    async def apply_status(self, obj: Json, manager: str) -> Json:
        await asyncio.sleep(0)
        ref = ref_of(obj)
        stored = self._at(ref)
        trial = deepcopy(stored)
        return self._commit(ref, stored, trial, False, trial.apply(deepcopy(obj), manager, True, "status"))

    async def create(self, obj: Json) -> Json:
        await asyncio.sleep(0)
        ref = ref_of(obj)
        if ref in self._objects:
            raise Conflict(f"{ref} is there already")
        trial = self._fresh(ref)
        trial.replace(deepcopy(obj), "main")
        return self._commit(ref, trial, trial, True, True)

    async def update(self, obj: Json) -> Json:
        await asyncio.sleep(0)
        ref = ref_of(obj)
        stored = self._at(ref)
        version = obj["metadata"].get("resourceVersion")
        if version != stored.system["metadata"]["resourceVersion"]:
            raise Conflict(f"{ref} has changed since version {version}")
        trial = deepcopy(stored)
        return self._commit(ref, stored, trial, False, trial.replace(deepcopy(obj), "main"))

    async def scale(self, ref: Ref, replicas: int) -> None:
        await asyncio.sleep(0)
        if not ref.kind.scale:
            raise NotFound(f"{ref} has no scale")
        stored = self._at(ref)
        trial = deepcopy(stored)
        current = stored.json()
        spec = {**current.get("spec", {}), "replicas": replicas}
        self._commit(ref, stored, trial, False, trial.replace({**current, "spec": spec}, "main"))

    async def delete(self, ref: Ref, *, uid: str | None = None, version: str | None = None) -> None:
        await asyncio.sleep(0)
        stored = self._at(ref)
        metadata = stored.system["metadata"]
        if uid not in (None, metadata["uid"]) or version not in (None, metadata["resourceVersion"]):
            raise Conflict(f"{ref} is not the one to be deleted")
        if not stored.json()["metadata"].get("finalizers"):
            self._remove(ref)
        elif "deletionTimestamp" not in metadata:
            metadata["deletionTimestamp"] = self._time()
            self._record(ref, stored, "modified")

    async def close(self) -> None:
        self.disconnect()

    # -- Keeping -------------------------------------------------------------------------------------------------

    @property
    def version(self) -> str:
        """The newest version: that of the last write."""
        return str(self._history.version)

    def dump(self) -> bytes:
        """All objects with the managers of their fields, for `restore`. History is left out."""
        return write_dump(self._history.version, self._uids, self._objects)

    def restore(self, dump: bytes) -> None:
        """Become what the dumped cluster was; this one must be empty. Every watch, and every page of a list, from
        before has expired, also where the dumped cluster was written to after the dump.

        Raises `bad_setting` for bytes that are no dump.
        """
        assert not self._objects, "only an empty cluster is restored"
        found: ClusterDump = read_dump(dump)
        self._objects = {ref: stored_of(each) for ref, each in found.by_ref().items()}
        self._alive = {stored.system["metadata"]["uid"] for stored in self._objects.values()}
        self._uids = found.uids + _LOST_MAX
        newest = {ref: stored.json() for ref, stored in self._objects.items()}
        self._history.restart(found.version + _LOST_MAX, newest)

    # -- Misfortunes ----------------------------------------------------------------------------------------------

    def disconnect(self) -> None:
        """End every watch, as a server does that restarts."""
        self._history.disconnect()

    def bookmark(self) -> None:
        """Send a bookmark on every open watch."""
        self._history.bookmark()

    def compact(self) -> None:
        """Forget all history: watches and pages from before now are 410."""
        self._history.compact()
        self._open_pages.clear()

    # -- Within ---------------------------------------------------------------------------------------------------

    def peek(self, ref: Ref) -> Json | None:
        """One object, or None where there is none; at once."""
        stored = self._objects.get(ref)
        return None if stored is None else stored.json()

    def objects(self, kind: Kind) -> list[Json]:
        """All objects of a kind, at once."""
        return self._matching(Selector(kind))

    def _matching(self, selector: Selector) -> list[Json]:
        refs = (ref for ref in self._objects if ref.kind == selector.kind)
        ordered = sorted(refs, key=lambda ref: (ref.namespace, ref.name))
        objects = (self._objects[ref].json() for ref in ordered)
        return [obj for obj in objects if _selected(obj, selector)]

    def _at(self, ref: Ref) -> Stored:
        if ref not in self._objects:
            raise NotFound(f"there is no {ref}")
        return self._objects[ref]

    def _fresh(self, ref: Ref) -> Stored:
        self._uids += 1
        metadata = {"name": ref.name, "uid": f"uid-{self._uids}", "creationTimestamp": self._time()}
        if ref.kind.namespaced:
            if not ref.namespace:
                raise TandemError("invalid_request", f"{ref} needs a namespace", param="metadata.namespace")
            metadata["namespace"] = ref.namespace
        return Stored({"apiVersion": ref.kind.api_version, "kind": ref.kind.kind, "metadata": metadata})

    def _commit(self, ref: Ref, before: Stored, after: Stored, new: bool, changed: bool) -> Json:
        if not new and not changed:
            self._objects[ref] = after
            return after.json()
        metadata = after.system["metadata"]
        if new or _meaning(before) != _meaning(after):
            metadata["generation"] = metadata.get("generation", 0) + 1
        self._objects[ref] = after
        self._alive.add(metadata["uid"])
        self._record(ref, after, "added" if new else "modified")
        answer = after.json()
        if ("deletionTimestamp" in metadata and not answer["metadata"].get("finalizers")) or self._orphaned(after):
            self._remove(ref)
        return answer

    def _record(self, ref: Ref, stored: Stored, change: str) -> None:
        self.writes += 1
        old = self._history.newest(ref)
        stored.system["metadata"]["resourceVersion"] = str(self._history.version + 1)
        self._history.add(ref, change, stored.json(), old)

    def _remove(self, ref: Ref) -> None:
        stored = self._objects.pop(ref)
        uid = stored.system["metadata"]["uid"]
        self._alive.discard(uid)
        self._record(ref, stored, "deleted")
        for dependent, other in list(self._objects.items()):
            if dependent in self._objects and uid in _owners(other) and self._orphaned(other):
                self._let_go(dependent, other)

    def _let_go(self, ref: Ref, stored: Stored) -> None:
        if not stored.json()["metadata"].get("finalizers"):
            self._remove(ref)
        elif "deletionTimestamp" not in stored.system["metadata"]:
            stored.system["metadata"]["deletionTimestamp"] = self._time()
            self._record(ref, stored, "modified")

    def _orphaned(self, stored: Stored) -> bool:
        """Whether it has owners and none of them is there."""
        owners = _owners(stored)
        return bool(owners) and not any(uid in self._alive for uid in owners)

    def _time(self) -> str:
        return timestamp(self._clock.wall())


def _owners(stored: Stored) -> list[str]:
    owners = ((path, value) for path, value in stored.fields.items() if path[:2] == ("metadata", "ownerReferences"))
    return [str(value) for path, value in owners if path[-1] == "uid"]


def _meaning(stored: Stored) -> Json:
    return {str(path): value for path, value in stored.fields.items() if path[0] not in ("metadata", "status")}


def _seen(change: Change, selector: Selector) -> WatchEvent | None:
    """The change as a watch with this selector sees it: an object that leaves the selection is deleted from it."""
    if change.ref is None:
        return WatchEvent("bookmark", change.object)
    if change.ref.kind != selector.kind:
        return None
    now = change.type != "deleted" and _selected(change.object, selector)
    was = change.old is not None and _selected(change.old, selector)
    if not now:
        return WatchEvent("deleted", change.object) if was else None
    return WatchEvent("modified" if was else "added", change.object)


def _selected(obj: Json, selector: Selector) -> bool:
    metadata = obj["metadata"]
    if selector.namespace not in (None, metadata.get("namespace")):
        return False
    labels = metadata.get("labels", {})
    for term in filter(None, selector.labels.split(",")):
        key, equals, value = term.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    return True
