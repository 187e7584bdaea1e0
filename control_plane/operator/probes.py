"""A small HTTP server for probes and scrapes: `GET` of a few paths, one answer per connection."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tandem.core.errors import TandemError
from tandem.link.address import join_host, split_host
from tandem.process.listening import bound

_HEAD_MAX: Final = 8 << 10
_CLIENT_S: Final = 5.0
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_REASONS: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@dataclass(frozen=True)
class Page:
    """An answer."""

    status: int
    body: bytes


class ProbeServer:
    """`pages` gives the answer of each path at the time it is asked for."""

    def __init__(self, bind: str, pages: Mapping[str, Callable[[], Page]]) -> None:
        self._bind = bind
        self._pages = pages
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen; gives the address. Raises `bad_setting`."""
        host, port = split_host(self._bind)
        try:
            if port is None:
                raise OSError("expected host:port")
            self._server = await asyncio.start_server(self._serve, sock=bound(host, port), limit=_HEAD_MAX)
        except OSError as error:
            problem = f"bind = {self._bind!r}: cannot listen there: {error}"
            raise TandemError("bad_setting", problem, param="bind") from error
        name = self._server.sockets[0].getsockname()
        return join_host(name[0], name[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_CLIENT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, path = (*head.split(b"\r\n", 1)[0].decode("latin-1").split(" "), "", "")[:2]
                writer.write(_answer(self._page(method, path.partition("?")[0])))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def _page(self, method: str, path: str) -> Page:
        if method not in ("GET", "HEAD"):
            return Page(405, b"only GET\n")
        page = self._pages.get(path)
        return Page(404, f"there is nothing at {path}\n".encode()) if page is None else page()


def _answer(page: Page) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\ncontent-type: {_TEXT}\r\n"
        f"content-length: {len(page.body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + page.body
