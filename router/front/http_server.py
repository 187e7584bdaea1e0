"""Serving the ASGI application over HTTP/1.1 on a listening socket of our own."""

import asyncio
import socket
import ssl
from collections.abc import Coroutine
from typing import Any, Final

from router.front.app import RestApp
from router.front.http_connection import Application, HttpConnection
from router.front.turned import Turned
from tandem.core.errors import TandemError

_BACKLOG: Final = 2048
CONNECTIONS_MAX: Final = 8192
_HANDSHAKE_S: Final = 5.0


class HttpServer:
    """Listens, hands connections to the application, and stops in two steps.

    At most `connections_max` connections are open at once; who comes then is told so and let go.
    """

    def __init__(self, app: RestApp, connections_max: int = CONNECTIONS_MAX) -> None:
        self.app: Application = app
        self._connections_max = connections_max
        self._connections: dict[HttpConnection, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._servers: list[asyncio.Server] = []

    async def start(self, host: str, port: int, context: ssl.SSLContext | None = None) -> int:
        """Listen, as often as wanted, with `context` over TLS; gives the port (port 0 lets the system choose). Raises
        `bad_setting` when it cannot be had."""
        loop = asyncio.get_running_loop()
        listener = _listen(host, port)
        timeout_s = None if context is None else _HANDSHAKE_S
        server = await loop.create_server(
            self._connect,
            sock=listener,
            backlog=_BACKLOG,
            ssl=context,
            ssl_handshake_timeout=timeout_s,
            ssl_shutdown_timeout=timeout_s,
        )
        self._servers.append(server)
        bound: int = listener.getsockname()[1]
        return bound

    def stop_listening(self) -> None:
        """Accept no more connections; those that are open go on, and idle ones close."""
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.shutdown()

    async def close(self, within_s: float) -> None:
        """Wait for running responses, then cut what is left."""
        self.stop_listening()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=within_s)
        for task in list(self._tasks):
            task.cancel("the router has stopped")
        for connection in list(self._connections):
            connection.shutdown()

    def _connect(self) -> asyncio.Protocol:
        if len(self._connections) >= self._connections_max:
            return Turned(f"the router has {self._connections_max} connections open, which is its bound")
        return HttpConnection(self)

    # ---- router.front.http_connection.Owner ----

    def opened(self, connection: HttpConnection) -> None:
        self._connections[connection] = None

    def closed(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise TandemError("bad_setting", f"cannot listen on {host}:{port}: {error.strerror}", param="port") from error
    listener.setblocking(False)
    return listener
