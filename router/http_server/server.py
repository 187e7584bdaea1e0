"""Serving ASGI applications over HTTP/1.1 on listening sockets of our own, each with a bound on its connections."""

import asyncio
import socket
import ssl
from collections.abc import Coroutine
from typing import Any, Final

from router.http_server.connection import Application, HttpConnection
from router.http_server.connections_max import ConnectionsMax
from router.http_server.over_limit import OverLimitConnection
from router.http_server.refusal import Explain, Refusal, answer, plainly
from tandem.core.metrics import Meter, NullMeter
from tandem.process.listening import bound

_BACKLOG: Final = 2048
CONNECTIONS_MAX: Final = 8192
_HANDSHAKE_S: Final = 5.0
_ACCEPTS_AT_ONCE: Final = 32
"""Connections taken in one turn of the loop, between which streams go on."""
_ACCEPT_AGAIN_S: Final = 0.1
"""Seconds for which no connection is accepted after the system has refused to accept one."""


class HttpServer:
    """Listens, hands connections to an application, and stops in two steps.

    Each listening socket has at most as many connections open at once as `bounds` says. Further ones get the reason
    and are closed, and while too many of these linger the rest wait in the kernel's queue. So no client of one socket
    takes connections, or descriptors, from those of another."""

    def __init__(
        self,
        app: Application,
        bounds: ConnectionsMax | None = None,
        meter: Meter | None = None,
        explain: Explain = plainly,
    ) -> None:
        """`explain` puts what the server itself refuses into the application's words."""
        self.app = app
        """The application, for other servers to run as well."""
        self.explain = explain
        self._bounds = ConnectionsMax(CONNECTIONS_MAX) if bounds is None else bounds
        self._meter = NullMeter() if meter is None else meter
        self._listeners: list[_Listener] = []
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def start(
        self, host: str, port: int, context: ssl.SSLContext | None = None, probes: Application | None = None
    ) -> int:
        """Listen, as often as wanted, with `context` over TLS; gives the port (port 0 lets the system choose).
        `probes` is served there instead of the application. What is over TLS or for probes has the smaller bound.
        Raises `OSError` when the port cannot be had."""
        bounds = self._bounds
        public = context is None and probes is None
        most, turned = (bounds.public, bounds.turned) if public else (bounds.probes, max(1, bounds.probes // 4))
        listener = _Listener(self, probes or self.app, bound(host, port), context, most, turned)
        self._listeners.append(listener)
        listener.listen()
        return listener.port

    def stop_listening(self) -> None:
        """Accept no more connections: those that wait to be accepted get the answer `draining`, open ones go on, and
        idle ones close."""
        for listener in self._listeners:
            listener.stop()

    async def close(self, within_s: float) -> None:
        """Wait for running responses, then cut what is left."""
        self.stop_listening()
        try:
            async with asyncio.timeout(within_s):
                for listener in self._listeners:
                    await listener.told.wait()
                if self._tasks:
                    await asyncio.wait(list(self._tasks))
        except TimeoutError:
            pass
        for task in list(self._tasks):
            task.cancel("the router has stopped")
        for listener in self._listeners:
            listener.cut()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task that `close` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def refused(self) -> None:
        """Count a connection that was turned away."""
        self._meter.add("tandem_connections_refused_total")


class _Listener:
    """One listening socket and its connections. Implements `router.http_server.connection.ConnectionOwner`."""

    def __init__(
        self,
        server: HttpServer,
        app: Application,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        connections_max: int,
        turned_max: int,
    ) -> None:
        self.app = app
        self.explain = server.explain
        self.port: int = listener.getsockname()[1]
        self.told = asyncio.Event()
        """Set while no connection that was turned away is still open."""
        self.told.set()
        self._turned: dict[OverLimitConnection, None] = {}
        self._server = server
        self._socket = listener
        self._context = context
        self._connections_max = connections_max
        self._turned_max = turned_max
        self._connections: dict[HttpConnection, None] = {}
        self._beginning: dict[asyncio.Task[None], None] = {}
        """Tasks that turn accepted sockets into connections: over TLS this takes a handshake."""
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._accepting = False
        self._open = True

    def listen(self) -> None:
        self._socket.listen(_BACKLOG)
        self._accept_on()

    def stop(self) -> None:
        if not self._open:
            return
        self._accept_off()
        if self._pause is not None:
            self._pause.cancel()
        self._open = False
        for _ in range(_BACKLOG):
            if (accepted := self._accepted()) is None:
                break
            self._turn_away(accepted, Refusal("stopping", "the router is stopping"))
        self._socket.close()
        for connection in list(self._connections):
            connection.shutdown()

    def cut(self) -> None:
        for task in list(self._beginning):
            task.cancel()
        for turned in list(self._turned):
            turned.abort()
        for connection in list(self._connections):
            connection.shutdown()

    # ---- router.http_server.connection.ConnectionOwner ----

    def opened(self, connection: HttpConnection) -> None:
        if not self._open:
            connection.shutdown()

    def closed(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)
        self._accept_on()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._server.run(work)

    # ---- router.http_server.over_limit.OverLimitOwner ----

    def let_go(self, turned: OverLimitConnection) -> None:
        self._turned.pop(turned, None)
        if not self._turned:
            self.told.set()
        self._accept_on()

    # ---- inside ----

    def _accept_on(self) -> None:
        if not self._accepting and self._open and self._pause is None and self._has_room():
            self._accepting = True
            self._loop.add_reader(self._socket.fileno(), self._readable)

    def _accept_off(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._socket.fileno())

    def _has_room(self) -> bool:
        return not self._full() or len(self._turned) < self._turned_max

    def _full(self) -> bool:
        return len(self._connections) >= self._connections_max

    def _readable(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            if not self._has_room():
                self._accept_off()
                return
            try:
                accepted = self._accepted()
            except OSError:
                self._rest()
                return
            if accepted is None:
                return
            if not self._full():
                self._begin(accepted, HttpConnection(self))
                continue
            self._server.refused()
            reason = f"the router has {self._connections_max} connections open, which is its bound"
            self._turn_away(accepted, Refusal("too_many", reason))

    def _turn_away(self, accepted: socket.socket, refusal: Refusal) -> None:
        self._begin(accepted, OverLimitConnection(self, answer(refusal, self.explain)))

    def _accepted(self) -> socket.socket | None:
        """The next connection in the kernel's queue. Raises `OSError` where there is no descriptor for it."""
        try:
            accepted, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return None
        accepted.setblocking(False)
        return accepted

    def _rest(self) -> None:
        """The system gives out no descriptors now; those who wait stay in the kernel's queue."""
        self._accept_off()
        self._pause = self._loop.call_later(_ACCEPT_AGAIN_S, self._rested)

    def _rested(self) -> None:
        self._pause = None
        self._accept_on()

    def _begin(self, accepted: socket.socket, protocol: "HttpConnection | OverLimitConnection") -> None:
        if isinstance(protocol, OverLimitConnection):
            self._turned[protocol] = None
            self.told.clear()
        else:
            self._connections[protocol] = None
        task = self._loop.create_task(self._connect(accepted, protocol))
        self._beginning[task] = None
        task.add_done_callback(self._beginning.pop)

    async def _connect(self, accepted: socket.socket, protocol: "HttpConnection | OverLimitConnection") -> None:
        timeout_s = None if self._context is None else _HANDSHAKE_S
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=timeout_s,
            )
        except (OSError, ssl.SSLError, TimeoutError, asyncio.CancelledError):
            # No connection has come of it, so nobody has been told of one.
            accepted.close()
            if isinstance(protocol, OverLimitConnection):
                self.let_go(protocol)
            else:
                self.closed(protocol)
