"""The hub as a detached actor of Ray: one for each Ray cluster, on its head, made again by Ray when it dies."""

import asyncio
import logging
import os
from contextlib import suppress
from typing import Any, Final

import ray

from tandem.apps.cli.registry import PlatformEntry
from tandem.apps.ray.discovery_file import DiscoveryFile
from tandem.apps.ray.hub import Hub
from tandem.apps.ray.hub_client import HUB, NAMESPACE
from tandem.apps.ray.options import RaySettings
from tandem.apps.ray.ray_serving import RayServing, RayStore
from tandem.apps.ray.replica_place import session_folder
from tandem.apps.ray.serving import Orders, RouterTold, WorkerTold
from tandem.apps.ray.wanted import Turn
from tandem.core.errors import TandemError
from tandem.kube.cluster import Page, Selector, WatchEvent
from tandem.kube.kinds import Json
from tandem.process.logs import event, set_up_logs
from tandem.process.system import SystemClock, SystemEntropy

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 1000
"""Calls that the actor answers at a time: most wait for changes."""
_PENDING_MAX: Final = 200
"""Calls of one process that wait for their answer."""
_HEAD: Final = "node:__internal_head__"
_DISCOVER_S: Final = 5.0


class HubActor:
    """Methods of `tandem.apps.ray.hub.Hub` as those of an actor; those that change something are called by `change`.
    When the hub fails, the process ends and Ray makes the actor again; when the hub is over, the actor kills itself
    for good."""

    async def __init__(self, settings: RaySettings) -> None:  # type: ignore[misc]  # Ray awaits it
        set_up_logs(json_lines=False)
        self._settings, self._store = settings, RayStore()
        self._hub = Hub(settings, RayServing(settings.vllm_python), self._store, SystemClock(), SystemEntropy())
        self._discovery = asyncio.create_task(self._write_discovery(), name="service discovery")
        self._life = asyncio.create_task(self._live(), name="hub")
        self._life.add_done_callback(_fail_with)

    async def _live(self) -> None:
        """Run the hub; once it is over forget everything."""
        await self._hub.run()
        self._discovery.cancel()
        await asyncio.wait((self._discovery,))
        with suppress(OSError):
            DiscoveryFile(session_folder()).remove()
        await self._store.clear()
        event(_log, "hub_ended")
        ray.kill(ray.get_runtime_context().current_actor)

    async def _write_discovery(self) -> None:
        """Keep the file from which Prometheus learns of routers and workers. Without it all else goes on."""
        file = DiscoveryFile(session_folder())
        while True:
            with suppress(TandemError, OSError):
                file.write((await self._hub.entry()).members)
            await asyncio.sleep(_DISCOVER_S)

    async def change(self, until: float, method: str, *arguments: object) -> Any:
        return await self._hub.change(until, method, *arguments)

    async def time(self) -> float:
        return await self._hub.time()

    async def turn(self) -> Turn:
        return await self._hub.turn()

    async def settings(self) -> RaySettings:
        """What the hub was told when it was made first; of the key a digest."""
        return self._settings.shown()

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

    async def rendezvous(self, gang: str, rank: int, address: str, wait_s: float) -> str:
        return await self._hub.rendezvous(gang, rank, address, wait_s)

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        return await self._hub.list_page(selector, limit, token)

    async def changes(self, selector: Selector, version: str, wait_s: float) -> tuple[WatchEvent, ...]:
        return await self._hub.changes(selector, version, wait_s)

    async def end(self) -> bool:
        return await self._hub.end()

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
        # Who calls tries again, for as long as it wants the answer (`HubClient`): nothing is done later than that.
        "max_task_retries": 0,
        "max_concurrency": _AT_ONCE,
        "max_pending_calls": _PENDING_MAX,
    }
    return ray.remote(HubActor).options(**options).remote(settings)


def _fail_with(task: "asyncio.Task[None]") -> None:
    """End the process when a task of the hub has failed: Ray makes the actor again, which restores what was kept."""
    problem = None if task.cancelled() else task.exception()
    if problem is not None:
        event(_log, "hub_failed", level=logging.ERROR, problem=f"{type(problem).__name__}: {problem}")
        os._exit(1)
