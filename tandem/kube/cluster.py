"""The cluster seam: what the operator asks of an API server.

`kube_cluster.KubeCluster` speaks to a real one, `memory_cluster.MemoryCluster` is one. Both pass
`tests/contract/cluster.py`. Every call has a bound of its own; none retries.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tandem.core.errors import TandemError
from tandem.kube.kinds import Json, Kind, Ref

WatchType = Literal["added", "modified", "deleted", "bookmark"]


@dataclass(frozen=True)
class Selector:
    """Selects objects of one kind, in one namespace or (None) in all, with these labels (`a=b,c`)."""

    kind: Kind
    namespace: str | None = None
    labels: str = ""


@dataclass(frozen=True)
class Page:
    """One page of a list. `version` is the version of the whole list; `token` asks for the next page and is None
    after the last. Reading an item may raise `link_lost`: some clusters decode it only then."""

    items: Sequence[Json]
    version: str
    token: str | None


@dataclass(frozen=True)
class WatchEvent:
    """One change. A bookmark has an object with nothing but the version reached."""

    type: WatchType
    object: Json


class NotFound(TandemError):
    """The object does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__("not_found", message)


class Conflict(TandemError):
    """A precondition does not hold, a field belongs to another manager, or the object is already there."""

    def __init__(self, message: str) -> None:
        super().__init__("conflict", message)


class Expired(TandemError):
    """The version asked for is no longer kept (HTTP 410): list again."""

    def __init__(self, message: str) -> None:
        super().__init__("stale_epoch", message)


class Cluster(Protocol):
    """An API server. Errors are `NotFound`, `Conflict`, `Expired`, and `TandemError` for all else."""

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        """One page of at most `limit` objects. `Expired` when `token` is too old."""
        ...

    def watch(self, selector: Selector, version: str) -> AsyncGenerator[WatchEvent, None]:
        """Changes after `version`, with bookmarks, until the server ends the stream. `Expired` when it is too old."""
        ...

    async def get(self, ref: Ref) -> Json:
        """One object, read from the server."""
        ...

    async def apply(self, obj: Json, manager: str, *, force: bool = True) -> Json:
        """Server-side apply: `obj` is all that `manager` has an opinion on; what it had before and not now goes.

        With `force` fields are taken from other managers; without it that is a `Conflict`. With `metadata.uid` only
        that very object is changed.
        """
        ...

    async def apply_status(self, obj: Json, manager: str) -> Json:
        """Server-side apply to the status subresource of an object that exists; always with force."""
        ...

    async def create(self, obj: Json) -> Json:
        """A new object; `Conflict` when it is there already."""
        ...

    async def update(self, obj: Json) -> Json:
        """Replace the object; `Conflict` unless `metadata.resourceVersion` is the newest."""
        ...

    async def scale(self, ref: Ref, replicas: int) -> None:
        """Set `spec.replicas` by the scale subresource, as HPA and `kubectl scale` do."""
        ...

    async def delete(self, ref: Ref, *, uid: str | None = None, version: str | None = None) -> None:
        """Delete it and, in the background, what it owns; `Conflict` when it is not the one with `uid` and `version`.

        `NotFound` when it is gone.
        """
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...
