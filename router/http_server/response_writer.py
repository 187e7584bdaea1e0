"""Sends one response to one client: ASGI messages are written without a task, and bounded when the client does not
keep up.

Sending to a client that reads takes no waiting, so `send` is driven by hand, inside the call that brought the token.
Only when `send` has to wait (the server's own buffer is full) does a task take over: it finishes that message, then
sends what has gathered since, in one piece. What gathers is bounded, and so is the time it may take.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from router.http_server.sync_first import Waiting, begin

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]


CONNECTION_EXTENSION: Final = "tandem.connection"
"""The key under which a server may put a `Connection` among a request's ASGI extensions."""


class Connection(msgspec.Struct, frozen=True):
    """The operations that a server can offer beyond ASGI: `abort` cuts the connection without waiting for what is
    still to be written; `wire` takes chunks of a streamed response at less cost; `respond` takes the status, headers
    and body of a whole response, or reports that it cannot."""

    abort: Callable[[], None]
    wire: "ChunkWriter | None" = None
    respond: "Callable[[int, Sequence[Header], bytes], bool] | None" = None


class ChunkWriter(Protocol):
    """`router.http_server.wire.Wire`, as the outlet sees it."""

    def hold(self) -> None: ...

    def write(self, body: bytes) -> bool: ...


@dataclass(frozen=True)
class ResponseWriterLimits:
    """`buffer_bytes` gather for a client that does not read, for `stall_s` at most; then it gets `farewell_s` more
    to take its error event before the connection is cut."""

    buffer_bytes: int = 256 * 1024
    stall_s: float = 30.0
    farewell_s: float = 2.0


class ResponseWriter:
    """Writes one response. It calls `on_slow` once, from the event loop, when the client falls too far behind; the
    owner must then end the response with `end`."""

    __slots__ = (
        "_connection",
        "_dropping",
        "_ending",
        "_gathered",
        "_gathered_bytes",
        "_limits",
        "_on_slow",
        "_patience",
        "_pump",
        "_send",
        "_slow",
        "_streamed",
        "besides",
        "started",
        "wire",
    )

    def __init__(
        self, send: Send, limits: ResponseWriterLimits, connection: Connection, on_slow: Callable[[], None]
    ) -> None:
        self._send = send
        self._limits = limits
        self._connection = connection
        self._on_slow = on_slow
        self.besides: tuple[Header, ...] = ()
        """Headers of whatever is answered."""
        self.wire: ChunkWriter | None = None
        """The short way for a piece of the body, which takes the piece or reports that it cannot; None while there is
        no such way."""
        self._pump: asyncio.Task[None] | None = None
        self._patience: asyncio.Timeout | None = None
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._slow = False
        self._dropping = False
        self._ending = False
        self._streamed = False
        self.started = False

    @property
    def ended(self) -> bool:
        """Whether the last message has been given to the outlet."""
        return self._ending

    def start(self, status: int, headers: Sequence[Header], *, streamed: bool = False) -> None:
        """Status and headers; once, before anything else. A streamed response gives no length in its headers."""
        assert not self.started, "a response starts once"
        self.started = True
        headers = [*headers, *self.besides] if self.besides else headers
        self._drive({"type": "http.response.start", "status": status, "headers": headers})
        self._streamed = streamed
        if streamed and self._pump is None:
            self._go_direct()

    def whole(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """All of a response, in place of `start`, `write` and `end`."""
        respond, told = self._connection.respond, (*headers, *self.besides)
        if respond is not None and not self.started and not self._ending and respond(status, told, body):
            self.started = self._ending = True
        else:
            self.start(status, headers)
            self.end(body)

    def write(self, body: bytes) -> None:
        """More of the body. Dropped once the client is known to be too slow or the response has ended."""
        wire = self.wire
        if wire is None or not wire.write(body):
            self.write_on(body)

    def write_on(self, body: bytes) -> None:
        """Write more of the body, as `write` does, when `wire` has not taken it."""
        if self._pump is None and not self._ending:
            self._drive({"type": "http.response.body", "body": body, "more_body": True})
        elif not self._ending and not self._dropping:
            self._gather(body)

    def _go_direct(self) -> None:
        wire = self._connection.wire
        if wire is not None and not self._ending:
            wire.hold()
            self.wire = wire

    def end(self, body: bytes) -> None:
        """The last of the body, which is kept even for a slow client."""
        if self._ending:
            return
        self._ending = True
        self.wire = None
        if self._pump is None:
            self._drive({"type": "http.response.body", "body": body, "more_body": False})
        else:
            self._gathered.append(body)

    async def close(self) -> None:
        """Nothing more will be sent; returns when nothing is being sent."""
        self._ending = True
        self.wire = None
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])

    def _drive(self, message: Message) -> None:
        try:
            sending = begin(self._send(message))
        except OSError:
            # The client is gone; `receive` says so to whoever waits for it.
            self._ending = True
            self.wire = None
            return
        if isinstance(sending, Waiting):
            self.wire = None
            self._pump = asyncio.get_running_loop().create_task(self._drain(sending))

    def _gather(self, body: bytes) -> None:
        self._gathered.append(body)
        self._gathered_bytes += len(body)
        if self._gathered_bytes > self._limits.buffer_bytes:
            self._too_slow()

    def _too_slow(self) -> None:
        if not self._slow:
            self._slow = True
            asyncio.get_running_loop().call_soon(self._give_up)

    def _give_up(self) -> None:
        """Drop what has gathered and notify the owner. A response that has ended, even in the same turn of the loop,
        is not cut short: what is left is bounded, and without it the client would take a part for the whole."""
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time() + self._limits.farewell_s)
        if not self._ending:
            self._dropping = True
            self._gathered = []
            self._on_slow()

    async def _drain(self, sending: Awaitable[None]) -> None:
        """Finish one message, then send what gathered, until nothing did. Cuts the connection of a stalled client."""
        try:
            await self._patiently(sending)
            while self._gathered:
                body = b"".join(self._gathered)
                self._gathered = []
                self._gathered_bytes = 0
                message = {"type": "http.response.body", "body": body, "more_body": not self._ending}
                await self._patiently(self._send(message))
            if self._streamed:
                self._go_direct()
        except TimeoutError:
            self._connection.abort()
        except OSError:
            self._ending = True
        finally:
            self._pump = None

    async def _patiently(self, sending: Awaitable[None]) -> None:
        """Wait for one message. After `stall_s` the client is slow; a slow client has `farewell_s` left."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._limits.stall_s, self._too_slow)
        try:
            async with asyncio.timeout(self._limits.farewell_s if self._slow else None) as self._patience:
                await sending
        finally:
            timer.cancel()
            self._patience = None
