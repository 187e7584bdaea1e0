"""The messages between the nodes of one worker, and the TCP connection that carries them.

vLLM's ranks have connections of their own, on which they wait for each other without a bound: a rank whose leader is
gone waits for ever, and a leader without work does not notice that a rank is gone. This connection makes such a loss
known. A message is a line of JSON.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

BEAT_S: Final = 1.0
LOST_S: Final = 20.0
"""Seconds of silence after which the other end is lost. Loading a model keeps a process from its event loop for
seconds."""
_LINE_BYTES_MAX: Final = 1 << 16


class Join(msgspec.Struct, frozen=True, tag=True):
    """The first message of a follower: its node's rank, and the facts that must be the same on all nodes."""

    rank: int
    facts: Mapping[str, str]


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The leader's message once all nodes are there: start your ranks, which find each other at this port of the
    leader."""

    store_port: int


class Over(msgspec.Struct, frozen=True, tag=True):
    """The sender ends; an empty `why` is an orderly end."""

    why: str


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The sender is there."""


Message = Join | Begin | Over | Beat

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Message).decode


class Wire(asyncio.Protocol):
    """One end of a connection between nodes. `on_message` gets every message except beats. `on_lost` is called once
    with the reason why the other end is gone, unless this end has closed the connection."""

    def __init__(self, on_message: Callable[["Wire", Message], None], on_lost: Callable[["Wire", str], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self._unread = b""
        self.peer = ""
        """The address of the other end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._heard = self._loop.time()
        self.peer = str((transport.get_extra_info("peername") or ("somewhere",))[0])
        self._beat()

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        *lines, self._unread = (self._unread + data).split(b"\n")
        if len(self._unread) > _LINE_BYTES_MAX:
            self._lose("said something that is too long")
            return
        for line in lines:
            try:
                message = _decode(line)
            except msgspec.DecodeError as error:
                self._lose(f"said something that cannot be understood: {error}")
                return
            if self._transport is not None and not isinstance(message, Beat):
                self._on_message(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("hung up" if exc is None else f"is gone: {exc}")

    def tell(self, message: Message) -> None:
        if self._transport is not None:
            self._transport.write(_encode(message) + b"\n")

    def close(self) -> None:
        """Close the connection once the messages sent so far are on their way. Idempotent."""
        transport, self._transport = self._transport, None
        if self._timer is not None:
            self._timer.cancel()
        if transport is not None:
            transport.close()

    def _beat(self) -> None:
        silent_s = self._loop.time() - self._heard
        if silent_s > LOST_S:
            self._lose(f"was silent for {silent_s:.0f} s")
            return
        self.tell(Beat())
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _lose(self, why: str) -> None:
        if self._transport is not None:
            self.close()
            self._on_lost(self, why)
