"""Serving the ASGI application over HTTP/1.1: uvicorn's protocol on a listening socket of our own.

uvicorn's own server object brings signal handling, a poll ten times a second and process exit; the router has its
own ways for these (`tandem.service.run`), so only the protocol is used.
"""

import asyncio
import socket
import struct
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.front.app import RestApp
from router.front.outlet import CONNECTION_EXTENSION, Connection
from router.front.wire import Wire
from tandem.core.errors import TandemError

_BACKLOG: Final = 2048
_KEEP_ALIVE_S: Final = 75
_HEAD_S: Final = 30.0


class HttpServer:
    """Listens, hands connections to the application, and stops in two steps."""

    def __init__(self, app: RestApp) -> None:
        self._config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            loop="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self._config.load()
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; gives the port (port 0 lets the system choose). Raises `bad_setting` when it cannot be had."""
        loop = asyncio.get_running_loop()
        listener = _listen(host, port)
        self._server = await loop.create_server(self._connect, sock=listener, backlog=_BACKLOG)
        bound: int = listener.getsockname()[1]
        return bound

    def stop_listening(self) -> None:
        """Accept no more connections; those that are open go on, and idle ones close."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()

    async def close(self, within_s: float) -> None:
        """Wait for running responses, then cut what is left."""
        self.stop_listening()
        tasks = [*self._state.tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        for task in self._state.tasks:
            task.cancel("the router has stopped")
        for connection in list(self._state.connections):
            if connection.transport is not None:
                connection.transport.close()

    def _connect(self) -> asyncio.Protocol:
        return _Protocol(config=self._config, server_state=self._state, app_state={})


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, plus a bound on how long a request's head may take to arrive, and a way for the
    application to cut a connection whose client does not read."""

    _head_timer: asyncio.TimerHandle | None = None
    _wire: Wire | None = None

    def connection_made(self, transport: Any) -> None:
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if connection is not None and transport.get_extra_info("ssl_object") is None:
            self._wire = Wire(connection.fileno(), transport)
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(_HEAD_S, transport.abort)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(_HEAD_S, self.transport.abort)

    def on_headers_complete(self) -> None:
        self._head_arrived()
        self.scope["extensions"] = {CONNECTION_EXTENSION: Connection(self._cut, self._wire)}  # type: ignore[dict-item]
        super().on_headers_complete()

    def _cut(self) -> None:
        """Reset the connection: what the kernel still holds for a client that does not read is dropped as well."""
        connection = self.transport.get_extra_info("socket")
        if connection is not None and not self.transport.is_closing():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        if self._wire is not None:
            self._wire.detach()
            self._wire = None
        super().connection_lost(exc)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


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
