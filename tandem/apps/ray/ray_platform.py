"""A service on Ray as `tandem up --on ray` starts, follows and ends it. Every call to Ray has a bound."""

import asyncio
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import msgspec

from tandem.apps.cli.registry import PlatformEntry
from tandem.apps.cli.router_client import send_request
from tandem.apps.client.http import parse_target
from tandem.apps.ray import cluster
from tandem.apps.ray.application import ROUTERS
from tandem.apps.ray.cluster import ClusterNodes
from tandem.apps.ray.hub_client import HubCalls
from tandem.apps.ray.options import RaySettings
from tandem.apps.ray.ray_serving import OneThread, RayServing
from tandem.apps.ray.serving import app_name
from tandem.core.errors import TandemError
from tandem.kube.kinds import Json
from tandem.spec.service import ModelService

Say = Callable[[str], None]

_ASK_S: Final = 30.0
_START_S: Final = 120.0
_END_S: Final = 120.0
"""Serve itself lets its ingress drain for 30 s, unless its environment says otherwise."""
_LOOK_S: Final = 0.5
_EVENTS_S: Final = 10.0
_MARGIN_S: Final = 5.0
_ROUTERS: Final = 2


class RayPlatform:
    """One service of the cluster that this process is connected to, and what all services share. `url` is where
    clients reach it, and empty until that is known."""

    def __init__(self, hub: HubCalls, settings: RaySettings, service: ModelService, say: Say) -> None:
        self.service = service
        self.url = ""
        self._hub = hub
        self._settings = settings
        self._say = say
        self._ray = OneThread("commands")
        self._serving = RayServing(settings.vllm_python)
        self._revision = ""
        self._found = False
        self._wanted = False
        self._events = 0
        self._nodes: ClusterNodes | None = None

    @property
    def name(self) -> str:
        return self.service.metadata.name

    @property
    def found(self) -> bool:
        """Whether the service was there before this command."""
        return self._found

    @property
    def wanted(self) -> bool:
        """Whether this command has asked for the service: what it has not asked for is not its to take away."""
        return self._wanted

    async def start(self, make_hub: Callable[[RaySettings], Any]) -> None:
        """See that Serve, the hub and routers are there, and want the service. Raises `link_lost`, and `bad_setting`
        for what the hub or Serve refuses."""
        self._nodes = nodes = await self._ray.run("name its nodes", _ASK_S, cluster.cluster_nodes)
        port = self.service.spec.router.port
        started = await self._ray.run(
            "start Serve", _START_S, lambda: cluster.start_ingress(self._settings, nodes, port)
        )
        if self._settings.ingress == "haproxy":
            self.url = nodes.url(await self._ingress_port(started)) + self._settings.route_prefix.rstrip("/")
        settings = replace(self._settings, url=self.url)
        await self._ray.run("make the hub", _ASK_S, lambda: make_hub(settings))
        await self._hub.call("key", within_s=_START_S)
        if started:
            await self._hub.call("started_serve", True)
        await self._routers(nodes)
        self._events, _ = await self._hub.call("events", 0, 0.0)
        self._found = await self._object() is not None
        await self.want(self.service)

    async def _ingress_port(self, started: bool) -> int:
        asked = self.service.spec.router.port
        port = await self._ray.run("name the port of Serve", _ASK_S, cluster.ingress_port)
        if not started and port != asked:
            self._say(f"Serve runs already, with its ingress on port {port} and not {asked}: it is used as it is")
        return port

    async def _routers(self, nodes: ClusterNodes) -> None:
        there = await self._serving.routers()
        if there:
            self._say(f"routers run already (application {there[0]}); they are used as they are")
            return
        count = self._settings.routers or min(_ROUTERS, nodes.count)
        router = self.service.spec.router
        await self._ray.run(
            "deploy routers",
            _START_S,
            lambda: cluster.deploy_routers(self._settings, count, router.port, router.max_streams),
        )

    async def want(self, service: ModelService) -> str:
        """The service is to be so from now on; gives its revision. Raises `bad_setting`."""
        if service.metadata.name != self.name:
            problem = f"metadata.name is {service.metadata.name!r} and was {self.name!r}: that is another service"
            raise TandemError("bad_setting", problem)
        self._wanted = True
        self._revision = await self._hub.call("want", service, within_s=_ASK_S)
        self.service = service
        return self._revision

    async def ready(self, within_s: float) -> None:
        """Wait until clients are served. Raises `engine_failed` where workers cannot start, `deadline_exceeded` with
        what is missing after `within_s` seconds."""
        missing = "the hub's answer"
        try:
            async with asyncio.timeout(within_s):
                while missing:
                    try:
                        missing = await self._missing()
                    except TandemError as error:
                        if error.code != "link_lost":
                            raise
                        missing = error.message
                    if missing:
                        await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise TandemError("deadline_exceeded", f"not ready within {within_s:g} s: {missing}") from None

    async def _missing(self) -> str:
        """What is missing until clients are served, in one sentence; empty when nothing is."""
        app = await self._serving.state(app_name(self.name, self._revision))
        if app is not None and app.status == "failed":
            said = [app.message, *(each.message for each in app.deployments.values())]
            raise TandemError("engine_failed", "\n".join(each for each in dict.fromkeys(said) if each))
        found = await self._object()
        if found is None:
            return f"the service {self.name}"
        ready = _condition(found, "Ready")
        if ready.get("status") != "True":
            return str(ready.get("message") or "workers")
        if not self.url:
            self.url = (await self.entry()).url
        return "" if self.url and await self._served() else "a router that answers"

    async def _served(self) -> bool:
        status, body = await send_request(parse_target(self.url), "GET", "/v1/models")
        return status == 200 and self.service.model_name in {each["id"] for each in msgspec.json.decode(body)["data"]}

    async def _object(self) -> Json | None:
        found = [each for each in await self._hub.call("services") if each["metadata"]["name"] == self.name]
        return found[0] if found else None

    async def say_events(self) -> None:
        """Say what the hub does, until cancelled. A hub that is away goes on where it was."""
        while True:
            try:
                self._events, said = await self._hub.call("events", self._events, _EVENTS_S, within_s=2 * _EVENTS_S)
            except TandemError:
                await asyncio.sleep(_LOOK_S)
                continue
            for sentence in said:
                self._say(sentence)

    async def entry(self) -> PlatformEntry:
        """What the hub knows of routers and workers, of all services."""
        found: PlatformEntry = await self._hub.call("entry")
        return found

    async def scale(self, counts: dict[str, int]) -> None:
        """Set numbers of workers by pool. Raises `not_found` and `invalid_request`."""
        await self._hub.call("scale", self.name, counts, within_s=_ASK_S)

    async def leave(self) -> None:
        """Drain and take away the service; with the last one everything that was made for it. Raises what the hub
        raises where that cannot be."""
        within_s = max(float(pool.drain_seconds) for pool in self.service.spec.pools) + _MARGIN_S
        await self._hub.call("leave", self.name, within_s, within_s=3 * within_s + _END_S)
        if await self._hub.call("services"):
            self._say("routers and Serve stay: other services run")
            return
        await self.end_shared()

    async def hurry(self, within_s: float) -> None:
        """Have the service go without waiting for its streams, and with the last one the routers and the hub, as far
        as that can be asked for within `within_s` seconds. What drains then ends by itself; Serve stays."""
        with suppress(TimeoutError, TandemError):
            async with asyncio.timeout(within_s):
                with suppress(TandemError):
                    await self._hub.call("leave", self.name, 0.0, within_s=within_s / 2)
                if not await self._hub.call("services"):
                    await self._end_routers(wait=False)

    async def end_shared(self) -> None:
        """End routers and the hub, and Serve where it was started for Tandem and runs nothing of others."""
        ours = await self._hub.call("started_serve")
        if not await self._end_routers(wait=True):
            return
        others = await self._serving.others()
        if ours and not others and self._nodes is not None:
            nodes = self._nodes
            await self._ray.run("end Serve", _END_S, lambda: cluster.stop_serve(nodes))
        elif ours:
            self._say(f"Serve goes on: it runs {', '.join(others)}")

    async def _end_routers(self, *, wait: bool) -> bool:
        """End the routers that this command, or one like it, has made, and the hub; whether both end."""
        routers = await self._serving.routers()
        if routers and ROUTERS not in routers:
            self._say(f"routers and hub stay: application {routers[0]} was not made by `tandem up`")
            return False
        if routers:
            await self._ray.run("delete routers", _END_S, lambda: cluster.delete_routers(wait=wait))
        ends: bool = await self._hub.call("end")
        return ends

    def curl(self) -> str:
        """A request to paste into a shell."""
        body = {
            "model": self.service.model_name,
            "messages": [{"role": "user", "content": "Tell me a story about a fox and a lantern."}],
            "stream": True,
        }
        data = shlex.quote(msgspec.json.encode(body).decode())
        return f"curl -N {self.url}/v1/chat/completions -H 'Content-Type: application/json' -d {data}"


def _condition(obj: Json, type_: str) -> Json:
    """A condition of the object's present generation; empty while there is none."""
    status = obj.get("status") or {}
    if status.get("observedGeneration", 0) < obj["metadata"].get("generation", 0):
        return {}
    found: list[Json] = [each for each in status.get("conditions") or () if each["type"] == type_]
    return found[0] if found else {}
