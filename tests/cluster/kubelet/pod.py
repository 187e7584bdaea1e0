"""One pod on this node, from its sandbox to the end of its last process."""

import asyncio
import logging
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tandem.core.errors import TandemError
from tandem.kube.cluster import Conflict, NotFound
from tandem.kube.kinds import Json
from tandem.kube.kube_cluster import KubeCluster
from tandem.kube.times import timestamp
from tests.cluster.kubelet.container import Container, Place
from tests.cluster.kubelet.environment import NotThere
from tests.cluster.kubelet.image import Image
from tests.cluster.kubelet.objects import ApiObjects
from tests.cluster.kubelet.sandbox import Sandbox
from tests.cluster.kubelet.status import conditions, phase
from tests.cluster.kubelet.volumes import Volumes

_log = logging.getLogger(__name__)
_AGAIN_S = 1.0
_REFRESH_S = 3.0
"""A real kubelet takes up to a minute until a changed Secret shows."""


@dataclass(frozen=True)
class Means:
    """What pods get from their node."""

    node: str
    host_address: str
    cluster: KubeCluster
    objects: ApiObjects
    image: Image
    directory: Path
    services: Mapping[str, str]
    backoff_s: float


class Pod:
    """`run` is its whole life; `seen` tells it how its object stands now, None when that is gone."""

    def __init__(self, obj: Json, means: Means, address: str, number: int) -> None:
        self._object = obj
        self._means = means
        self._stir = asyncio.Event()
        self._directory = means.directory / f"{obj['metadata']['name']}-{number}"
        self._sandbox = Sandbox(obj["metadata"]["name"], address, number)
        self._volumes = Volumes(self.known(), self._directory / "volumes", means.objects)
        self._began = (obj.get("status") or {}).get("startTime") or timestamp(time.time())
        place = Place(
            self.known,
            self._sandbox,
            self._volumes,
            means.objects,
            means.image,
            self._directory / "containers",
            means.services,
            means.backoff_s,
        )
        spec = obj["spec"]
        policy = spec.get("restartPolicy", "Always")
        self._init = [
            self._container(one, place, one.get("restartPolicy") or "OnFailure") for one in _list(spec, "init")
        ]
        self._main = [self._container(one, place, policy) for one in spec["containers"]]
        self._policy = policy
        self._initialized = False
        self._deleting = asyncio.Event()
        self._gone = False
        self._written: Json | None = None

    def known(self) -> Json:
        """The object with the addresses that only the node knows."""
        status = {"podIP": self._sandbox.address, "hostIP": self._means.host_address}
        return {**self._object, "status": {**(self._object.get("status") or {}), **status}}

    def seen(self, obj: Json | None) -> None:
        """The newest object; None: it is gone, so everything is killed at once."""
        if obj is None or obj["metadata"]["uid"] != self._object["metadata"]["uid"]:
            self._gone = True
            self._deleting.set()
            return
        self._object = obj
        self._stir.set()
        if "deletionTimestamp" in obj["metadata"]:
            self._deleting.set()

    async def run(self) -> None:
        """Until nothing of the pod is left and the API server knows."""
        self._directory.mkdir(parents=True, exist_ok=True)
        tasks = [asyncio.create_task(self._live()), asyncio.create_task(self._report())]
        tasks[0].add_done_callback(self._lived)
        try:
            await self._deleting.wait()
            await self._stop()
            tasks[1].cancel()
            if not self._gone:
                await self._last_words()
        finally:
            for task in tasks:
                task.cancel()
            for container in self._everything():
                container.kill()
            self._sandbox.stop()
            await asyncio.gather(*tasks, return_exceptions=True)
            shutil.rmtree(self._directory / "volumes", ignore_errors=True)

    def _container(self, spec: Json, place: Place, policy: str) -> Container:
        return Container(spec, place, policy, self._stir.set)

    def _lived(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _log.error("pod %s", self._object["metadata"]["name"], exc_info=task.exception())

    def _everything(self) -> list[Container]:
        return [*self._init, *self._main]

    async def _live(self) -> None:
        await self._sandbox.start()
        await self._furnish()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_fresh())
            for container in self._init:
                if container.spec.get("restartPolicy") == "Always":
                    tasks.create_task(container.run())
                    while not container.started:  # noqa: ASYNC110 - it may end and start again
                        await asyncio.sleep(0.05)
                else:
                    await container.run()
                    if container.exit_code != 0:
                        return
            self._initialized = True
            for container in self._main:
                tasks.create_task(container.run())

    async def _furnish(self) -> None:
        while True:
            try:
                await self._volumes.make()
                return
            except (NotThere, TandemError) as error:
                for container in self._everything():
                    container.state = {"waiting": {"reason": "ContainerCreating", "message": str(error)}}
                self._stir.set()
            await asyncio.sleep(_AGAIN_S)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            with suppress(NotThere, TandemError):
                await self._volumes.refresh()

    async def _stop(self) -> None:
        grace = self._object["metadata"].get("deletionGracePeriodSeconds") or 0
        if self._gone or not grace:
            for container in self._everything():
                container.kill()
            return
        await asyncio.gather(*(container.stop(grace) for container in self._everything()))

    async def _report(self) -> None:
        """Write the status whenever it differs."""
        while True:
            await self._stir.wait()
            self._stir.clear()
            await self._write()

    async def _write(self) -> None:
        status = self.status()
        if status == self._written:
            return
        metadata = {key: self._object["metadata"][key] for key in ("name", "namespace", "uid")}
        obj = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}
        try:
            await self._means.cluster.apply_status(obj, f"kubelet-{self._means.node}")
            self._written = status
        except (NotFound, Conflict):
            self._gone = True
            self._deleting.set()
        except TandemError:
            await asyncio.sleep(_AGAIN_S)
            self._stir.set()

    def status(self) -> Json:
        """What the API server is told."""
        codes = [container.exit_code for container in self._main]
        failed_init = any(one.exit_code for one in self._init if not self._initialized)
        running = any("running" in one.state or one.status()["restartCount"] for one in self._main)
        how = "Failed" if failed_init and self._policy == "Never" else phase(codes, running, self._policy)
        if self._deleting.is_set() and all(code is not None or not running for code in codes):
            how = "Succeeded" if all(code == 0 for code in codes) else "Failed"
        unready = [one.name for one in self._main if not one.ready]
        gates = [gate["conditionType"] for gate in self._object["spec"].get("readinessGates") or ()]
        old = (self._object.get("status") or {}).get("conditions") or ()
        shown: Json = {
            "phase": how,
            "startTime": self._began,
            "hostIP": self._means.host_address,
            "hostIPs": [{"ip": self._means.host_address}],
            "podIP": self._sandbox.address,
            "podIPs": [{"ip": self._sandbox.address}],
            "conditions": conditions(old, self._initialized, unready, gates, timestamp(time.time())),
            "containerStatuses": [one.status() for one in self._main],
        }
        return {**shown, "initContainerStatuses": [one.status() for one in self._init]} if self._init else shown

    async def _last_words(self) -> None:
        """The final status, then the object's end; an API server that is away is waited for."""
        self._written = None
        while not self._gone:
            try:
                await self._write()
                await self._means.objects.remove(self._object)
                return
            except (TandemError, OSError):
                await asyncio.sleep(_AGAIN_S)


def _list(spec: Json, which: str) -> list[Json]:
    return list(spec.get(f"{which}Containers") or ())
