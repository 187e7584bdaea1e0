"""One client's HTTP/1.1 connection: turns bytes into requests, sends one response after the other, and bounds how
long each may take.

A client that has sent its next request early waits for its turn, and is still noticed when it hangs up. Everything
that a client can make the router hold or wait for is bounded: the head of a request in size and time, requests sent
early in number, the rest of a finished response in time.
"""

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote_to_bytes

import httptools

from router.http_server.cycle import Message, Receive, RequestHead, RequestResponseCycle
from router.http_server.head import head_fault
from router.http_server.refusal import Explain, Refusal, answer
from router.http_server.response_writer import CONNECTION_EXTENSION, Connection, Send
from router.http_server.wire import Wire

_log = logging.getLogger(__name__)

Application = Callable[[Message, Receive, Send], Awaitable[None]]

_KEEP_ALIVE_S: Final = 75.0
_HEAD_S: Final = 30.0
_HEAD_BYTES_MAX: Final = 65_536
_LAST_BYTES_S: Final = 30.0
"""Seconds that a finished response may wait for a client that does not read it."""
_PIPELINED_MAX: Final = 16
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
_RESET: Final = struct.pack("ii", 1, 0)


class ConnectionOwner(Protocol):
    """The server, as a connection sees it."""

    @property
    def app(self) -> Application: ...

    @property
    def explain(self) -> Explain: ...

    def opened(self, connection: "HttpConnection") -> None: ...

    def closed(self, connection: "HttpConnection") -> None: ...

    def run(self, work: Any) -> None:
        """Run a coroutine as a task of the server."""
        ...


class HttpConnection(asyncio.Protocol):
    """Implements `router.http_server.cycle.CycleConnection` for its exchanges."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._wire: Wire | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._drained = asyncio.Event()
        self._reading = True
        self._deaf = False
        """Nothing the client sends is understood any more; what it is owed is still answered."""
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._expects_continue = False
        self._in_head = True
        """Whether incoming headers belong to a head; otherwise they are trailers, which are not asked for (RFC 9110,
        6.5.1)."""
        self._upgrading = False
        """The parser leaves a body behind an upgrade alone."""
        self._current: RequestResponseCycle | None = None
        self._latest: RequestResponseCycle | None = None
        self._pipeline: deque[RequestResponseCycle] = deque()
        self._last: Refusal | None = None
        """The refusal to send at the end, after all answers."""
        self.congested = False

    # ---- for the server ----

    def shutdown(self) -> None:
        """Close as soon as nothing is owed to the client."""
        if self._latest is not None:
            self._latest.close_after()
        if self._current is None:
            self._close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without the base class.
        self._transport = made = cast(asyncio.Transport, transport)
        connection = made.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if connection is not None and made.get_extra_info("ssl_object") is None:
            self._wire = Wire(connection.fileno(), made)
        self._limit(_HEAD_S)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        try:
            while data and not self._deaf:
                data = self._heard(data)
        except (httptools.HttpParserError, httptools.HttpParserInvalidURLError) as error:
            self._misunderstood(error)

    def pause_writing(self) -> None:
        self.congested = True
        self._drained.clear()

    def resume_writing(self) -> None:
        self.congested = False
        self._drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_limit()
        if self._timer is not None:
            self._timer.cancel()
        if self._wire is not None:
            self._wire.detach()
            self._wire = None
        self._transport = None
        self._drained.set()
        self._pipeline.clear()
        if self._current is not None:
            self._current.gone()
        self._owner.closed(self)

    # ---- router.http_server.cycle.CycleConnection ----

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def drained(self) -> None:
        await self._drained.wait()

    def read_on(self, on: bool) -> None:
        if on != self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = on
            if on:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def answered(self, exchange: RequestResponseCycle) -> None:
        self._current = None
        if self._pipeline and exchange.keep_alive:
            self._begin(self._pipeline.popleft())
        elif self._last is not None and exchange.keep_alive:
            self._last_words(self._last)
        elif not exchange.keep_alive or self._deaf:
            self._close()
        else:
            self._limit(_KEEP_ALIVE_S)
        self.read_on(True)

    # ---- httptools' callbacks ----

    def on_message_begin(self) -> None:
        if self._upgrading:
            return
        self._in_head = True
        self._url = b""
        self._headers = []
        self._head_bytes = 0
        self._expects_continue = False
        if self._current is None:
            self._limit(_HEAD_S)

    def on_url(self, url: bytes) -> None:
        if self._upgrading:
            return
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._upgrading:
            return
        name = name.lower()
        self._count(len(name) + len(value))
        if not self._in_head:
            return
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._upgrading:
            return
        self._in_head = False
        self._check_head()
        parser = self._parser
        self._upgrading = parser.should_upgrade()
        method, version = parser.get_method().decode("ascii"), parser.get_http_version()
        request = RequestHead(method, version, parser.should_keep_alive(), self._expects_continue)
        exchange = RequestResponseCycle(self, self._scope(method, version), request)
        wire = self._wire if version == "1.1" and method != "HEAD" else None
        exchange.scope["extensions"] = {CONNECTION_EXTENSION: Connection(self._cut, wire, exchange.respond)}
        self._latest = exchange
        if self._current is None:
            self._begin(exchange)
        else:
            self._pipeline.append(exchange)

    def on_body(self, body: bytes) -> None:
        if self._latest is not None:
            self._latest.feed(body)

    def on_message_complete(self) -> None:
        if self._latest is not None and not self._upgrading:
            self._latest.ended()

    # ---- inside ----

    def _heard(self, data: bytes) -> bytes:
        """Take what came; gives what is left of it behind a request that asked for an upgrade."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade()
            return data[upgrade.args[0] :]
        return b""

    def _decline_upgrade(self) -> None:
        """Serve the request as if it had not asked for an upgrade, because none is offered (RFC 9110, 7.8). Its
        parser takes what follows for another protocol, so a new parser gets the framing of the body and reads on.
        Only what follows a `CONNECT` is dropped."""
        parser, latest = self._parser, self._latest
        framing = [each for each in self._headers if each[0] in (b"content-length", b"transfer-encoding")]
        connects = parser.get_method() == b"CONNECT"
        if not connects and any(value.strip(b" \t0") for _, value in framing):
            version, stays = parser.get_http_version().encode(), parser.should_keep_alive()
            framing.append((b"connection", b"keep-alive" if stays else b"close"))
            self._parser = httptools.HttpRequestParser(self)
            lines = b"".join([b"%s: %s\r\n" % each for each in framing])
            self._parser.feed_data(b"POST / HTTP/%s\r\n%s\r\n" % (version, lines))
            self._upgrading = False
            return
        self._upgrading = False
        if latest is not None:
            latest.ended()
        if connects:
            self._hear_no_more()
        else:
            self._parser = httptools.HttpRequestParser(self)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _HEAD_BYTES_MAX:
            raise Refusal("bad_request", f"the head of a request has at most {_HEAD_BYTES_MAX} bytes")

    def _check_head(self) -> None:
        """Raises what is answered instead of this request, before the connection ends."""
        if len(self._pipeline) >= _PIPELINED_MAX:
            problem = f"at most {_PIPELINED_MAX} requests wait on a connection; send this one again on another"
            raise Refusal("too_many", problem)
        fault = head_fault(self._parser.get_http_version(), self._headers)
        if fault is not None:
            raise fault

    def _scope(self, method: str, version: str) -> Message:
        path, query = self._url, b""
        if not path.startswith(b"/") or b"?" in path or b"#" in path:
            parsed = httptools.parse_url(path)
            path, query = parsed.path or b"/", parsed.query or b""
        shown = unquote_to_bytes(path) if b"%" in path else path
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": method,
            "scheme": "http",
            "path": shown.decode("utf-8", "replace"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": self._headers,
        }

    def _begin(self, exchange: RequestResponseCycle) -> None:
        self._no_limit()
        self._current = exchange
        self._owner.run(self._answer(exchange))

    async def _answer(self, exchange: RequestResponseCycle) -> None:
        try:
            await self._owner.app(exchange.take_scope(), exchange.receive, exchange.send)
        except asyncio.CancelledError:
            # The server ends: the client sees a broken response, never one that looks whole.
            self.abort()
            raise
        except Exception:  # noqa: BLE001  (the edge: a fault in one request ends that request)
            _log.exception("http_application_failed")
            self._failed(exchange)
        else:
            if not exchange.complete:
                self._failed(exchange)

    def _failed(self, exchange: RequestResponseCycle) -> None:
        """The application is done and the response is not."""
        if exchange.disconnected:
            return
        if not exchange.started:
            self._last_words(Refusal("fault", "the router has a fault"))
        else:
            self.abort()

    def _misunderstood(self, error: Exception) -> None:
        """Refuse input that is not HTTP, or not of a kind that this server reads."""
        # Only a callback's own fault is ours; a parser's may come while another is being handled.
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
        broken = None if self._latest is None or self._latest.whole else self._latest
        problem = "this is no HTTP request" if broken is None else f"the body of the request cannot be read: {error}"
        refusal = Refusal("bad_request", problem)
        if isinstance(cause, Refusal):
            refusal = cause
        elif cause is not None and not isinstance(cause, httptools.HttpParserInvalidURLError):
            _log.error("http_callback_failed", exc_info=cause)
        self._deaf = True
        if broken is not None and broken is not self._current:
            self._pipeline.remove(broken)
        elif broken is not None and broken.started:
            self.abort()
            return
        elif broken is not None:
            # The application hears that nobody is left; what is said instead of its answer is said here.
            broken.gone()
            self._current = None
        if self._current is None:
            self._last_words(refusal)
        else:
            self._last = refusal

    def _hear_no_more(self) -> None:
        self._deaf = True
        if self._latest is not None:
            self._latest.close_after()

    def _last_words(self, refusal: Refusal) -> None:
        self.write(answer(refusal, self._owner.explain))
        self._close()

    def _close(self) -> None:
        """Close once everything is written. A client that has not read its last answer by the bound is cut off."""
        if self._transport is not None:
            self._transport.close()
            self._limit(_LAST_BYTES_S)

    def _cut(self) -> None:
        """Reset the connection: what the kernel still holds for a client that does not read is dropped as well."""
        if self._transport is None:
            return
        connection = self._transport.get_extra_info("socket")
        if connection is not None and not self._transport.is_closing():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def _limit(self, within_s: float) -> None:
        """Abort the connection unless the limit is lifted or replaced within the bound."""
        self._deadline = deadline = self._loop.time() + within_s
        if self._timer is None or deadline < self._timer.when():
            self._set_timer(deadline)

    def _no_limit(self) -> None:
        # The timer stays: setting and cancelling one for every request costs more than one that looks in vain.
        self._deadline = None

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._set_timer(self._deadline)
        else:
            self.abort()
