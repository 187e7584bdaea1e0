"""One TCP connection of a link: bytes in and out, frames in between. What frames mean is its owner's business."""

import asyncio
import socket
import struct
from typing import Final, Protocol, cast

from tandem.core.errors import TandemError
from tandem.link.tcp_frames import FRAME_BYTES_MAX, FrameCutter

_WRITE_BUFFER_BYTES: Final = 256 << 10
"""Bytes that may wait in the transport before frames wait in the channel, where they are counted."""

_RESET: Final = struct.pack("ii", 1, 0)


class StreamOwner(Protocol):
    """The owner of a connection: first the greeting, then a channel."""

    def took(self, kind: int, body: memoryview) -> None:
        """A frame has arrived; `body` is valid only now. Raises `link_lost` when it cannot be understood."""
        ...

    def writable(self) -> None:
        """The connection takes more to write again."""
        ...

    def ended(self, reason: str) -> None:
        """The connection is gone; once, and nothing after it."""
        ...


class TcpStream(asyncio.Protocol):
    """Give it an owner before it is connected."""

    def __init__(self) -> None:
        self._owner: StreamOwner | None = None
        self._cutter = FrameCutter()
        self._transport: asyncio.Transport | None = None
        self._failure: str | None = None
        self._unwanted = False
        self.congested = False
        """Whether what was written waits for the peer: no more should be written now."""

    # ---- for the owner ----

    def greeted_by(self, owner: StreamOwner) -> None:
        """`owner` gets the frames of the greeting, which are short."""
        self._owner = owner

    def belongs_to(self, owner: StreamOwner) -> None:
        """The greeting is over: `owner` gets the frames from now on."""
        self._owner = owner
        self._cutter.bytes_max = FRAME_BYTES_MAX

    def write(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def pause(self) -> None:
        """Read nothing more until `resume`: TCP makes the peer wait."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """End the connection once what was written is on its way."""
        if self._transport is not None:
            self._transport.close()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now: with TLS, whether its handshake is over."""
        return self._transport is not None

    def abort(self) -> None:
        """End the connection now, or as soon as there is one."""
        self._unwanted = True
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """End the connection now, and keep nothing in the kernel for a peer that does not read."""
        if self._transport is not None:
            connection = self._transport.get_extra_info("socket")
            if connection is not None and not self._transport.is_closing():
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_WRITE_BUFFER_BYTES)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._unwanted:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        assert self._owner is not None
        cutter = self._cutter
        cutter.feed(data)
        try:
            while (frame := cutter.next()) is not None:
                self._owner.took(*frame)
        except TandemError as error:
            self._failure = error.message
            self.abort()

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        assert self._owner is not None
        self.congested = False
        self._owner.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._owner is not None
        self._transport = None
        if self._failure is not None:
            self._owner.ended(f"sent what is no frame of a link: {self._failure}")
        else:
            self._owner.ended(f"broke the connection: {exc}" if exc is not None else "ended the connection")
