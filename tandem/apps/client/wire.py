"""HTTP/1.1 answers and server-sent events, parsed from bytes as they arrive. No I/O.

A general HTTP client costs more per event than the server under test spends making it; this one does only what
a streaming completion needs.
"""

from dataclasses import dataclass
from typing import Final

_HEAD_MAX: Final = 64 * 1024
_LINE_MAX: Final = 8 * 1024


class BadResponse(Exception):
    """The bytes are not an HTTP/1.1 answer."""


@dataclass(frozen=True)
class Head:
    """Status line and the headers that matter. `length` is None for a chunked or until-close body."""

    status: int
    length: int | None
    chunked: bool
    keep_alive: bool


def split_head(received: bytes) -> tuple[Head, bytes] | None:
    """The head and what follows it, or None while it is incomplete. Raises `BadResponse`."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        if len(received) > _HEAD_MAX:
            raise BadResponse("the answer's head is too long")
        return None
    status_line, *lines = received[:end].split(b"\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    chunked = b"chunked" in headers.get(b"transfer-encoding", b"").lower()
    try:
        version, status = status_line.split(b" ", 2)[:2]
        length = int(headers[b"content-length"]) if b"content-length" in headers and not chunked else None
        head = Head(int(status), length, chunked, _keeps(version, headers) and (chunked or length is not None))
    except ValueError as error:
        raise BadResponse(f"not an HTTP answer: {status_line[:80]!r}") from error
    return head, received[end + 4 :]


def _keeps(version: bytes, headers: dict[bytes, bytes]) -> bool:
    return version == b"HTTP/1.1" and headers.get(b"connection", b"").lower() != b"close"


class Body:
    """Takes the bytes after the head and gives back those of the body; `ended` once it is complete."""

    def __init__(self, head: Head) -> None:
        self._chunked = head.chunked
        self._left = head.length
        self._pending = b""
        self._trailer = False
        self.ended = head.length == 0 and not head.chunked

    def feed(self, received: bytes) -> bytes:
        """The body bytes in `received`. Raises `BadResponse`."""
        if not self._chunked:
            return self._plain(received)
        out = []
        self._pending += received
        while not self.ended:
            piece = self._chunk()
            if piece is None:
                break
            out.append(piece)
        return b"".join(out)

    def _plain(self, received: bytes) -> bytes:
        if self._left is None:
            return received
        taken = received[: self._left]
        self._left -= len(taken)
        self.ended = self._left == 0
        return taken

    def _chunk(self) -> bytes | None:
        """The next whole chunk, or None when it has not arrived yet."""
        end = self._pending.find(b"\r\n")
        if end < 0:
            if len(self._pending) > _LINE_MAX:
                raise BadResponse("a chunk's size line is too long")
            return None
        if self._trailer:
            self._pending = self._pending[end + 2 :]
            self.ended = end == 0
            return b""
        try:
            size = int(self._pending[:end].partition(b";")[0], 16)
        except ValueError as error:
            raise BadResponse(f"not a chunk size: {self._pending[:end][:40]!r}") from error
        if size == 0:
            self._trailer = True
            self._pending = self._pending[end + 2 :]
            return b""
        if len(self._pending) < end + 2 + size + 2:
            return None
        piece = self._pending[end + 2 : end + 2 + size]
        self._pending = self._pending[end + 2 + size + 2 :]
        return piece


class Events:
    """Splits a `text/event-stream` into the data of its events; comments and other fields are dropped."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, received: bytes) -> list[bytes]:
        *lines, self._pending = (self._pending + received).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
