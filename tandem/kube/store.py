"""A mirror of the objects of one selector, with indexes. Its handlers are called with each object that changed."""

from collections.abc import Callable, Collection, Iterable, Iterator

from tandem.kube.kinds import Json

Key = tuple[str, str]
"""Namespace (empty where there is none) and name."""
Handler = Callable[[Key, Json | None, Json | None], None]
"""Called with the key, the object as it was and as it is; None stands for absent."""


def key_of(obj: Json) -> Key:
    """The key under which the store keeps an object."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class Store:
    """Plain JSON objects by key and by label. An object in the store must not be changed."""

    def __init__(self) -> None:
        self._objects: dict[Key, Json] = {}
        self._by_label: dict[str, dict[str, dict[Key, None]]] = {}
        """For each label that was ever asked for, the objects by its value."""
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

    def labelled(self, label: str, value: str, namespace: str | None = None) -> list[Json]:
        """The objects with this label, of one namespace or of all."""
        if label not in self._by_label:
            self._by_label[label] = {}
            for key, obj in self._objects.items():
                self._note(label, key, obj)
        keys = self._by_label[label].get(value, ())
        return [self._objects[key] for key in keys if namespace in (None, key[0])]

    def replace(self, objects: Iterable[Json]) -> None:
        """Become this list: what is not in it has been deleted."""
        self.retain({self.renew(obj) for obj in objects})

    def renew(self, obj: Json) -> Key:
        """Take over one object of a list, and give its key. One that is here as it is has not changed."""
        key = key_of(obj)
        if self._objects.get(key) != obj:
            self._put(key, obj)
        return key

    def retain(self, listed: Collection[Key]) -> None:
        """Forget all other objects than these: they are gone."""
        for key in [key for key in self._objects if key not in listed]:
            self._put(key, None)

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
            for label in self._by_label:
                self._leave_out(label, key, old)
        if new is not None:
            self._objects[key] = new
            for label in self._by_label:
                self._note(label, key, new)
        for handler in self._handlers:
            handler(key, old, new)

    def _note(self, label: str, key: Key, obj: Json) -> None:
        value = (obj["metadata"].get("labels") or {}).get(label)
        if value is not None:
            self._by_label[label].setdefault(value, {})[key] = None

    def _leave_out(self, label: str, key: Key, obj: Json) -> None:
        value = (obj["metadata"].get("labels") or {}).get(label)
        keys = {} if value is None else self._by_label[label].get(value, {})
        keys.pop(key, None)
        if value is not None and not keys:
            self._by_label[label].pop(value, None)
