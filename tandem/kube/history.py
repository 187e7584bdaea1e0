"""The changes in a cluster in memory, for those that watch it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tandem.kube.cluster import Expired
from tandem.kube.kinds import Json, Ref


@dataclass(frozen=True)
class Change:
    """One write: the object as it became (or was when deleted), and as it was before, if it was.

    A bookmark is of no object: `ref` is None.
    """

    version: int
    ref: Ref | None
    type: str
    object: Json
    old: Json | None


class History:
    """Changes since the last compaction, in order; each has a version of its own."""

    def __init__(self) -> None:
        self.version = 1
        self._kept_from = 1
        self._changes: list[Change] = []
        self._newest: dict[Ref, Json] = {}
        self._stirred = asyncio.Event()
        self._connections = 0
        self._bookmarks = 0

    def newest(self, ref: Ref) -> Json | None:
        """The object as of its last change."""
        return self._newest.get(ref)

    def add(self, ref: Ref, change: str, obj: Json, old: Json | None) -> None:
        """Write one change down and wake who watches."""
        self.version += 1
        self._changes.append(Change(self.version, ref, change, obj, old))
        if change == "deleted":
            self._newest.pop(ref, None)
        else:
            self._newest[ref] = obj
        self._stir()

    def disconnect(self) -> None:
        """End every stream that is open now."""
        self._connections += 1
        self._stir()

    def bookmark(self) -> None:
        """Tell every open stream how far it is."""
        self._bookmarks += 1
        self._stir()

    def compact(self) -> None:
        """Forget what happened so far."""
        self._kept_from = self.version
        self._changes.clear()
        self._stir()

    def restart(self, version: int, newest: dict[Ref, Json]) -> None:
        """Begin anew at `version` with these objects; every earlier version has expired."""
        self.version = version
        self._newest = newest
        self.compact()

    async def after(self, version: int) -> AsyncIterator[Change]:
        """Changes after `version` until disconnected, not to be changed; `Expired` when they are forgotten."""
        connection, bookmarks = self._connections, self._bookmarks
        while connection == self._connections:
            if version < self._kept_from:
                raise Expired(f"version {version} is too old: {self._kept_from} is the oldest that is kept")
            if version > self.version:
                raise Expired(f"version {version} is not one of these: {self.version} is the newest")
            pending = self._changes[version - self._kept_from :]
            for change in pending:
                version = change.version
                yield change
                if connection != self._connections:
                    return
            if bookmarks != self._bookmarks:
                bookmarks = self._bookmarks
                yield Change(version, None, "bookmark", {"metadata": {"resourceVersion": str(version)}}, None)
            elif not pending:
                await self._stirred.wait()

    def _stir(self) -> None:
        self._stirred.set()
        self._stirred = asyncio.Event()
