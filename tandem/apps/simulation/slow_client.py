"""A client that takes nothing for a while, behind the router's real way out: bounded, and cut off when too slow.

Between the dispatcher and the client stand `router.http_server.response_writer.ResponseWriter` and a connection that
takes a few hundred bytes more while the client does not read. What the client reads in the end goes to the sink that
checks it."""

import asyncio
from collections.abc import Callable
from typing import Final

from router.generation import Sink, Usage
from router.http_server.response_writer import Connection, Message, ResponseWriter, ResponseWriterLimits
from tandem.core.errors import TandemError
from tandem.core.messages import SequenceOutput

LIMITS: Final = ResponseWriterLimits(buffer_bytes=2048, stall_s=1.5, farewell_s=0.5)
EVENT_BYTES: Final = 64
"""Every event is made as long as this, the number of the event in front."""
_SOCKET_BYTES: Final = 512
"""Bytes that the connection takes while the client is not reading."""


class StallingClient:
    """`router.generation.Sink` for a client that stops reading after `after` outputs, for `for_s` seconds."""

    def __init__(self, client: Sink, after: int, for_s: float, give_up: Callable[[], None]) -> None:
        """`give_up` is called, by the router, when the client turns out to be too slow."""
        self._client = client
        self._after = after
        self._for_s = for_s
        self._give_up = give_up
        self._events: list[Callable[[], None]] = []
        self._unread = b""
        self._outputs = 0
        self._drained = asyncio.Event()
        self._reading = True
        self._cut = False
        self._whole = False
        self._outlet = ResponseWriter(self._send, LIMITS, Connection(self._abort), self._slow)
        self._outlet.start(200, ())

    # -- the router's side --

    def output(self, output: SequenceOutput) -> None:

        self._outputs += 1
        if self._outputs == self._after:
            self._reading = False
            asyncio.get_running_loop().call_later(self._for_s, self._read_on)
        self._outlet.write(self._event(lambda: self._client.output(output)))

    def done(self, usage: Usage) -> None:
        self._outlet.end(self._event(lambda: self._last(lambda: self._client.done(usage))))

    def failed(self, error: TandemError) -> None:
        self._outlet.end(self._event(lambda: self._last(lambda: self._client.failed(error))))

    def _slow(self) -> None:
        error = TandemError("slow_client", "the client does not read its stream fast enough")
        self._give_up()
        self._outlet.end(self._event(lambda: self._last(lambda: self._client.failed(error))))

    def _event(self, told: Callable[[], None]) -> bytes:
        self._events.append(told)
        return b"%d;" % (len(self._events) - 1) + b" " * EVENT_BYTES

    # -- the connection --

    async def _send(self, message: Message) -> None:
        self._unread += message.get("body", b"")
        self._read()
        if len(self._unread) > _SOCKET_BYTES and not self._cut:
            self._drained.clear()
            await self._drained.wait()

    def _abort(self) -> None:
        """The router cuts the connection: whatever has not been read is lost, the end of the answer included. To a
        client that has read the end it means nothing."""
        self._cut = True
        self._unread = b""
        if self._whole:
            return
        self._client.failed(TandemError("slow_client", "the connection was cut"))

    # -- the client --

    def _last(self, told: Callable[[], None]) -> None:
        """The end of the answer has been read."""
        self._whole = True
        told()

    def _read_on(self) -> None:
        self._reading = True
        self._read()

    def _read(self) -> None:
        if not self._reading or self._cut:
            return
        unread, self._unread = self._unread, b""
        for number in unread.split(b";")[:-1]:
            self._events[int(number)]()
        self._drained.set()
