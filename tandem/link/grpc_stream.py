"""The two ends of a gRPC link share this: queues of encoded messages, and the pump between queue and stream."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import grpc.aio

from tandem.core.errors import TandemError
from tandem.link.queue import Inbox, LinkLimits

Out = TypeVar("Out")
In = TypeVar("In")
StateOut = TypeVar("StateOut")
StateIn = TypeVar("StateIn")

EOF: Final[object] = vars(grpc.aio)["EOF"]
"""The value that a read gives at the end of a stream; the published type stubs do not know it."""

END_FRAME: Final = b""
"""A frame without messages: the worker's last. Nothing else encodes to it."""


@dataclass(frozen=True)
class Stream:
    """One gRPC stream as the pump uses it.

    `read` gives bytes or `EOF`; `end_reason` says why it ended. `end` tells the peer that nothing more
    will be written: a client half-closes; a server sends `END_FRAME` and is over when its handler returns. It
    must wait for the client's half-close, because a client that sees the status loses what it has not yet read.
    """

    read: Callable[[], Awaitable[Any]]
    write: Callable[[bytes], Awaitable[Any]]
    end_reason: Callable[[], Awaitable[str]]
    end: Callable[[], Awaitable[None]]


class GrpcChannel(Generic[Out, In]):
    """`tandem.link.protocol.Channel`: messages are encoded when sent and joined into frames when written."""

    def __init__(
        self, encode: Callable[[Out], bytes], decode: Callable[[bytes], tuple[In, ...]], limits: LinkLimits
    ) -> None:
        self._encode = encode
        self._decode = decode
        self._limits = limits
        self._outbox: deque[bytes] = deque()
        self._out_bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self.inbox: Inbox[In] = Inbox()
        self.sending = True
        self.on_overflow: Callable[[], None] | None = None

    def send(self, message: Out) -> None:
        if not self.sending:
            return
        encoded = self._encode(message)
        self._outbox.append(encoded)
        self._out_bytes += len(encoded)
        over = len(self._outbox) > self._limits.queue_messages or self._out_bytes > self._limits.queue_bytes
        if over and self.on_overflow is not None:
            self.on_overflow()
        self.wake()

    async def receive(self) -> tuple[In, ...]:
        return await self.inbox.get()

    def take(self) -> bytes | None:
        """The next frame, up to `frame_bytes` unless one message is longer; None when the queue is empty."""
        if not self._outbox:
            return None
        parts = [self._outbox.popleft()]
        size = len(parts[0])
        while self._outbox and size + len(self._outbox[0]) <= self._limits.frame_bytes:
            parts.append(self._outbox.popleft())
            size += len(parts[-1])
        self._out_bytes -= size
        return b"".join(parts) if len(parts) > 1 else parts[0]

    def deliver(self, frame: bytes) -> None:
        """Decode a received frame. Raises `link_lost` for one that is none."""
        self.inbox.put(self._decode(frame))

    def stop_sending(self, *, drop: bool) -> None:
        self.sending = False
        if drop:
            self._outbox.clear()
            self._out_bytes = 0
        self.wake()

    def wake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def outgoing(self) -> None:
        """Wait until there is something to write or sending has stopped."""
        while not self._outbox and self.sending:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake


class GrpcLink(Generic[Out, In, StateOut, StateIn]):
    """Either end of a link: two channels with one fate."""

    def __init__(
        self, peer: str, tokens: GrpcChannel[Out, In], state: GrpcChannel[StateOut, StateIn], limits: LinkLimits
    ) -> None:
        self.peer = peer
        self.tokens = tokens
        self.state = state
        self.limits = limits
        self.reason = ""
        self._scopes: list[asyncio.Timeout] = []
        for channel in (tokens, state):
            channel.on_overflow = self._overflow

    def close(self, reason: str) -> None:
        """End the link from this side: what was sent is still written within `flush_s`."""
        self._end(reason, drop_inbox=True, drop_outbox=False, within_s=self.limits.flush_s)

    def lost(self, reason: str) -> None:
        """The connection is gone: nothing can be written, what was received can still be read."""
        self._end(reason, drop_inbox=False, drop_outbox=True, within_s=0.0)

    def _overflow(self) -> None:
        self._end("the peer does not read: the outbound queue is full", True, True, 0.0)

    def _end(self, reason: str, drop_inbox: bool, drop_outbox: bool, within_s: float) -> None:
        self.reason = self.reason or reason
        for channel in (self.tokens, self.state):
            channel.stop_sending(drop=drop_outbox)
            channel.inbox.end(self.reason, drop=drop_inbox)
        self._hurry(within_s)

    def _peer_closes(self, channel: GrpcChannel[Any, Any]) -> None:
        """The peer has said its last words on a stream and waits for our end of it. The other stream may still hold
        messages: it gets a moment, and is ended by its own last words, since ending it here would lose them."""
        channel.stop_sending(drop=True)
        self._hurry(self.limits.flush_s)

    def _peer_ended(self, channel: GrpcChannel[Any, Any], reason: str) -> None:
        """One stream was read to its end."""
        self.reason = self.reason or reason
        channel.inbox.end(self.reason, drop=False)
        self._peer_closes(channel)

    def _hurry(self, within_s: float) -> None:
        for scope in self._scopes:
            if not scope.expired():
                now = asyncio.get_running_loop().time()
                scope.reschedule(min(scope.when() or now + within_s, now + within_s))

    async def pump(self, channel: GrpcChannel[Any, Any], stream: "Stream") -> None:
        """Carry one stream until the link has ended and, if it ended from here, what was sent is written."""
        try:
            async with asyncio.timeout(None) as scope:
                self._scopes.append(scope)
                try:
                    await self._carry(channel, stream)
                finally:
                    self._scopes.remove(scope)
        except TimeoutError:
            self.lost("the link was closed")
        except asyncio.CancelledError:
            self.lost(f"the connection to {self.peer} ended")
            raise

    async def _carry(self, channel: GrpcChannel[Any, Any], stream: "Stream") -> None:
        if self.reason:
            self._hurry(self.limits.flush_s)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_all(channel, stream))
            await self._write_all(channel, stream)

    async def _write_all(self, channel: GrpcChannel[Any, Any], stream: "Stream") -> None:
        try:
            await channel.outgoing()
            while (frame := channel.take()) is not None:
                await stream.write(frame)
                await channel.outgoing()
            await stream.end()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self.lost(f"writing to {self.peer} failed: {_why(error)}")

    async def _read_all(self, channel: GrpcChannel[Any, Any], stream: "Stream") -> None:
        try:
            while (frame := await stream.read()) is not EOF:
                if frame == END_FRAME:
                    self._peer_closes(channel)
                channel.deliver(frame)
                await channel.inbox.room(self.limits.inbox_frames)
            self._peer_ended(channel, await stream.end_reason())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self.lost(f"the connection to {self.peer} broke: {_why(error)}")
        except TandemError as error:
            self.lost(f"{self.peer} sent a frame that is none: {error}")


def _why(error: BaseException) -> str:
    return (error.details() or str(error.code())) if isinstance(error, grpc.aio.AioRpcError) else str(error)
