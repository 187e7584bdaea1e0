"""HTTP/1.1 answers, parsed from bytes as they arrive. No I/O.

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
    """Status line and the headers that matter. `length` is None for a chunked or until-close body; `retry_after_s` is
    None unless the server names seconds to wait."""

    status: int
    length: int | None
    chunked: bool
    keep_alive: bool
    retry_after_s: int | None = None


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
        kept = _keeps(version, headers) and (chunked or length is not None)
        wait = headers.get(b"retry-after", b"")
        head = Head(int(status), length, chunked, kept, int(wait) if wait.isdigit() else None)
    except ValueError as error:
        raise BadResponse(f"not an HTTP answer: {status_line[:80]!r}") from error
    return head, received[end + 4 :]


def _keeps(version: bytes, headers: dict[bytes, bytes]) -> bool:
    return version == b"HTTP/1.1" and headers.get(b"connection", b"").lower() != b"close"


class Body:
    """Takes the bytes after the head and gives back those of the body; `ended` once it is complete.

    Holds back no more than an unfinished line between two chunks.
    """

    def __init__(self, head: Head) -> None:
        self._chunked = head.chunked
        self._left = head.length if not head.chunked else 0
        """Bytes missing of the body, or of the chunk; None for a body until the connection closes."""
        self._pending = b""
        self._closing = False
        """Whether the line after a chunk's bytes is next."""
        self._trailer = False
        self.ended = head.length == 0 and not head.chunked

    def feed(self, received: bytes) -> bytes:
        """The body bytes in `received`. Raises `BadResponse`."""
        return self._dechunk(self._pending + received) if self._chunked else self._plain(received)

    def _plain(self, received: bytes) -> bytes:
        if self._left is None:
            return received
        taken = received[: self._left]
        self._left -= len(taken)
        self.ended = self._left == 0
        return taken

    def _dechunk(self, received: bytes) -> bytes:
        out, at = [], 0
        while not self.ended and at < len(received):
            if self._left:
                out.append(received[at : at + self._left])
                at += len(out[-1])
                self._left -= len(out[-1])
            elif (end := received.find(b"\r\n", at)) >= 0:
                self._line(received[at:end])
                at = end + 2
            else:
                break
        self._pending = b"" if self.ended else received[at:]
        if len(self._pending) > _LINE_MAX:
            raise BadResponse("a chunk's size line is too long")
        return b"".join(out)

    def _line(self, line: bytes) -> None:
        """A line between chunks: the end of one, the size of the next, or one of the trailer."""
        if self._trailer:
            self.ended = not line
        elif self._closing:
            if line:
                raise BadResponse(f"a chunk is longer than its size: {line[:40]!r}")
            self._closing = False
        else:
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                size = -1
            if size < 0:
                raise BadResponse(f"not a chunk size: {line[:40]!r}")
            self._left, self._closing, self._trailer = size, size > 0, size == 0
