"""The node: registers, renews its Lease, and runs the pods that are bound to it."""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from tandem.core.errors import TandemError
from tandem.kube.cluster import Selector
from tandem.kube.kinds import POD, Json
from tandem.kube.reflector import Reflector
from tandem.kube.store import Key
from tandem.process.system import SystemClock, SystemEntropy
from tests.cluster.kubelet import node
from tests.cluster.kubelet.pod import Means, Pod

_log = logging.getLogger(__name__)
_RENEW_S = 3.0
_STATUS_S = 60.0
_REMAINING_S = 10.0


@dataclass(frozen=True)
class Identity:
    """Name, labels and capacity; pods get addresses 10.77.`subnet`.2 and on."""

    labels: Mapping[str, str]
    capacity: Mapping[str, str]
    subnet: int


class Kubelet:
    """`run` until cancelled; then what still runs is killed."""

    def __init__(self, means: Means, identity: Identity) -> None:
        self._means = means
        self._identity = identity
        self._pods: dict[str, Pod] = {}
        self._uids: dict[Key, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self._reflector = Reflector(means.cluster, Selector(POD), SystemClock(), SystemEntropy())

    async def run(self) -> None:
        uid = await self._register()
        self._reflector.store.on_change(self._changed)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._reflector.run())
                tasks.create_task(self._renew(uid))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _register(self) -> str:
        name, cluster = self._means.node, self._means.cluster
        made = await cluster.apply(node.node(name, self._identity.labels), f"kubelet-{name}")
        await self._tell()
        uid: str = made["metadata"]["uid"]
        return uid

    async def _tell(self) -> None:
        told = node.status(self._means.node, self._means.host_address, self._identity.capacity, time.time())
        await self._means.cluster.apply_status(told, f"kubelet-{self._means.node}")

    async def _renew(self, uid: str) -> None:
        """The Lease often, the status now and then; an API server that is away is asked again."""
        name, told = self._means.node, time.monotonic()
        while True:
            with suppress(TandemError):
                await self._means.cluster.apply(node.lease(name, uid, time.time()), f"kubelet-{name}")
                if time.monotonic() - told > _STATUS_S:
                    await self._tell()
                    told = time.monotonic()
            await asyncio.sleep(_RENEW_S)

    def _changed(self, key: Key, old: Json | None, new: Json | None) -> None:
        """One pod of the cluster is another than it was."""
        known = self._uids.get(key)
        if known is not None:
            self._pods[known].seen(new)
            if new is None or new["metadata"]["uid"] != known:
                del self._uids[key]
                known = None
        if known is None and new is not None and self._ours(new):
            self._begin(key, new)

    def _ours(self, pod: Json) -> bool:
        ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        deleted = "deletionTimestamp" in pod["metadata"]
        return pod["spec"].get("nodeName") == self._means.node and (not ended or deleted)

    def _begin(self, key: Key, obj: Json) -> None:
        uid = obj["metadata"]["uid"]
        if uid in self._pods:
            return
        self._count += 1
        address = f"10.77.{self._identity.subnet}.{1 + self._count % 250}"
        pod = Pod(obj, self._means, address, self._identity.subnet * 1000 + self._count)
        self._pods[uid], self._uids[key] = pod, uid
        task = asyncio.create_task(pod.run(), name=f"pod {key[1]}")
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, uid))
        pod.seen(obj)

    def _ended(self, task: asyncio.Task[None], uid: str) -> None:
        self._tasks.discard(task)
        self._pods.pop(uid, None)
        self._uids = {key: one for key, one in self._uids.items() if one != uid}
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s", task.get_name(), exc_info=task.exception())
