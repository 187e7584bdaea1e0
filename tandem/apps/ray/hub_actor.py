"""The hub as a detached actor of Ray: one for each Ray cluster, on its head, made again by Ray when it dies."""

import asyncio
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import ray

from tandem.apps.cli.registry import PlatformEntry
from tandem.apps.ray.discovery_file import DiscoveryFile
from tandem.apps.ray.hub import Hub
from tandem.apps.ray.hub_client import HUB, NAMESPACE
from tandem.apps.ray.hub_end import HubEnd
from tandem.apps.ray.options import RaySettings
from tandem.apps.ray.ray_serving import RayServing, RayStore
from tandem.apps.ray.replica_place import session_folder
from tandem.apps.ray.serving import Orders, RouterTold, WorkerTold
from tandem.core.errors import TandemError
from tandem.kube.cluster import Page, Selector, WatchEvent
from tandem.kube.kinds import Json
from tandem.process.logs import event, set_up_logs
from tandem.process.system import SystemClock, SystemEntropy
from tandem.spec.service import ModelService

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 1000
"""Calls that the actor answers at a time: most wait for changes."""
_HEAD: Final = "node:__internal_head__"
_LOOK_S: Final = 2.0
_LEAVE_S: Final = 30.0
_DISCOVER_S: Final = 5.0


class HubActor:
    """Methods of `tandem.apps.ray.hub.Hub` as those of an actor. When the hub fails, the process ends and Ray makes
    the actor again; when the hub has come to its end, the actor kills itself for good."""

    async def __init__(self, settings: RaySettings) -> None:  # type: ignore[misc]  # Ray awaits it
        set_up_logs(json_lines=False)
        self._clock, self._store = SystemClock(), RayStore()
        self._serving = RayServing(settings.vllm_python)
        self._settings = settings
        self._hub = Hub(settings, self._serving, self._store, self._clock, SystemEntropy())
        self._run = asyncio.create_task(self._hub.run(), name="hub")
        self._asked_to_end = asyncio.Event()
        self._end = asyncio.create_task(self._end_when_over(), name="end of the hub")
        self._discovery = asyncio.create_task(self._write_discovery(), name="service discovery")
        for task in (self._run, self._end):
            task.add_done_callback(_fail_with)

    async def _write_discovery(self) -> None:
        """Keep the file from which Prometheus learns of routers and workers. Without it all else goes on."""
        file = DiscoveryFile(session_folder())
        while True:
            with suppress(TandemError, OSError):
                file.write((await self._hub.entry()).members)
            await asyncio.sleep(_DISCOVER_S)

    async def _end_when_over(self) -> None:
        """Watch for the end, let services leave that have lost their routers, and forget everything."""
        end = HubEnd(self._clock.now())
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._asked_to_end.wait()
                    break
            match end.next(await self._routers_there(), await self._idle_s(), self._clock.now()):
                case "leave":
                    for obj in await self._hub.services():
                        await self._let_leave(obj["metadata"]["name"])
                case "clear":
                    break
        self._run.remove_done_callback(_fail_with)
        for task in (self._run, self._discovery):
            task.cancel()
        await asyncio.wait((self._run, self._discovery), timeout=_LEAVE_S)
        with suppress(OSError):
            DiscoveryFile(session_folder()).remove()
        await self._store.clear()
        event(_log, "hub_ended")
        ray.kill(ray.get_runtime_context().current_actor)

    async def _routers_there(self) -> bool | None:
        try:
            return bool(await self._serving.routers())
        except TandemError:
            return None

    async def _idle_s(self) -> float:
        """0 while there are services, or while it is not known."""
        try:
            return await self._hub.idle_s()
        except TandemError:
            return 0.0

    async def _let_leave(self, service: str) -> None:
        try:
            await self._hub.leave(service, _LEAVE_S)
        except TandemError as error:
            event(_log, "service_stays", level=logging.WARNING, service=service, problem=error.message)

    async def want(self, service: ModelService) -> str:
        return await self._hub.want(service)

    async def settings(self) -> RaySettings:
        """What the hub was told when it was made first."""
        return self._settings

    async def scale(self, service: str, counts: Mapping[str, int]) -> None:
        await self._hub.scale(service, counts)

    async def leave(self, service: str, within_s: float) -> None:
        await self._hub.leave(service, within_s)

    async def services(self) -> tuple[Json, ...]:
        return await self._hub.services()

    async def events(self, since: int, wait_s: float) -> tuple[int, tuple[str, ...]]:
        return await self._hub.events(since, wait_s)

    async def entry(self) -> PlatformEntry:
        return await self._hub.entry()

    async def report(self, told: WorkerTold) -> Orders:
        return await self._hub.report(told)

    async def router(self, told: RouterTold) -> None:
        await self._hub.router(told)

    async def key(self) -> str:
        return await self._hub.key()

    async def started_serve(self, started: bool | None = None) -> bool:
        return await self._hub.started_serve(started)

    async def rendezvous(self, gang: str, rank: int, address: str, wait_s: float) -> str:
        return await self._hub.rendezvous(gang, rank, address, wait_s)

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        return await self._hub.list_page(selector, limit, token)

    async def changes(self, selector: Selector, version: str, wait_s: float) -> tuple[WatchEvent, ...]:
        return await self._hub.changes(selector, version, wait_s)

    async def end(self) -> bool:
        """End for good where there is no service, and say whether that is so."""
        if not await self._hub.services():
            self._asked_to_end.set()
        return self._asked_to_end.is_set()

    async def pid(self) -> int:
        """The actor's process, for drills."""
        return os.getpid()


def make_hub(settings: RaySettings) -> Any:
    """The handle of the cluster's hub, which is made where there is none; one that is there keeps its settings."""
    options = {
        "name": HUB,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "resources": {_HEAD: 0.001},
        "max_restarts": -1,
        "max_task_retries": -1,
        "max_concurrency": _AT_ONCE,
    }
    return ray.remote(HubActor).options(**options).remote(settings)


def _fail_with(task: "asyncio.Task[None]") -> None:
    """End the process when a task of the hub has failed: Ray makes the actor again, which restores what was kept."""
    problem = None if task.cancelled() else task.exception()
    if problem is not None:
        event(_log, "hub_failed", level=logging.ERROR, problem=f"{type(problem).__name__}: {problem}")
        os._exit(1)
