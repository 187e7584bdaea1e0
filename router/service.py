"""The router as a service: links, dispatch and the two public interfaces, in the order they come up and go down."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from router.api.core import ApiCore
from router.api.grpc.server import PublicGrpc
from router.api.rest.probes import Probes
from router.dispatch.dispatcher import Dispatcher
from router.fleet.fleet import Fleet
from router.http_server.connection import Application
from router.http_server.server import HttpServer
from tandem.core.errors import TandemError
from tandem.link.address import join_host, split_host
from tandem.process.logs import EventLines, event
from tandem.process.loop_watch import LoopWatch

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.02
_CLOSE_S: Final = 1.0


@dataclass(frozen=True)
class Addresses:
    """The addresses to listen on. With `grpc_port` None no public gRPC is served; port 0 lets the system choose.
    `peer_port` is for the control plane, over TLS: `peer_context` asks for a certificate. `probes` is `host:port` for
    probes and scrapes."""

    host: str
    port: int
    grpc_port: int | None
    peer_port: int | None = None
    peer_context: ssl.SSLContext | None = None
    probes: str | None = None


class SharedIndexRun(Protocol):
    """`kv_transfer.index.redis_index.RedisIndex`, as far as it has to be kept running."""

    async def run(self) -> None: ...


class Discovery(Protocol):
    """A finder of workers: `tandem.process.workers_file.WorkersFile`, `router.discovery.kubernetes`."""

    async def open(self) -> None:
        """Set up what has to be right before anything is served. Raises `bad_setting`."""
        ...

    async def run(self) -> None: ...


@dataclass(frozen=True)
class RouterComponents:
    """The parts of a router. `discovery` is None when the workers are fixed."""

    fleet: Fleet
    dispatcher: Dispatcher
    door: ApiCore
    http: HttpServer
    probes: Probes
    grpc: PublicGrpc
    discovery: Discovery | None
    shared: SharedIndexRun | None = None
    """A look-up beyond the router's own links."""
    watch: LoopWatch | None = None


class RouterService:
    """`tandem.process.run.Service`. Ready means that a worker could take a request."""

    def __init__(self, insides: RouterComponents, addresses: Addresses, events: EventLines) -> None:
        self._insides = insides
        self._addresses = addresses
        self._events = events
        self.port = 0
        """The HTTP port, once `start` has returned."""
        self.peer_port: int | None = None
        """The port for peers, once `start` has returned; None without one."""

    @property
    def app(self) -> Application:
        """The REST interface as an ASGI application, for another server than the router's own to run beside it."""
        return self._insides.http.app

    async def start(self) -> None:
        """Listen. Raises `bad_setting` when a port cannot be had."""
        if self._insides.discovery is not None:
            await self._insides.discovery.open()
        where = self._addresses
        self.port = await self._listen(where.host, where.port)
        if where.peer_port is not None:
            assert where.peer_context is not None, "the port of peers asks for certificates"
            self.peer_port = await self._listen(where.host, where.peer_port, where.peer_context)
        if where.probes is not None:
            self._events.emit("metrics", address=await self._serve_probes(where.probes))
        grpc_port = None
        if where.grpc_port is not None:
            grpc_port = await self._insides.grpc.start(where.host, where.grpc_port)
        self._events.emit(
            "listening", address=join_host(where.host, self.port), grpc_port=grpc_port, peer_port=self.peer_port
        )

    async def _listen(
        self, host: str, port: int, context: ssl.SSLContext | None = None, probes: Probes | None = None
    ) -> int:
        try:
            return await self._insides.http.start(host, port, context, probes)
        except OSError as error:
            problem = f"cannot listen on {join_host(host, port)}: {error.strerror}"
            raise TandemError("bad_setting", problem, param="port") from error

    async def _serve_probes(self, bind: str) -> str:
        host, port = split_host(bind)
        if not host or port is None:
            raise TandemError("bad_setting", f"metrics_bind = {bind!r}: expected host:port", param="metrics_bind")
        return join_host(host, await self._listen(host, port, probes=self._insides.probes))

    def roots(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        roots: dict[str, Callable[[], Awaitable[None]]] = {
            "fleet": lambda: self._insides.fleet.run(self._insides.dispatcher)
        }
        if self._insides.discovery is not None:
            roots["discovery"] = self._insides.discovery.run
        if self._insides.shared is not None:
            roots["shared index"] = self._insides.shared.run
        if self._insides.watch is not None:
            roots["loop watch"] = self._insides.watch.run
        return roots

    async def serve(self) -> None:
        """Wait for the first worker; until then requests are refused with `no_workers`."""
        while self._insides.door.not_ready() is not None:  # noqa: ASYNC110  (readiness is computed, not signalled)
            await asyncio.sleep(_LOOK_S)

    async def drain_requested(self) -> float | None:
        """Wait forever: only the owner of the process asks a router to drain."""
        await asyncio.Event().wait()
        return None

    async def drain(self, within_s: float) -> None:
        """Refuse new requests, let those that run end within the bound, end the rest with `draining`."""
        door, dispatcher = self._insides.door, self._insides.dispatcher
        door.drain()
        dispatcher.drain()
        left = await dispatcher.idle(within_s)
        ended = door.end_all()
        event(_log, "drained", left=left, ended=ended)
        # Before the links end one by one: a resumable request would flee to the workers that are still there.
        dispatcher.close(TandemError("draining", "the router is stopping", retry_after_s=1.0))
        self._insides.http.stop_listening()
        await self._close()

    def held(self) -> Mapping[str, int]:
        held = self._insides.dispatcher.held
        return {"requests": held} if held else {}

    async def stop(self) -> None:
        self._insides.dispatcher.close(TandemError("draining", "the router has stopped", retry_after_s=1.0))
        await self._close()

    async def _close(self) -> None:
        await asyncio.gather(self._insides.http.close(_CLOSE_S), self._insides.grpc.close(_CLOSE_S))
