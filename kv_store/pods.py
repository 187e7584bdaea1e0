"""Finds the workers of a service from its pods in a cluster, as `WorkersFile` does on one machine."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.kube.cluster import Cluster, Selector
from tandem.kube.kinds import POD, Json
from tandem.kube.projection import ALL, Fields, only
from tandem.kube.reflector import Reflector
from tandem.link.address import LinkAddress
from tandem.process.workers_file import Member
from tandem.spec.service import API_GROUP

_SERVICE: Final = f"{API_GROUP}/service"
_ROLE: Final = f"{API_GROUP}/role"
_LINK_PORT: Final = f"{API_GROUP}/link-port"
_OF_GROUP: Final = "leaderworkerset.sigs.k8s.io/worker-index"
_ENDED: Final = ("Succeeded", "Failed")
_LOOK_EVERY_S: Final = 0.2
_READ: Final[Fields] = {
    "metadata": {
        "name": ALL,
        "namespace": ALL,
        "uid": ALL,
        "resourceVersion": ALL,
        "deletionTimestamp": ALL,
        "labels": {_ROLE: ALL, _OF_GROUP: ALL},
        "annotations": {_LINK_PORT: ALL},
    },
    "status": {"phase": ALL, "podIP": ALL},
}

Connect = Callable[[], Awaitable[Cluster]]


class ServicePods:
    """`kv_store.service.Membership`. Watches from the first look on, for as long as the process lives; while the API
    server is away the last list stays. `service` is `NAMESPACE/NAME`."""

    def __init__(
        self, connect: Connect, service: str, tell: Callable[[Sequence[Member]], None], clock: Clock, entropy: Entropy
    ) -> None:
        self._connect = connect
        self._namespace, _, self._name = service.partition("/")
        self._tell = tell
        self._clock = clock
        self._entropy = entropy
        self._pods: Reflector | None = None
        self._watching: asyncio.Task[None] | None = None
        self._told: tuple[Member, ...] | None = None

    def look(self) -> None:
        """Tell of what has changed. Raises what ended the watch, `bad_setting` for a cluster out of reach."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(), name="watch of pods")
        if self._watching.done():
            self._watching.result()
        if self._pods is None or not self._pods.has_synced:
            return
        addresses = sorted({address for pod in self._pods.store if (address := address_of(pod)) is not None})
        members = tuple(Member(address) for address in addresses)
        if members != self._told:
            self._told = members
            self._tell(members)

    async def run(self) -> None:
        """Look until cancelled, and end the watch with it."""
        try:
            while True:
                self.look()
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            if self._watching is not None:
                self._watching.cancel()

    async def _watch(self) -> None:
        cluster = await self._connect()
        try:
            selector = Selector(POD, self._namespace, f"{_SERVICE}={self._name}")
            self._pods = Reflector(cluster, selector, self._clock, self._entropy, keep=kept)
            await self._pods.run()
        finally:
            await cluster.close()


def kept(pod: Json) -> Json:
    """A pod with what is read of it here."""
    found: Json = only(pod, _READ)
    return found


def address_of(pod: Json) -> str | None:
    """The address at which a pod's worker listens; None for stores, and for pods that have no address or have
    ended."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    port, ip = str(annotations.get(_LINK_PORT, "")), str(status.get("podIP") or "")
    idle = not ip or status.get("phase") in _ENDED or "deletionTimestamp" in metadata
    if idle or labels.get(_ROLE) == "store" or labels.get(_OF_GROUP, "0") != "0":
        return None
    if not port.isdecimal() or not 0 < int(port) <= 65535:
        return None
    return str(LinkAddress(ip, int(port)))


async def connect_in_cluster() -> Cluster:
    """The cluster that this pod is in. Raises `bad_setting`."""
    try:
        # Imported on use: an extra, and on one machine not even loaded.
        from tandem.kube.kube_cluster import connect
    except ImportError as error:
        problem = f"kubernetes needs the extra of that name: pip install 'tandem-serve[kubernetes]' ({error})"
        raise TandemError("bad_setting", problem, param="kubernetes") from error
    return await connect()
