"""Chunks of a streamed response straight onto the socket.

A token's event is small and its client nearly always ready, so the way through ASGI messages, the server's response
object and the transport costs more than the kernel's send. While nothing is waiting to be written on the connection
that way can be left out without changing the order of bytes; as soon as the kernel takes less than everything, the
transport gets the rest and the normal way is taken until it has drained.
"""

import socket
from typing import Protocol


class Transport(Protocol):
    """The interface that `Wire` needs from the connection's transport."""

    def write(self, data: bytes) -> None: ...

    def get_write_buffer_size(self) -> int: ...

    def is_closing(self) -> bool: ...


class Wire:
    """One connection's socket, shared with its transport. `detach` before the transport closes it."""

    __slots__ = ("_clear", "_send", "_socket", "_transport")

    def __init__(self, descriptor: int, transport: Transport) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._send = self._socket.send
        self._transport = transport
        self._clear = False

    def hold(self) -> None:
        """Something was or will be written another way: look at the transport again before the next chunk."""
        self._clear = False

    def write(self, body: bytes) -> bool:
        """Write one chunk of a response whose head says `transfer-encoding: chunked`. Returns False when the chunk
        was not taken."""
        if not self._clear and not self._look():
            return False
        chunk = b"%x\r\n%b\r\n" % (len(body), body)
        try:
            sent = self._send(chunk)
        except BlockingIOError:
            self._clear = False
            return False
        except OSError:
            # The connection broke: the transport will notice and tell the application.
            self._clear = False
            return True
        if sent != len(chunk):
            self._clear = False
            self._transport.write(chunk[sent:])
        return True

    def detach(self) -> None:
        """The descriptor belongs to the transport alone again; nothing more is written from here."""
        self._clear = False
        self._socket.detach()

    def _look(self) -> bool:
        transport = self._transport
        self._clear = (
            self._socket.fileno() >= 0 and not transport.is_closing() and transport.get_write_buffer_size() == 0
        )
        return self._clear
