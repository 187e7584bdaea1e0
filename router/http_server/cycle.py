"""One HTTP request and its response, as the ASGI application sees them: `receive` and `send`."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

_BODY_BYTES_AHEAD: Final = 65_536
"""Bytes of a body that are read before the application asks for them; beyond these, TCP makes the client wait."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES: Final = {int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode() for status in HTTPStatus}
_GONE: Final[Message] = {"type": "http.disconnect"}


class CycleConnection(Protocol):
    """The interface that an exchange needs from its connection."""

    congested: bool

    def write(self, data: bytes) -> None: ...

    async def drained(self) -> None:
        """Wait until more may be written or the connection is gone."""
        ...

    def read_on(self, on: bool) -> None:
        """Go on or stop reading from the client."""
        ...

    def answered(self, exchange: "RequestResponseCycle") -> None:
        """The response is complete."""
        ...


class RequestHead:
    """The parts of a request's head that the response depends on."""

    __slots__ = ("expects_continue", "keep_alive", "may_chunk", "without_body")

    def __init__(self, method: str, version: str, keep_alive: bool, expects_continue: bool) -> None:
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue
        self.may_chunk = version == "1.1"
        self.without_body = method == "HEAD"


class RequestResponseCycle:
    """One request and its response. `scope` is ASGI's. The connection feeds the request in with `feed` and `ended`,
    or reports with `gone` that the client is gone."""

    __slots__ = (
        "_body",
        "_chunked",
        "_head",
        "_line",
        "_news",
        "_request",
        "_told",
        "_waiter",
        "_whole",
        "complete",
        "disconnected",
        "scope",
        "started",
    )

    def __init__(self, line: CycleConnection, scope: Message, request: RequestHead) -> None:
        self.scope = scope
        self.started = False
        self.complete = False
        self.disconnected = False
        self._line = line
        self._request = request
        self._body = b""
        self._whole = False
        self._told = False
        self._news = False
        self._waiter: asyncio.Future[None] | None = None
        self._head: bytes | None = None
        self._chunked = False

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may serve another request after this one."""
        return self._request.keep_alive

    def close_after(self) -> None:
        """The connection ends with this response."""
        self._request.keep_alive = False

    @property
    def whole(self) -> bool:
        """Whether the request has arrived to its end."""
        return self._whole

    # ---- the request ----

    def feed(self, data: bytes) -> None:
        """More of the body; what comes after the response is of no interest."""
        if not self.complete:
            self._body = self._body + data if self._body else data
            if len(self._body) > _BODY_BYTES_AHEAD:
                self._line.read_on(False)
            self._tell()

    def ended(self) -> None:
        """The request is whole."""
        self._whole = True
        self._tell()

    def gone(self) -> None:
        """The client is."""
        self.disconnected = True
        self._tell()

    async def receive(self) -> Message:
        """ASGI: the next piece of the body, then, once there is nothing left to hear, `http.disconnect`."""
        if self._request.expects_continue and not self._whole:
            self._request.expects_continue = False
            self._line.write(_CONTINUE)
        while not self._news and not self.disconnected and not self.complete:
            self._line.read_on(True)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.disconnected or self.complete:
            return _GONE
        self._news = False
        body, self._body = self._body, b""
        return {"type": "http.request", "body": body, "more_body": not self._whole}

    def _tell(self) -> None:
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take_scope(self) -> Message:
        """The scope for the application, handed over once: the scope leads back to this object."""
        scope, self.scope = self.scope, {}
        return scope

    # ---- the response ----

    def respond(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """A whole response at once. False when none can begin now."""
        if self.started or self.disconnected or self._line.congested:
            return False
        self.started = True
        self._head = self._head_of(status, headers)
        self._end(self._framed(body, more=False))
        return True

    async def send(self, message: Message) -> None:
        """ASGI: the head, then the body in pieces. Waits while the client does not keep up."""
        if self._line.congested and not self.disconnected:
            await self._line.drained()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            assert not self.started, "a response starts once"
            self.started = True
            head = self._head_of(message["status"], message["headers"])
            if self._chunked:
                # What follows may take a shorter way (`router.http_server.wire`), so the head cannot wait for it.
                self._line.write(head)
            else:
                self._head = head
            return
        assert self.started, "a response starts with its head"
        assert not self.complete, "nothing follows the end of a response"
        more = message.get("more_body", False)
        framed = self._framed(message.get("body", b""), more)
        if more:
            self._line.write(framed)
        else:
            self._end(framed)

    def _end(self, framed: bytes) -> None:
        self._line.write(framed)
        self.complete = True
        self._request.expects_continue = False
        self._line.answered(self)
        self._tell()

    def _framed(self, body: bytes, more: bool) -> bytes:
        """A piece of the body with what goes before and after it on the wire."""
        head, self._head = self._head or b"", None
        if self._request.without_body:
            return head
        if not self._chunked:
            return head + body
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return head + chunk + (b"" if more else b"0\r\n\r\n")

    def _head_of(self, status: int, headers: Any) -> bytes:
        request = self._request
        lines = [_STATUS_LINES[status]]
        sized = status < 200 or status in (204, 304)
        for name, value in headers:
            if name == b"content-length":
                sized = True
            elif name == b"connection" and value == b"close":
                request.keep_alive = False
                continue
            lines.append(b"%b: %b\r\n" % (name, value))
        if not sized and request.may_chunk:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        elif not sized:
            request.keep_alive = False
        if not request.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)
