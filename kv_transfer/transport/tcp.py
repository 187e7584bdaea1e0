"""The `tcp` transport: KV bytes over TCP, from the holder's slots by scatter send into the receiver's slots.

Needs nothing but a network. With certificates (`kv_transfer.transport.tcp_tls`) everything is encrypted and both ends
prove who they are; without, bytes travel in the clear.
"""

import socket
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kv_transfer.transport import sockets
from kv_transfer.transport.frames import Offers, Pool
from kv_transfer.transport.limits import ConnectionLimits
from kv_transfer.transport.protocol import (
    BlockReceived,
    BlockSink,
    Delivered,
    ExportSource,
    Offer,
    PullOpen,
    together,
)
from kv_transfer.transport.pulling import Connection, PullClient, StreamPull
from kv_transfer.transport.secure_wire import SecureWire, TlsRefused
from kv_transfer.transport.serving import PullServer
from kv_transfer.transport.tcp_tls import Encryption, Refusals, agrees, marked
from kv_transfer.transport.wire import Wire
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter, NullMeter
from tandem.engine.protocol import BlockMemory

_READ_BYTES: Final = 256 << 10
"""Small blocks are read together up to this size, so that 8 KiB pieces do not cost a system call each."""


@dataclass(frozen=True)
class TcpSettings:
    """The address to listen on and the address to advertise. Port 0 lets the system choose; `advertise` defaults to
    `host`."""

    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    buffer_bytes: int | None = None
    """Kernel socket buffers; None leaves them to the kernel's own tuning."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)


class TcpTransport:
    """`kv_transfer.transport.protocol.Transport` over TCP."""

    def __init__(
        self, settings: TcpSettings, encryption: Encryption | None = None, meter: Meter | None = None
    ) -> None:
        self._settings = settings
        self._encryption = encryption or Encryption()
        self._refusals = Refusals(meter or NullMeter())
        self._client = PullClient(self._connect, settings.limits)
        self._server: PullServer | None = None

    @property
    def scheme(self) -> str:
        return "tcp"

    async def serve(self, source: ExportSource) -> str:
        """Listen. Raises `bad_setting` when the address cannot be bound."""
        assert self._server is None, "already serving"
        settings = self._settings
        listener = await sockets.listen(settings.host, settings.port, settings.limits.connections_max)
        carrier = _TcpCarrier(source.memory)
        self._server = PullServer(listener, source, lambda: carrier, settings.limits, self._admit, self._accepted)
        self._server.start()
        address = sockets.shown(self.scheme, settings.advertise or settings.host, listener.getsockname()[1])
        return marked(address, self._encryption.on)

    async def withdraw(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> StreamPull:
        return await self._client.open(address, request, sink, timeout_s)

    async def close(self) -> None:
        await self._client.close()
        await self.withdraw()

    def _admit(self, peer: socket.socket) -> None:
        sockets.tune(peer, self._settings.buffer_bytes)

    def _accepted(self, peer: socket.socket) -> Wire:
        context, stall_s, refused = (
            self._encryption.serving,
            self._settings.limits.stall_s,
            self._refusals.from_receiver,
        )
        if context is None:
            return Wire(peer, "receiver", stall_s)
        return SecureWire(peer, "receiver", stall_s, context, None, refused)

    async def _connect(self, address: str) -> Connection:
        limits, context = self._settings.limits, self._encryption.dialing
        try:
            agrees(address, self._encryption)
        except TlsRefused as refusal:
            self._refusals.from_holder(refusal)
            raise
        sock = await sockets.connect(address, self.scheme, self._settings.buffer_bytes)
        if context is None:
            return Connection(Wire(sock, address, limits.stall_s), _TcpReceiver())
        host, _ = sockets.split(address, self.scheme)
        wire = SecureWire(sock, address, limits.stall_s, context, host, self._refusals.from_holder)
        try:
            await wire.opened(limits.greeting_s)
        except BaseException:
            wire.close()
            raise
        return Connection(wire, _TcpReceiver())


class _TcpCarrier:
    """The bytes of the blocks follow the frame, straight from the holder's memory."""

    def __init__(self, memory: BlockMemory) -> None:
        self._memory = memory

    async def introduce(self, wire: Wire) -> None:
        return None

    def payload(self, offers: Sequence[Offer]) -> list[memoryview]:
        return [self._memory.block(offer.handle.slot) for offer in offers]


class _TcpReceiver:
    """The bytes of the blocks follow the frame, straight into the sink's memory."""

    async def introduce(self, wire: Wire, pool: Pool) -> None:
        raise TandemError("transfer_failed", f"{wire.peer} offered shared memory over TCP")

    async def land(
        self, wire: Wire, offers: Offers, sink: BlockSink
    ) -> AsyncGenerator[BlockReceived | Delivered, None]:
        views, room, first, left = list[memoryview](), _READ_BYTES, 0, len(offers.indices)
        for index in offers.indices:
            views.append(sink.block(index))
            room -= views[-1].nbytes
            left -= 1
            if room <= 0 or not left:
                await wire.receive_into(views)
                last = first + len(views)
                yield together(tuple(map(BlockReceived, offers.indices[first:last], offers.handles[first:last])))
                views, room, first = [], _READ_BYTES, last

    def close(self) -> None:
        return None
