"""A service on Ray as `tandem up --on ray` starts, follows and ends it. Every call to Ray has a bound."""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Final

import msgspec

from tandem.apps.cli.registry import PlatformEntry
from tandem.apps.cli.router_client import send_request
from tandem.apps.client.http import Target, parse_target
from tandem.apps.ray.agreement import agree, different, disagree
from tandem.apps.ray.cluster import ClusterNodes, SharedCluster
from tandem.apps.ray.hub_client import HubCalls
from tandem.apps.ray.options import RaySettings
from tandem.apps.ray.placing import without_meaning
from tandem.apps.ray.serving import ROUTERS, RouterApp, app_name
from tandem.apps.ray.up_options import KEY_VARIABLE
from tandem.apps.ray.wanted import Turn
from tandem.core.errors import TandemError
from tandem.kube.kinds import Json
from tandem.spec.service import ModelService

Say = Callable[[str], None]
Ask = Callable[[Target, str, str], Awaitable[tuple[int, bytes]]]
"""A request to a router by target, method and path; status and body of the answer."""

PASSING: Final = frozenset(("link_lost", "stale_epoch", "draining"))
"""Codes of errors of a hub, or of Serve, that is away, comes back or is on its way to its end: to be asked again."""
_ASK_S: Final = 30.0
_START_S: Final = 120.0
_BEGIN_S: Final = 300.0
"""Seconds for everything until the hub has taken the service over, tries again included."""
_GONE_S: Final = 180.0
"""Seconds for routers that are being taken away: they drain, and so does Serve's ingress."""
_END_S: Final = 120.0
_LOOK_S: Final = 0.5
_AGAIN_S: Final = 1.0
_EVENTS_S: Final = 10.0
_MARGIN_S: Final = 5.0
_ROUTERS: Final = 2
_NO_KEY: Final = (401, 403)


class RayPlatform:
    """One service of the cluster that this process is connected to, and what all services share. `url` is where
    clients reach it, and empty until that is known."""

    def __init__(
        self,
        hub: HubCalls,
        cluster: SharedCluster,
        settings: RaySettings,
        service: ModelService,
        say: Say,
        ask: Ask = send_request,
    ) -> None:
        self.service = service
        self.url = ""
        self._hub = hub
        self._cluster = cluster
        self._settings = settings
        self._say = say
        self._ask = ask
        self._said: set[str] = set()
        self._revision = ""
        self._found = False
        self._wanted = False
        self._started = False
        """Whether Serve was started for Tandem."""
        self._keyed = settings.api_keys is not None
        """Whether routers want an API key."""
        self._deployed = False
        """Whether this command has deployed routers."""
        self._making: asyncio.Task[None] | None = None
        """What Ray was asked to make last: it goes on although the command is broken off."""
        self._left_at: Turn | None = None
        """When this command first asked for its service's end."""
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

    async def start(self) -> None:
        """See that Serve, the hub and routers are there, and want the service. What another command is ending
        meanwhile is waited for and made again, within a bound. Raises `bad_setting` for what the hub or Serve
        refuses, and for an option that does not agree with what runs; `deadline_exceeded`."""
        problem = "the Ray cluster's answer"
        try:
            async with asyncio.timeout(_BEGIN_S):
                while True:
                    try:
                        return await self._begin()
                    except TandemError as error:
                        if error.code not in PASSING:
                            raise
                        problem = error.message
                    self._say_once(f"trying again: {problem}")
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            raise TandemError("deadline_exceeded", f"not begun within {_BEGIN_S:g} s: {problem}") from None

    async def _begin(self) -> None:
        self._nodes = nodes = await self._cluster.nodes()
        await self._make(self._start_serve(nodes))
        running = await self._routers()
        if running is not None:
            self._agree(running)
        self.url = await self._ingress(nodes, running)
        self._keyed = (self._settings if running is None else running).api_keys is not None
        key = self._settings.router_key if self._keyed else ""
        asked = replace(self._settings, url=self.url, router_key=key)
        await self._cluster.make_hub(asked)
        told = await self._hub.call("settings", within_s=_START_S)
        if running is None and not self._wanted:
            await self._end_other_hub(asked, told)
        self._agree_with_hub(told)
        if self._started:
            await self._hub.call("started_serve", True)
        if running is None:
            count = self._settings.routers or min(_ROUTERS, nodes.count)
            await self._make(self._deploy_routers(count))
        self._events, _ = await self._hub.call("events", 0, 0.0)
        if not self._wanted:
            self._found = await self._object() is not None
        await self.want(self.service)

    async def _make(self, work: Coroutine[None, None, None]) -> None:
        self._making = asyncio.create_task(work, name="make")
        await asyncio.shield(self._making)

    async def _start_serve(self, nodes: ClusterNodes) -> None:
        self._started |= await self._cluster.start_serve(self._settings, nodes, self.service.spec.router.port)

    async def _deploy_routers(self, count: int) -> None:
        self._deployed = True
        await self._cluster.deploy_routers(self._settings, count, self.service.spec.router)

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)

    async def _ingress(self, nodes: ClusterNodes, running: RouterApp | None) -> str:
        """Where clients reach the routers through Serve's ingress; empty where they do not."""
        prefix = running.route_prefix if running is not None else self._settings.route_prefix
        direct = running is None or "ingress" in self._settings.given
        if prefix is None or (direct and self._settings.ingress == "direct"):
            return ""
        asked, port = self.service.spec.router.port, await self._cluster.ingress_port()
        if port != asked:
            self._say_once(
                f"Serve runs already, with its ingress on port {port} and not {asked}: it is used as it is"
            )
        return nodes.url(port) + prefix.rstrip("/")

    async def _routers(self) -> RouterApp | None:
        """The routers that run; None where there are none. Those that are being taken away are waited for: others
        cannot take their place before. Raises `deadline_exceeded` where they stay."""
        leaving = ""
        try:
            async with asyncio.timeout(_GONE_S):
                while True:
                    there = await self._cluster.routers()
                    leaving = ", ".join(each.name for each in there if each.status == "deleting")
                    if not leaving:
                        return there[0] if there else None
                    self._say_once(f"routers are being taken away (application {leaving}); waiting for their end")
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            problem = (
                f"routers (application {leaving}) are still being taken away after {_GONE_S:g} s; try again later"
            )
            raise TandemError("deadline_exceeded", problem) from None

    def _agree(self, running: RouterApp) -> None:
        """Say what runs. Raises `bad_setting` for an option that was given and is not so."""
        agree(self._settings, running)
        self._say_once(
            f"routers run already (application {running.name}), {running.where}: they are used as they are"
        )

    def _agree_with_hub(self, told: RaySettings) -> None:
        """Raises `bad_setting` where the hub has another interpreter of vLLM workers than the one that was given."""
        asked, runs = self._settings.vllm_python, told.vllm_python
        if asked == runs:
            return
        words = "with that of Ray" if runs is None else f"with {runs}"
        if "vllm_python" in self._settings.given:
            disagree("vllm_python", asked, f"the hub that runs starts vLLM workers {words}")
        self._say_once(f"the hub runs already: it starts vLLM workers {words}")

    async def _end_other_hub(self, asked: RaySettings, told: RaySettings) -> None:
        """Have a hub of an earlier command end that was told other things than this one would be. Nobody uses it
        where it has neither routers nor a service. Raises `link_lost` where it ends: the next one is to be made; and
        `bad_setting` where services need it."""
        names = different(asked, told)
        if not names:
            return
        what = f"the hub that runs was made with another {' and '.join(names)}"
        # The next hub has to know what this one knows.
        self._started |= await self._hub.call("started_serve")
        if await self._hub.call("end"):
            raise TandemError("link_lost", f"{what}, and ends, as nothing needs it")
        raise TandemError(
            "bad_setting", f"{what}, and has services: end all of them first, or start as it was started"
        )

    async def want(self, service: ModelService) -> str:
        """The service is to be so from now on; gives its revision. Raises `bad_setting`."""
        if service.metadata.name != self.name:
            problem = f"metadata.name is {service.metadata.name!r} and was {self.name!r}: that is another service"
            raise TandemError("bad_setting", problem)
        for sentence in without_meaning(service):
            self._say_once(sentence)
        self._wanted, self._left_at = True, None
        self._revision = await self._hub.call("want", service, within_s=_ASK_S)
        self.service = service
        return self._revision

    async def ready(self, within_s: float) -> None:
        """Wait until clients are served. Raises `engine_failed` where workers or routers cannot start,
        `deadline_exceeded` with what is missing after `within_s` seconds."""
        missing = "the hub's answer"
        try:
            async with asyncio.timeout(within_s):
                while missing:
                    try:
                        missing = await self._missing()
                    except TandemError as error:
                        if error.code not in PASSING:
                            raise
                        missing = error.message
                    if missing:
                        await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise TandemError("deadline_exceeded", f"not ready within {within_s:g} s: {missing}") from None

    async def _missing(self) -> str:
        """What is missing until clients are served, in one sentence; empty when nothing is."""
        app = await self._cluster.state(app_name(self.name, self._revision))
        if app is not None and app.status == "failed":
            said = [app.message, *(each.message for each in app.deployments.values())]
            raise TandemError("engine_failed", "\n".join(each for each in dict.fromkeys(said) if each))
        if missing := await self._missing_routers():
            return missing
        found = await self._object()
        if found is None:
            return f"the service {self.name}"
        ready = _condition(found, "Ready")
        if ready.get("status") != "True":
            return str(ready.get("message") or "workers")
        if not self.url:
            self.url = await self._own_url()
        return "" if self.url and await self._served() else "a router that answers"

    async def _missing_routers(self) -> str:
        """What is missing of the routers. Where there are none any more, as another command has taken them away with
        what was the last service then, everything is begun again."""
        there = await self._cluster.routers()
        for each in there:
            if each.status == "failed":
                raise TandemError("engine_failed", f"routers (application {each.name}) cannot start: {each.message}")
        if not there:
            await self._begin()
        return "" if any(each.status != "deleting" for each in there) else "routers"

    async def _own_url(self) -> str:
        """Of a router that listens on a port of its own; empty while there is none."""
        members = (await self.entry()).members
        ready = (each for each in members if each.role == "router" and each.state == "ready")
        return next((f"http://{each.address}" for each in ready), "")

    async def _served(self) -> bool:
        status, body = await self._ask(parse_target(self.url, self._settings.router_key), "GET", "/v1/models")
        if status in _NO_KEY:
            problem = f"the routers want an API key that may use {self.service.model_name}: set {KEY_VARIABLE} to one"
            raise TandemError("bad_setting", problem, param="api_keys")
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
        """Drain and take away the service; with the last one all that was made for it. Raises what the hub raises."""
        within_s = max(float(pool.drain_seconds) for pool in self.service.spec.pools) + _MARGIN_S
        await self._leave(within_s, 3 * within_s + _END_S)
        if await self._hub.call("services"):
            self._say("routers and Serve stay: other services run")
            return
        await self.end_shared()

    async def _leave(self, drain_s: float, within_s: float) -> None:
        """Whoever wants the service after this command has first asked for its end keeps it."""
        self._left_at = self._left_at or await self._hub.call("turn", within_s=within_s)
        await self._hub.call("leave", self.name, drain_s, self._left_at, within_s=within_s)

    async def abandon(self) -> None:
        """Take away what a start has made that has not come to wanting its service, where there is no other service.
        Raises what the hub raises."""
        if self._making is not None:
            with suppress(TandemError):
                await self._making
        if not (self._started or self._deployed):
            return
        # By it others know that this goes on, and it says what they have made.
        await self._cluster.make_hub(replace(self._settings, url=self.url))
        if self._started:
            await self._hub.call("started_serve", True)
        if not await self._hub.call("services"):
            await self.end_shared()

    async def hurry(self, within_s: float) -> None:
        """Have the service go, if it was wanted, and with the last one the routers and the hub, as far as that can be
        asked for within `within_s` seconds. Streams are not waited for: what drains ends by itself. Serve stays."""
        with suppress(TimeoutError, TandemError):
            async with asyncio.timeout(within_s):
                if self._wanted:
                    with suppress(TandemError):
                        await self._leave(0.0, within_s / 2)
                if not await self._hub.call("services"):
                    await self._end_routers(wait=False)

    async def end_shared(self) -> None:
        """End routers and the hub, and Serve where it was started for Tandem and runs nothing of others."""
        ours = await self._hub.call("started_serve")
        if not await self._end_routers(wait=True):
            return
        others = (*await self._cluster.others(), *(each.name for each in await self._cluster.routers()))
        if ours and not others and self._nodes is not None:
            await self._cluster.stop_serve(self._nodes)
        elif ours:
            self._say(f"Serve goes on: it runs {', '.join(others)}")

    async def _end_routers(self, *, wait: bool) -> bool:
        """End the routers that this command, or one like it, has made, and the hub; whether both end."""
        routers = {each.name: each for each in await self._cluster.routers()}
        if routers and ROUTERS not in routers:
            self._say(f"routers and hub stay: application {next(iter(routers))} was not made by `tandem up`")
            return False
        if routers:
            await self._cluster.delete_routers(wait=wait)
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
        key = f' -H "Authorization: Bearer ${KEY_VARIABLE}"' if self._keyed else ""
        return f"curl -N {self.url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d {data}"


def _condition(obj: Json, type_: str) -> Json:
    """A condition of the object's present generation; empty while there is none."""
    status = obj.get("status") or {}
    if status.get("observedGeneration", 0) < obj["metadata"].get("generation", 0):
        return {}
    found: list[Json] = [each for each in status.get("conditions") or () if each["type"] == type_]
    return found[0] if found else {}
