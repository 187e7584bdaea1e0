"""The two ends of a TCP link share this: channels of messages over connections, and the fate they have in common."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from tandem.link.queue import Inbox, LinkLimits
from tandem.link.tcp_frames import END, MESSAGES, pack_frame
from tandem.link.tcp_stream import TcpStream

Out = TypeVar("Out")
In = TypeVar("In")
StateOut = TypeVar("StateOut")
StateIn = TypeVar("StateIn")


class ChannelOwner(Protocol):
    """The notifications that a channel gives its link."""

    def overflowed(self) -> None:
        """More is queued than the bounds allow."""
        ...

    def peer_ended(self, channel: "TcpChannel[Any, Any]", reason: str) -> None:
        """The peer has sent its last message on this channel."""
        ...

    def stream_ended(self, channel: "TcpChannel[Any, Any]", reason: str) -> None:
        """The channel's connection is gone."""
        ...


class TcpChannel(Generic[Out, In]):
    """`tandem.link.protocol.Channel`: messages are encoded when sent and written as a frame when the turn of the loop
    ends. While the connection is congested they wait here, within the bounds."""

    def __init__(
        self,
        stream: TcpStream,
        encode: Callable[[Out], bytes],
        decode: Callable[[memoryview], tuple[In, ...]],
        limits: LinkLimits,
    ) -> None:
        self._encode = encode
        self._decode = decode
        self._limits = limits
        self._later = asyncio.get_running_loop().call_soon
        self._outbox: deque[bytes] = deque()
        self._out_bytes = 0
        self._flush_due = False
        self._last_frame: bytes | None = None
        self._sending = True
        self._reading = True
        self._paused = False
        self.stream = stream
        self.inbox: Inbox[In] = Inbox()
        self.owner: ChannelOwner | None = None

    # ---- tandem.link.protocol.Channel ----

    def send(self, message: Out) -> None:
        if not self._sending:
            return
        encoded = self._encode(message)
        self._outbox.append(encoded)
        self._out_bytes += len(encoded)
        if len(self._outbox) > self._limits.queue_messages or self._out_bytes > self._limits.queue_bytes:
            assert self.owner is not None
            self.owner.overflowed()
        elif not self._flush_due:
            self._flush_due = True
            self._later(self._flush)

    async def receive(self) -> tuple[In, ...]:
        frame = await self.inbox.get()
        if self._paused and len(self.inbox) < self._limits.inbox_frames:
            self._paused = False
            self.stream.resume()
        return frame

    # ---- for the link ----

    def say_end(self, reason: str) -> None:
        """Send nothing after what was sent but that it ends, and read on only to drop it."""
        if self._sending:
            self._sending = False
            self._reading = False
            self._last_frame = pack_frame(END, reason.encode())
            self.stream.resume()
            self._flush()

    def stop_sending(self) -> None:
        """Drop what was not written, and whatever would be sent."""
        self._sending = False
        self._outbox.clear()
        self._out_bytes = 0
        self._last_frame = None

    # ---- tandem.link.tcp_stream.StreamOwner ----

    def took(self, kind: int, body: memoryview) -> None:
        if kind == MESSAGES:
            if self._reading:
                self.inbox.put(self._decode(body))
                self._pause_when_full()
        elif kind == END:
            assert self.owner is not None
            self.owner.peer_ended(self, str(body, "utf-8", "replace"))

    def writable(self) -> None:
        self._flush()

    def ended(self, reason: str) -> None:
        self.stop_sending()
        assert self.owner is not None
        self.owner.stream_ended(self, reason)

    # ---- inside ----

    def _pause_when_full(self) -> None:
        if len(self.inbox) >= self._limits.inbox_frames and not self._paused:
            self._paused = True
            self.stream.pause()

    def _flush(self) -> None:
        self._flush_due = False
        stream = self.stream
        while self._outbox and not stream.congested:
            stream.write(self._next_frame())
        if self._last_frame is not None and not self._outbox:
            stream.write(self._last_frame)
            self._last_frame = None

    def _next_frame(self) -> bytes:
        """Up to `frame_bytes` of what is queued, unless one message is longer."""
        outbox = self._outbox
        if self._out_bytes <= self._limits.frame_bytes:
            frame = pack_frame(MESSAGES, *outbox)
            outbox.clear()
            self._out_bytes = 0
            return frame
        parts = [outbox.popleft()]
        size = len(parts[0])
        while outbox and size + len(outbox[0]) <= self._limits.frame_bytes:
            parts.append(outbox.popleft())
            size += len(parts[-1])
        self._out_bytes -= size
        return pack_frame(MESSAGES, *parts)


class TcpLink(Generic[Out, In, StateOut, StateIn]):
    """Either end of a link: two channels with one fate.

    An end that closes writes what was sent, then `END`, and reads on until the peer has closed the connections: to
    close with something unread would reset them, and what was sent could be lost on its way.
    """

    def __init__(
        self, peer: str, tokens: TcpChannel[Out, In], state: TcpChannel[StateOut, StateIn], limits: LinkLimits
    ) -> None:
        self.peer = peer
        self.tokens = tokens
        self.state = state
        self.reason = ""
        self._limits = limits
        self._channels: tuple[TcpChannel[Any, Any], ...] = (tokens, state)
        self._connected = len(self._channels)
        self._closed_here = False
        self._timer: asyncio.TimerHandle | None = None
        self.over = asyncio.Event()
        """Set once both connections have ended."""
        for channel in self._channels:
            channel.owner = self

    def close(self, reason: str) -> None:
        """End the link from this side: what was sent is still written within `flush_s`."""
        ending = bool(self.reason)
        self.reason = self.reason or reason
        for channel in self._channels:
            channel.inbox.end(self.reason, drop=True)
        if ending and not self._closed_here:
            self._abort()
        elif not ending:
            self._closed_here = True
            for channel in self._channels:
                channel.say_end(reason)
            self._give_up_later()

    def lost(self, reason: str) -> None:
        """The connection is gone: nothing can be written, what was received can still be read."""
        self.reason = self.reason or reason
        for channel in self._channels:
            channel.inbox.end(self.reason, drop=False)
        self._abort()

    # ---- ChannelOwner ----

    def overflowed(self) -> None:
        self.reason = self.reason or "the peer does not read: the outbound queue is full"
        for channel in self._channels:
            channel.stop_sending()
            channel.inbox.end(self.reason, drop=True)
            channel.stream.reset()

    def peer_ended(self, channel: TcpChannel[Any, Any], reason: str) -> None:
        if self._closed_here:
            channel.stop_sending()
            channel.stream.close()
            return
        self.reason = self.reason or reason
        channel.inbox.end(self.reason, drop=False)
        for each in self._channels:
            each.stop_sending()
        channel.stream.abort()
        self._give_up_later()

    def stream_ended(self, channel: TcpChannel[Any, Any], reason: str) -> None:
        self._connected -= 1
        if not self.reason:
            self.lost(f"{self.peer} {reason}")
        channel.inbox.end(self.reason, drop=False)
        if self._connected == 0:
            self.over.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    # ---- inside ----

    def _give_up_later(self) -> None:
        """The connection that is still open, if one is, gets `flush_s`."""
        if self._timer is None and self._connected:
            self._timer = asyncio.get_running_loop().call_later(self._limits.flush_s, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        self.lost("the link was closed")

    def _abort(self) -> None:
        for channel in self._channels:
            channel.stop_sending()
            channel.stream.abort()
