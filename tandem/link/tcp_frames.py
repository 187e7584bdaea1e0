"""Frames on a byte stream: split what arrives into frames, and encode the greeting that comes first.

A frame is its length as a little-endian uint32, one byte for its kind, and that many bytes:

    MESSAGES   messages one after another (`tandem.link.messages`); everything one turn of the event loop
               sent, up to `LinkLimits.frame_bytes` unless a single message is longer
    END        the sender's last frame: why the link ends, UTF-8
    GREETING   the first frame to the worker: `Greeting`, MessagePack
    CHALLENGE  before WELCOME, where there is a key: `Challenge`, MessagePack
    ANSWER     the router's answer to the challenge: `Answer`, MessagePack
    WELCOME    the last frame to the router before the link is open: `Welcome`, MessagePack

Frames of other kinds are skipped. Until the greetings are over a frame is short, so a connection that is no link at
all (a browser, a port scanner, TLS where plain text is expected) shows in its first bytes. Pure; nothing here waits.
"""

from struct import Struct
from typing import Final, Literal, TypeVar

import msgspec

from tandem.core.errors import TandemError

MESSAGES: Final = 0
END: Final = 1
GREETING: Final = 2
WELCOME: Final = 3
CHALLENGE: Final = 4
ANSWER: Final = 5

GREETING_BYTES_MAX: Final = 4096
FRAME_BYTES_MAX: Final = 64 << 20
"""The most bytes in a frame once the link is open. Memory is taken as bytes arrive, not as a length promises them."""

_HEAD: Final = Struct("<IB")

Streams = Literal["tokens", "state"]


class Greeting(msgspec.Struct, frozen=True):
    """The first message of a router on each of a link's two connections; `link` tells which belong together. `nonce`
    is empty where the router has no key (`tandem.link.proof`)."""

    protocol: int
    link: str
    stream: Streams
    router: str
    nonce: bytes = b""


class Challenge(msgspec.Struct, frozen=True):
    """The message of a worker that has a key: proves that it holds the key and asks for the router's proof."""

    nonce: bytes
    proof: bytes


class Answer(msgspec.Struct, frozen=True):
    """The router's proof."""

    proof: bytes


class Welcome(msgspec.Struct, frozen=True):
    """The worker's answer once both connections are there; `refused` is the reason if the worker takes no link."""

    protocol: int
    refused: str | None = None


G = TypeVar("G", Greeting, Challenge, Answer, Welcome)
_KINDS: Final[dict[type[msgspec.Struct], int]] = {
    Greeting: GREETING, Challenge: CHALLENGE, Answer: ANSWER, Welcome: WELCOME
}  # fmt: skip


def pack_frame(kind: int, *parts: bytes) -> bytes:
    """One frame of these parts in a row."""
    return b"".join((_HEAD.pack(sum(map(len, parts)), kind), *parts))


def pack_greeting(greeting: Greeting | Challenge | Answer | Welcome) -> bytes:
    """A frame of a connection that is not open yet."""
    return pack_frame(_KINDS[type(greeting)], msgspec.msgpack.encode(greeting))


def read_greeting(kind: type[G], frame_kind: int, body: memoryview) -> G:
    """Raises `link_lost` for a frame of another kind than is expected."""
    if frame_kind != _KINDS[kind]:
        raise TandemError("link_lost", f"a frame of kind {frame_kind} is no {kind.__name__.lower()}")
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TandemError("link_lost", f"the greeting cannot be read: {error}") from None


class FrameCutter:
    """Cuts the bytes that arrive into frames, and holds those that are not yet a whole frame."""

    def __init__(self) -> None:
        self.bytes_max = GREETING_BYTES_MAX
        self._parts: list[bytes] = []
        self._gathered = 0
        self._needed = _HEAD.size
        self._data = b""
        self._at = 0

    def feed(self, data: bytes) -> None:
        """More bytes. Take every frame they complete with `next` before the next bytes are fed."""
        self._parts.append(data)
        self._gathered += len(data)
        if self._gathered >= self._needed:
            self._data = data if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()

    def next(self) -> tuple[int, memoryview] | None:
        """Kind and bytes of the next whole frame, or None until more bytes are fed.

        Raises `link_lost` for a frame that would be longer than `bytes_max`.
        """
        left = len(self._data) - self._at
        if self._parts or left < _HEAD.size:
            self._wait_for(_HEAD.size)
            return None
        size, kind = _HEAD.unpack_from(self._data, self._at)
        if size > self.bytes_max:
            raise TandemError("link_lost", f"a frame of {size} bytes, where {self.bytes_max} are the most")
        if left < _HEAD.size + size:
            self._wait_for(_HEAD.size + size)
            return None
        start = self._at + _HEAD.size
        self._at = start + size
        return kind, memoryview(self._data)[start : self._at]

    def _wait_for(self, needed: int) -> None:
        if not self._parts:
            rest = self._data[self._at :]
            self._parts = [rest] if rest else []
            self._gathered = len(rest)
            self._needed = needed
            self._data, self._at = b"", 0
