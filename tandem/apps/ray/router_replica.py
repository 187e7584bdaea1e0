"""A replica of Ray Serve that is a router: behind Serve's ingress by ASGI, and on a port of its own."""

import asyncio
import gc
import logging
import os
from contextlib import suppress
from typing import Final

import msgspec
from ray import serve

from kv_transfer.key_file import read_keyring
from router.api.chat_templates.supervisor import HelperTemplates
from router.discovery.kubernetes import Connect
from router.process_settings import ProcessSettings, sized
from router.service import RouterService
from router.wiring import Wiring
from tandem.apps.ray.asgi import App, asgi
from tandem.apps.ray.hub_client import HUB_S, HubCalls, hub_of_this_cluster
from tandem.apps.ray.hub_cluster import HubCluster
from tandem.apps.ray.options import keys_on_node
from tandem.apps.ray.replica_place import ReplicaPlace, place_on_ray
from tandem.apps.ray.serving import RouterTold
from tandem.core.errors import TandemError
from tandem.kube.cluster import Cluster
from tandem.link.address import join_host
from tandem.process.health import Health
from tandem.process.logs import EventLines, event, set_up_logs
from tandem.process.run import StopSignal, run_service
from tandem.process.settings import load_settings
from tandem.process.system import SystemClock
from tandem.process.telemetry import Telemetry, endpoint_from, open_telemetry
from tandem.spec.worker_settings import as_flags

_log = logging.getLogger(__name__)

_LISTEN_S: Final = 30.0
_LOOK_S: Final = 0.02
_REPORT_EVERY_S: Final = 1.0
_REPORT_S: Final = 3.0
_STOP_S: Final = 15.0
_GC_THRESHOLDS: Final = (20_000, 20, 20)
"""As of a router that is a process (`router.__main__`)."""


class RouterPlan(msgspec.Struct, frozen=True):
    """What a router is told. `port` is its own; 0 lets the system choose."""

    port: int = 0
    max_streams: int | None = None
    drain_s: float = 10.0
    api_keys: str | None = None
    """The path of a key file on every node of routers."""
    settings: dict[str, str] = {}
    """Other settings of the router by dotted keys (`core.placement.policy`), as its flags would have them."""

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode(self)


class RouterReplica:
    """One router for all services of the hub. Serve asks for its application after it has been made."""

    _stop: StopSignal | None = None
    _run: "asyncio.Task[None] | None" = None
    _reports: "asyncio.Task[None] | None" = None
    _place: ReplicaPlace | None = None
    _left = False

    async def __init__(self, plan: bytes) -> None:  # type: ignore[misc]  # Serve awaits it
        """Returns when the router listens; it need not know a worker yet. Raises what a router raises that cannot
        run."""
        set_up_logs(json_lines=False)
        told = msgspec.msgpack.decode(plan, type=RouterPlan)
        self._drain_s = told.drain_s
        self._place = place_on_ray()
        self._hub = hub_of_this_cluster()
        self._place.write_key(await self._hub.call("key", within_s=HUB_S))
        self._name = f"router-{serve.get_replica_context().replica_tag.lower()}"
        self._telemetry = _telemetry(self._name)
        self._templates = HelperTemplates(SystemClock())
        events = _Metrics()
        self._service = self._build(told, events)
        self._stop, self._health = StopSignal(), Health(events)
        self._run = asyncio.create_task(
            run_service(self._service, self._stop, self._health, told.drain_s), name="router"
        )
        await self._listening()
        _tune_collector()
        self._told = RouterTold(
            name=self._name,
            host=self._place.host,
            port=self._service.port,
            metrics=events.address,
            node=self._place.node,
            pid=os.getpid(),
            ready=False,
        )
        self._reports = asyncio.create_task(self._report_on(), name="reports of the router")

    def _build(self, told: RouterPlan, events: EventLines) -> RouterService:
        assert self._place is not None
        settings = _settings(told, self._place, self._name)
        keys = keys_on_node(told.api_keys, self._place.host)
        keyring = read_keyring(self._place.key_file)
        wiring = Wiring(settings, {}, self._templates, keys, keyring, _connecting(self._hub))
        return wiring.build(self._telemetry, events)

    async def _listening(self) -> None:
        assert self._run is not None
        async with asyncio.timeout(_LISTEN_S):
            while not self._service.port:
                if self._run.done():
                    self._run.result()
                await asyncio.sleep(_LOOK_S)

    def __serve_build_asgi_app__(self) -> App:
        """Called by Serve once, after `__init__`."""
        return asgi(self._service.app)

    async def where(self) -> RouterTold:
        """Where this router is, for tests and drills."""
        return self._told

    async def check_health(self) -> None:
        """A router that has ended by itself is no router any more. One without workers is: it says so to clients."""
        if self._run is not None and self._run.done() and not self._left:
            error = None if self._run.cancelled() else self._run.exception()
            raise TandemError("internal", f"router {self._name} has ended: {error}")

    async def _report_on(self) -> None:
        while True:
            await self._report(ready=self._health.stage == "ready")
            await asyncio.sleep(_REPORT_EVERY_S)

    async def _report(self, **changes: object) -> None:
        self._told = msgspec.structs.replace(self._told, **changes)
        with suppress(TandemError):
            await self._hub.call("router", self._told, within_s=_REPORT_S)

    async def __del__(self) -> None:
        """Serve awaits this before it ends the replica; its ingress has taken the router out of its list before."""
        if self._left:
            return
        self._left = True
        if self._reports is not None:
            self._reports.cancel()
            await self._report(ready=False, leaving=True)
        if self._stop is not None and self._run is not None:
            self._stop.ask()
            ended, _ = await asyncio.wait((self._run,), timeout=self._drain_s + _STOP_S)
            failed = [each.exception() for each in ended if not each.cancelled()]
            event(_log, "router_ended", problem=str(failed[0]) if failed and failed[0] else "", bounded=not ended)
            self._templates.close()
            self._telemetry.close()
        if self._reports is not None:
            await self._report(gone=True)
        if self._place is not None:
            self._place.remove()


class _Metrics(EventLines):
    """The router's event lines: of interest is where its metrics are."""

    def __init__(self) -> None:
        super().__init__()
        self.address = ""

    def emit(self, name: str, **fields: str | int | float | bool | None) -> None:
        if name == "metrics":
            self.address = str(fields.get("address", ""))


def _settings(told: RouterPlan, place: ReplicaPlace, name: str) -> ProcessSettings:
    given = {
        "host": place.host,
        "port": told.port,
        "metrics_bind": join_host(place.host, 0),
        "kubernetes": "true",
        "ticket_key_file": place.key_file,
        "api_keys": told.api_keys,
        "max_streams": told.max_streams,
        "name": name,
        **told.settings,
    }
    return sized(load_settings(ProcessSettings, as_flags(given)))


def _connecting(hub: HubCalls) -> Connect:
    async def connect() -> Cluster:
        return HubCluster(hub)

    return connect


def _telemetry(name: str) -> Telemetry:
    return open_telemetry("router", endpoint_from(os.environ), name)


def _tune_collector() -> None:
    """As in a router's own process, and none of the thresholds that Ray has set."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
