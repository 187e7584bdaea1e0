"""A mirror of the objects of one selector, with indexes. Its handlers are called with each object that changed."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tandem.kube.kinds import Json

K = TypeVar("K")
Key = tuple[str, str]
"""Namespace (empty where there is none) and name."""
Handler = Callable[[Key, Json | None, Json | None], None]
"""Called with the key, the object as it was and as it is; None stands for absent."""


def key_of(obj: Json) -> Key:
    """The key under which the store keeps an object."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class Store:
    """Plain JSON objects by key, by owner and by label. An object in the store must not be changed."""

    def __init__(self) -> None:
        self._objects: dict[Key, Json] = {}
        self._by_owner: dict[str, dict[Key, None]] = {}
        self._by_label: dict[tuple[str, str], dict[Key, None]] = {}
        self._handlers: list[Handler] = []

    def on_change(self, handler: Handler) -> None:
        """Call `handler` for every change from now on; it must not wait."""
        self._handlers.append(handler)

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Json]:
        return iter(list(self._objects.values()))

    def get(self, key: Key) -> Json | None:
        return self._objects.get(key)

    def owned_by(self, uid: str) -> list[Json]:
        """The objects that name `uid` as an owner."""
        return [self._objects[key] for key in self._by_owner.get(uid, ())]

    def labelled(self, label: str, value: str, namespace: str | None = None) -> list[Json]:
        """The objects with this label, of one namespace or of all."""
        keys = self._by_label.get((label, value), ())
        return [self._objects[key] for key in keys if namespace in (None, key[0])]

    def replace(self, objects: Iterable[Json]) -> None:
        """Become this list: what is not in it has been deleted."""
        new = {key_of(obj): obj for obj in objects}
        for key in [key for key in self._objects if key not in new]:
            self._put(key, None)
        for key, obj in new.items():
            if self._objects.get(key) != obj:
                self._put(key, obj)

    def put(self, obj: Json) -> None:
        """Take over one object that was added or changed."""
        self._put(key_of(obj), obj)

    def remove(self, obj: Json) -> None:
        """Forget one object; one that is not here is nothing new."""
        if key_of(obj) in self._objects:
            self._put(key_of(obj), None)

    def _put(self, key: Key, new: Json | None) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            self._index(key, old, add=False)
        if new is not None:
            self._objects[key] = new
            self._index(key, new, add=True)
        for handler in self._handlers:
            handler(key, old, new)

    def _index(self, key: Key, obj: Json, *, add: bool) -> None:
        metadata = obj["metadata"]
        for owner in metadata.get("ownerReferences", ()):
            _note(self._by_owner, owner["uid"], key, add)
        for label in (metadata.get("labels") or {}).items():
            _note(self._by_label, label, key, add)


def _note(index: dict[K, dict[Key, None]], at: K, key: Key, add: bool) -> None:
    if add:
        index.setdefault(at, {})[key] = None
        return
    keys = index.get(at, {})
    keys.pop(key, None)
    if not keys:
        index.pop(at, None)
