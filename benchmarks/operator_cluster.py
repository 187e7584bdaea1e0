"""An API server that only keeps objects and tells of them, so that what is measured is the operator.

Each Deployment has its pods, all of them ready, as soon as it is applied.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator

from tandem.kube.cluster import NotFound, Page, Selector, WatchEvent
from tandem.kube.kinds import DEPLOYMENT, POD, Json, Kind, Ref, ref_of
from tandem.kube.times import timestamp

_Key = tuple[str, str]


class KeepingCluster:
    """`tandem.kube.cluster.Cluster` without field ownership: an applied object is all there is of it, but its status.
    `writes` counts what changed something, by kind; `asked` all that was asked for."""

    def __init__(self, lacks: frozenset[Kind]) -> None:
        self.writes: Counter[str] = Counter()
        self.asked = 0
        self._lacks = lacks
        self._version = 1
        self._objects: dict[Kind, dict[_Key, Json]] = {}
        self._watches: dict[Kind, list[asyncio.Queue[WatchEvent]]] = {}

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        if selector.kind in self._lacks:
            raise NotFound(f"there is no kind {selector.kind.kind}")
        begin = int(token or 0)
        items = [each for each in self._of(selector.kind).values() if _selected(each, selector)]
        following = str(begin + limit) if begin + limit < len(items) else None
        return Page(tuple(items[begin : begin + limit]), str(self._version), following)

    async def watch(self, selector: Selector, version: str) -> AsyncGenerator[WatchEvent, None]:
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self._watches.setdefault(selector.kind, []).append(queue)
        try:
            while True:
                event = await queue.get()
                if _selected(event.object, selector):
                    yield event
        finally:
            self._watches[selector.kind].remove(queue)

    async def get(self, ref: Ref) -> Json:
        await asyncio.sleep(0)
        found = self._of(ref.kind).get((ref.namespace, ref.name))
        if found is None:
            raise NotFound(f"there is no {ref}")
        return found

    async def apply(self, obj: Json, manager: str, *, force: bool = True) -> Json:
        await asyncio.sleep(0)
        self.asked += 1
        return self._put(obj, count=True)

    async def apply_status(self, obj: Json, manager: str) -> Json:
        await asyncio.sleep(0)
        self.asked += 1
        ref = ref_of(obj)
        old = self._of(ref.kind)[ref.namespace, ref.name]
        if old.get("status") == obj["status"]:
            return old
        self.writes[f"{ref.kind.kind} status"] += 1
        return self._keep(ref, {**old, "status": obj["status"]}, "modified")

    async def create(self, obj: Json) -> Json:
        return await self.apply(obj, "")

    async def update(self, obj: Json) -> Json:
        return await self.apply(obj, "")

    async def scale(self, ref: Ref, replicas: int) -> None:
        raise NotImplementedError("nobody scales here")

    async def delete(self, ref: Ref, *, uid: str | None = None, version: str | None = None) -> None:
        raise NotImplementedError("nothing is deleted here")

    async def close(self) -> None:
        return

    # -- Within --------------------------------------------------------------------------------------------------

    def submit(self, obj: Json) -> None:
        """As its user does it."""
        self._put(obj, count=False)

    def objects(self, kind: Kind) -> list[Json]:
        return list(self._of(kind).values())

    def _of(self, kind: Kind) -> dict[_Key, Json]:
        return self._objects.setdefault(kind, {})

    def _put(self, obj: Json, *, count: bool) -> Json:
        ref = ref_of(obj)
        old = self._of(ref.kind).get((ref.namespace, ref.name))
        if old is not None and {**_meaning(old), "status": None} == {**_meaning(obj), "status": None}:
            return old
        generation = int(old["metadata"]["generation"]) + 1 if old is not None else 1
        uid = old["metadata"]["uid"] if old is not None else f"uid-{self._version}"
        metadata = {**obj["metadata"], "uid": uid, "generation": generation}
        status = {} if old is None or "status" not in old else {"status": old["status"]}
        if count:
            self.writes[ref.kind.kind] += 1
        kept = self._keep(ref, {**obj, "metadata": metadata, **status}, "added" if old is None else "modified")
        if ref.kind == DEPLOYMENT:
            self._run(kept)
        return kept

    def _keep(self, ref: Ref, obj: Json, change: str) -> Json:
        self._version += 1
        kept = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        self._of(ref.kind)[ref.namespace, ref.name] = kept
        for queue in self._watches.get(ref.kind, ()):
            queue.put_nowait(WatchEvent(change, kept))  # type: ignore[arg-type]
        return kept

    def _run(self, deployment: Json) -> None:
        metadata, template = deployment["metadata"], deployment["spec"]["template"]
        now = timestamp(1_800_000_000.0)
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        for number in range(int(deployment["spec"]["replicas"])):
            name = f"{metadata['name']}-{number}"
            self._put(
                {
                    "apiVersion": POD.api_version,
                    "kind": POD.kind,
                    "metadata": {**template["metadata"], "name": name, "namespace": metadata["namespace"]},
                    "spec": template["spec"],
                    "status": {"phase": "Running", "conditions": [ready]},
                },
                count=False,
            )


def _meaning(obj: Json) -> Json:
    metadata = {key: obj["metadata"].get(key) for key in ("labels", "annotations", "ownerReferences")}
    return {**obj, "metadata": metadata}


def _selected(obj: Json, selector: Selector) -> bool:
    labels = obj["metadata"].get("labels") or {}
    terms = (term.partition("=") for term in selector.labels.split(",") if term)
    return all(labels.get(key) == value for key, _, value in terms)
