"""The `tcp` transport: KV bytes over plain TCP, from the holder's slots by scatter send into the receiver's slots.

Needs nothing but a network. Bytes travel in the clear; use it inside a trusted network.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from kv_transfer.frames import Offers, Pool
from kv_transfer.limits import ConnectionLimits
from kv_transfer.pulling import Connection, PullClient, StreamPull
from kv_transfer.serving import PullServer
from kv_transfer.transport import BlockSink, ExportSource, Landed, Offer, PullOpen
from kv_transfer.wire import Wire
from tandem.core.errors import TandemError
from tandem.engine.protocol import BlockMemory

_READ_BYTES: Final = 256 << 10
"""Small blocks are read together up to this size, so that 8 KiB pieces do not cost a system call each."""


@dataclass(frozen=True)
class TcpSettings:
    """Where to listen and what to tell others. Port 0 lets the system choose; `advertise` defaults to `host`."""

    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    buffer_bytes: int | None = None
    """Kernel socket buffers; None leaves them to the kernel's own tuning."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)


class TcpTransport:
    """`kv_transfer.transport.Transport` over TCP."""

    def __init__(self, settings: TcpSettings) -> None:
        self._settings = settings
        self._client = PullClient(self._connect, settings.limits)
        self._server: PullServer | None = None

    @property
    def scheme(self) -> str:
        return "tcp"

    async def serve(self, source: ExportSource) -> str:
        """Listen. Raises `bad_setting` when the address cannot be bound."""
        assert self._server is None, "already serving"
        listener = await self._listen()
        carrier = _TcpCarrier(source.memory)
        self._server = PullServer(listener, source, lambda: carrier, self._settings.limits, self._admit)
        self._server.start()
        host = self._settings.advertise or self._settings.host
        port = listener.getsockname()[1]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    async def withdraw(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> StreamPull:
        return await self._client.open(address, request, sink, timeout_s)

    async def close(self) -> None:
        await self._client.close()
        await self.withdraw()

    async def _listen(self) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        try:
            family, address = await _resolve(host, port)
            listener = socket.create_server(address, family=family, backlog=self._settings.limits.connections_max)
        except OSError as error:
            problem = f"cannot serve KV blocks on {host}:{port}: {error.strerror or error}"
            raise TandemError("bad_setting", problem, param="kv_address") from error
        listener.setblocking(False)
        return listener

    def _admit(self, peer: socket.socket) -> None:
        self._tune(peer)

    def _tune(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._settings.buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._settings.buffer_bytes)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._settings.buffer_bytes)

    async def _connect(self, address: str) -> Connection:
        host, port = _split(address)
        try:
            family, target = await _resolve(host, port)
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            raise _unreachable(address, error) from error
        try:
            self._tune(sock)
            await asyncio.get_running_loop().sock_connect(sock, target)
        except OSError as error:
            sock.close()
            raise _unreachable(address, error) from error
        except BaseException:
            sock.close()
            raise
        return Connection(Wire(sock, address, self._settings.limits.stall_s), _TcpLanding())


class _TcpCarrier:
    """The bytes of the blocks follow the frame, straight from the holder's memory."""

    def __init__(self, memory: BlockMemory) -> None:
        self._memory = memory

    async def introduce(self, wire: Wire) -> None:
        return None

    def payload(self, offers: Sequence[Offer]) -> list[memoryview]:
        return [self._memory.block(offer.handle.slot) for offer in offers]


class _TcpLanding:
    """The bytes of the blocks follow the frame, straight into the sink's memory."""

    async def introduce(self, wire: Wire, pool: Pool) -> None:
        raise TandemError("transfer_failed", f"{wire.peer} offered shared memory over TCP")

    async def land(self, wire: Wire, offers: Offers, sink: BlockSink) -> AsyncGenerator[Landed, None]:
        views: list[memoryview] = []
        waiting: list[Offer] = []
        room = _READ_BYTES
        for offer in offers.offers:
            views.append(sink.block(offer.index))
            waiting.append(offer)
            room -= views[-1].nbytes
            if room <= 0 or offer is offers.offers[-1]:
                await wire.receive_into(views)
                for landed in waiting:
                    yield Landed(landed.index, landed.handle)
                views, waiting, room = [], [], _READ_BYTES

    def close(self) -> None:
        return None


def _split(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme != "tcp" or not host or not port:
        raise TandemError("transfer_failed", f"{address!r} is no tcp://host:port address")
    return host, port


async def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Numeric addresses need no lookup; names are looked up off the loop by asyncio."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return family, (host, port)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, target = found[0]
    return family, (str(target[0]), port)


def _unreachable(address: str, error: OSError) -> TandemError:
    return TandemError("transfer_failed", f"cannot reach {address}: {error.strerror or error}")
