"""A lean asyncio client: HTTP/1.1 over raw streams with kept connections, one event loop, many requests."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from tandem.apps.client.wire import BadResponse, Body, Head, split_head
from tandem.core.errors import TandemError
from tandem.link.address import join_host

_READ_BYTES: Final = 64 * 1024
WHOLE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of an answer that is read as a whole."""
_IDLE_S: Final = 2.0
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True)
class Target:
    """The server that requests go to. `base` is the path before `/v1`, without a trailing slash."""

    host: str
    port: int
    tls: bool
    base: str
    key: str = ""

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        return join_host(self.host, self.port)


def parse_target(url: str, key: str = "") -> Target:
    """A target from `http://host:port[/base]`, with or without `/v1` at its end. Raises `bad_setting`."""
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or not port:
        raise TandemError("bad_setting", f"--url: {url!r} is not an http:// or https:// URL")
    base = parts.path.rstrip("/").removesuffix("/v1")
    return Target(parts.hostname, port, parts.scheme == "https", base, key)


class Response:
    """An answer whose head has arrived."""

    def __init__(self, head: Head, rest: bytes, reader: asyncio.StreamReader) -> None:
        self.status = head.status
        self.retry_after_s = head.retry_after_s
        self._body = Body(head)
        self._until_close = head.length is None and not head.chunked
        self._rest = rest
        self._reader = reader

    @property
    def complete(self) -> bool:
        return self._body.ended

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises `ConnectionError` when it breaks off, `BadResponse`."""
        received, self._rest = self._rest, b""
        while True:
            if received:
                yield self._body.feed(received)
            if self._body.ended:
                return
            received = await self._reader.read(_READ_BYTES)
            if not received and self._until_close:
                return
            if not received:
                raise ConnectionResetError("the answer broke off")

    async def read(self) -> bytes:
        """The whole body. Raises what `pieces` raises, and `BadResponse` for more than `WHOLE_BYTES_MAX` bytes."""
        whole = bytearray()
        async for piece in self.pieces():
            whole += piece
            if len(whole) > WHOLE_BYTES_MAX:
                raise BadResponse(f"the answer is longer than {WHOLE_BYTES_MAX} bytes")
        return bytes(whole)


class Client:
    """Opens connections as needed and keeps those whose answers were read to the end."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._tls = ssl.create_default_context() if target.tls else None
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def exchange(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = _NO_HEADERS
    ) -> "PendingResponse":
        """Send a request; use the result as a context manager around reading the answer. Raises `OSError`."""
        reader, writer = self._kept() or await self._connect()
        exchange = PendingResponse(self, reader, writer)
        writer.write(self._request(method, path, body, headers))
        return exchange

    def _kept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """The connection used last, unless it is about to be closed by the server for idleness."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            since, reader, writer = self._idle.pop()
            if now - since < _IDLE_S and not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._target.host, self._target.port
        return await asyncio.open_connection(host, port, ssl=self._tls, limit=4 * _READ_BYTES)

    def _request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        head = [
            f"{method} {self._target.base}{path} HTTP/1.1",
            f"Host: {self._target.authority}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        if self._target.key:
            head.append(f"Authorization: Bearer {self._target.key}")
        return "\r\n".join([*head, "", ""]).encode() + body

    def keep(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take back a connection whose last answer was read to its end."""
        self._idle.append((asyncio.get_running_loop().time(), reader, writer))

    async def aclose(self) -> None:
        """Close the kept connections."""
        writers = [writer for _, _, writer in self._idle]
        self._idle.clear()
        for writer in writers:
            writer.close()
        for writer in writers:
            with suppress(OSError):
                await writer.wait_closed()


class PendingResponse:
    """One request on one connection. Leaving it early closes the connection, which cancels the request."""

    def __init__(self, client: Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._client = client
        self._reader = reader
        self._writer = writer
        self._reusable = False
        self._answer: Response | None = None

    async def __aenter__(self) -> Response:
        try:
            return await self._head()
        except BaseException:
            self._writer.close()
            raise

    async def _head(self) -> Response:
        received = b""
        while True:
            more = await self._reader.read(_READ_BYTES)
            if not more:
                raise ConnectionResetError("the server closed the connection without an answer")
            received += more
            found = split_head(received)
            if found is not None:
                head, rest = found
                self._reusable = head.keep_alive
                self._answer = Response(head, rest, self._reader)
                return self._answer

    async def __aexit__(self, *raised: object) -> None:
        if self._reusable and self._answer is not None and self._answer.complete and raised[0] is None:
            self._client.keep(self._reader, self._writer)
        else:
            self._writer.close()
