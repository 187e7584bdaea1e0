"""A service on Ray as `tandem up --on ray` starts, follows and ends it. Every call to Ray has a bound."""

import asyncio
import shlex
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tandem.apps.bench.client import parse_target
from tandem.apps.cli.registry import PlatformEntry
from tandem.apps.cli.router_client import send_request
from tandem.apps.ray import cluster
from tandem.apps.ray.hub_client import Hub
from tandem.apps.ray.options import RaySettings
from tandem.apps.ray.ray_serving import OneThread, RayServing
from tandem.apps.ray.serving import app_name
from tandem.core.errors import TandemError
from tandem.spec.service import ModelService

Say = Callable[[str], None]

_ASK_S: Final = 30.0
_START_S: Final = 120.0
_END_S: Final = 60.0
_LOOK_S: Final = 0.5
_EVENTS_S: Final = 10.0
_MARGIN_S: Final = 5.0
_ROUTERS: Final = 2


class RayPlatform:
    """One service of the cluster that this process is connected to, and what all services share. `url` is empty until
    `start` knows it."""

    def __init__(self, hub: Hub, settings: RaySettings, service: ModelService, say: Say) -> None:
        self.service = service
        self.url = ""
        self._hub = hub
        self._settings = settings
        self._say = say
        self._ray = OneThread("commands")
        self._serving = RayServing(settings.vllm_python)
        self._revision = ""
        self._found = False
        self._events = 0

    @property
    def name(self) -> str:
        return self.service.metadata.name

    async def start(self, make_hub: Callable[[RaySettings], Any]) -> None:
        """See that Serve, the hub and routers are there, and want the service. Raises `link_lost`, and `bad_setting`
        for what the hub refuses."""
        port = self.service.spec.router.port
        nodes = await self._do("name its nodes", _ASK_S, cluster.cluster_nodes)
        started = await self._do(
            "start Serve", _START_S, lambda: cluster.start_ingress(self._settings, nodes, port)
        )
        if self._settings.ingress == "haproxy":
            port = await self._port(started, port)
            self.url = nodes.url(port) + self._settings.route_prefix.rstrip("/")
        settings = msgspec.structs.replace if False else self._settings
        await self._do("make the hub", _ASK_S, lambda: make_hub(settings))
        await self._hub.call("key", within_s=_START_S)
        if started:
            await self._hub.call("started_serve", True)
        await self._routers(nodes, port)
        self._events, _ = await self._hub.call("events", 0, 0.0)
        self._found = any(each["metadata"]["name"] == self.name for each in await self._hub.call("services"))
        await self.want(self.service)
