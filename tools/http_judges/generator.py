"""Bytes of HTTP/1.1 connections, drawn by a seed: requests that are right, with faults of every kind in places."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_METHODS: Final = (b"GET", b"HEAD", b"PUT", b"OPTIONS", b"DELETE", b"get", b"G T", b"", b"BREW", b"M-SEARCH")
_TARGETS: Final = (
    b"/a?b=c",
    b"/%C3%A9",
    b"http://x/a",
    b"http://x:80/a?b",
    b"HTTP://x/a",
    b"//x/a",
    b"a",
    b"*",
    b"",
    b"/a b",
    b"/a\tb",
    b"/a#f",
    b"/\x00",
    b"/\xc3\xa9",
    b"/%zz",
    b"http://[::1/a",
    b"http://u@x/a",
    b"ftp://x/a",
)
_VERSIONS: Final = (
    b"HTTP/1.0",
    b"HTTP/1.0",
    b"HTTP/1.2",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"http/1.1",
    b"HTTP/1.10",
    b"HTTP/1",
    b"HTTP/1.1 ",
    b"",
)
_HOSTS: Final = (
    (),
    (b"Host: x", b"Host: x"),
    (b"Host: x", b"Host: y"),
    (b"Host: x, y",),
    (b"Host:",),
    (b"Host: x:80",),
    (b"Host: a b",),
    (b"Host: x/y",),
    (b"Host : x",),
)
_LENGTHS: Final = (
    b"+4",
    b"-4",
    b"0x4",
    b"4 4",
    b"4, 4",
    b"4,5",
    b"04",
    b"4;",
    b"",
    b"4\t",
    b" 4",
    b"18446744073709551620",
    b"99999999999999999999999",
    b"\xb2",
    b"4_0",
    b"5",
    b"3",
    b"0",
)
_CODINGS: Final = (
    b"Chunked",
    b"chunked, chunked",
    b"gzip, chunked",
    b"chunked, gzip",
    b"identity",
    b"gzip",
    b"xchunked",
    b"chunked;q=1",
    b"\x0bchunked",
    b"chunked,",
    b", chunked",
    b"",
    b'"chunked"',
    b"identity, chunked",
)
_HEADERS: Final = (
    b"Name : value",
    b" folded: first",
    b"Name: a\r\n folded",
    b"Name: a\r\n\tfolded",
    b"Content-Length\r\n : 4",
    b"No colon",
    b": no name",
    b"Na me: value",
    b"Name: a\x00b",
    b"Name: a\rb",
    b"Name: a\x7f",
    b"Name: \xc3\xa9",
    b"N\xc3\xa9: value",
    b"Name:",
    b"Name:\t value \t",
    b"Name: a\nOther: b",
    b"(Name): value",
    b"_: value",
    b"Content_Length: 9",
    b"Transfer_Encoding: chunked",
    b"Expect: 100-continue",
    b"Expect: 100-CONTINUE",
    b"Expect: 200-ok",
    b"Expect: 100-continue, x",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: x, close",
    b"Connection: CLOSE , x",
    b"Connection: keep-alive, close",
    b"Connection: content-length",
    b"Connection: transfer-encoding, host",
    b"Connection: x\r\nConnection: close",
    b"Connection: closed",
    b"Proxy-Connection: close",
    b"Keep-Alive: timeout=1",
    b"Upgrade: h2c\r\nConnection: Upgrade",
    b"Upgrade: websocket\r\nConnection: keep-alive, upgrade",
    b"Upgrade: h2c",
    b"Trailer: x",
    b"TE: trailers",
    b"Content-Encoding: gzip",
    b"X-HTTP-Method-Override: DELETE",
)
_SIZES: Final = (
    b"4;a=b",
    b'4;a="b;c"',
    b"4 ;a",
    b"4; a = b",
    b"4;a\nb",
    b"4;a\rb",
    b"04",
    b"0000000000000000004",
    b"4 ",
    b" 4",
    b"0x4",
    b"+4",
    b"-4",
    b"4_",
    b"",
    b"g",
    b"ffffffffffffffff",
    b"10000000000000004",
    b"5",
    b"3",
    b"4\n",
    b"4;" + b"e" * 300,
)
_TRAILERS: Final = (
    b"X: y\r\n",
    b"Content-Length: 9\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Host: other\r\n",
    b"X : y\r\n",
    b"X: y\r\n z\r\n",
    b"no colon\r\n",
    b"X: y\n",
    b"X: \x00\r\n",
    b"X: " + b"y" * 300 + b"\r\n",
)
_JUNK: Final = (
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b" ",
    b"\x00",
    b"\xef\xbb\xbf",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01",
)
_BODY: Final = b"GET "
"""A body that reads as the beginning of a request where somebody takes its end for another place."""

FAULTS: Final = (
    "method",
    "target",
    "version",
    "host",
    "length",
    "lengths",
    "coding",
    "codings",
    "both",
    "header",
    "headers",
    "size",
    "trailer",
    "data end",
    "line feed",
    "junk",
    "many",
    "cut",
)


@dataclass(frozen=True)
class Case:
    """What one client sends, and the faults that were put in."""

    name: str
    data: bytes
    faults: tuple[str, ...]


@dataclass
class _Request:
    """A request in parts, before it is put together."""

    method: bytes = b"POST"
    target: bytes = b"/a"
    version: bytes = b"HTTP/1.1"
    hosts: Sequence[bytes] = (b"Host: x",)
    framing: Sequence[bytes] = (b"Content-Length: 4",)
    headers: Sequence[bytes] = ()
    chunked: bool = False
    size: bytes = b"4"
    trailer: bytes = b""
    data_end: bytes = b"\r\n"
    line_feed: int | None = None
    """Which line of the head ends in a bare line feed."""

    def bytes(self) -> bytes:
        lines = [b" ".join((self.method, self.target, self.version)).rstrip(b" " if not self.version else b"")]
        lines += [*self.hosts, *self.headers, *self.framing, b""]
        ends = [b"\r\n"] * len(lines)
        if self.line_feed is not None:
            ends[self.line_feed % len(ends)] = b"\n"
        head = b"".join(line + end for line, end in zip(lines, ends, strict=True))
        if self.chunked:
            return head + self.size + b"\r\n" + _BODY + self.data_end + b"0\r\n" + self.trailer + b"\r\n"
        return head + (_BODY if self.framing else b"")


def cases(seed: int, count: int) -> list[Case]:
    """So many connections; the same seed gives the same ones."""
    return [_case(seed, number) for number in range(count)]


def _case(seed: int, number: int) -> Case:
    draw = random.Random(seed * 1_000_003 + number)
    faults = tuple(draw.sample(FAULTS, draw.choice((0, 1, 1, 1, 1, 2, 2, 3))))
    request = _sound(draw)
    for fault in faults:
        _spoil(request, fault, draw)
    data = request.bytes()
    before, after = _neighbours(draw)
    if "junk" in faults:
        junk = draw.choice(_JUNK)
        data = junk + data if draw.random() < 0.6 else data + junk
    if "cut" in faults:
        data, after = data[: draw.randrange(1, len(data))], b""
    return Case(f"{seed}:{number}", before + data + after, faults)


def _sound(draw: random.Random) -> _Request:
    form = draw.choice(("length", "chunked", "chunked", "none"))
    if form == "length":
        return _Request()
    if form == "chunked":
        return _Request(framing=(b"Transfer-Encoding: chunked",), chunked=True)
    return _Request(method=b"GET", framing=())


def _neighbours(draw: random.Random) -> tuple[bytes, bytes]:
    """Requests on the same connection before and after: an answer to the second tells where the first was cut off."""
    first = _Request(method=b"PUT").bytes() if draw.random() < 0.2 else b""
    return first, _Request(method=b"DELETE", framing=()).bytes() if draw.random() < 0.7 else b""


def _spoil(request: _Request, fault: str, draw: random.Random) -> None:
    pick = draw.choice
    if fault == "method":
        request.method = pick(_METHODS)
    elif fault == "target":
        request.target = pick(_TARGETS)
    elif fault == "version":
        request.version = pick(_VERSIONS)
    elif fault == "host":
        request.hosts = pick(_HOSTS)
    elif fault in ("length", "lengths", "coding", "codings", "both"):
        _spoil_framing(request, fault, draw)
    elif fault == "header":
        request.headers = (*request.headers, pick(_HEADERS))
    elif fault == "headers":
        request.headers = (*request.headers, *draw.sample(_HEADERS, 2))
    elif fault == "size":
        request.size = pick(_SIZES)
    elif fault == "trailer":
        request.trailer = pick(_TRAILERS)
    elif fault == "data end":
        request.data_end = pick((b"", b"\n", b"\r", b"x\r\n", b"\r\r\n"))
    elif fault == "line feed":
        request.line_feed = draw.randrange(6)
    elif fault == "many":
        count, length = pick(((90, 10), (300, 10), (3, 3_000), (1, 20_000), (1, 70_000), (3_000, 10)))
        request.headers = (*request.headers, *(b"X-%d: " % each + b"y" * length for each in range(count)))


def _spoil_framing(request: _Request, fault: str, draw: random.Random) -> None:
    length, coding = b"Content-Length: 4", b"Transfer-Encoding: chunked"
    if fault == "length":
        request.framing = (b"Content-Length: " + draw.choice(_LENGTHS),)
    elif fault == "lengths":
        request.framing = (length, b"Content-Length: " + draw.choice((b"4", *_LENGTHS)))
    elif fault == "coding":
        request.framing = (b"Transfer-Encoding: " + draw.choice(_CODINGS),)
    elif fault == "codings":
        request.framing = (coding, b"Transfer-Encoding: " + draw.choice((b"chunked", *_CODINGS)))
    else:
        request.framing = draw.choice(((length, coding), (coding, length), (b"Content-Length: 0", coding)))
