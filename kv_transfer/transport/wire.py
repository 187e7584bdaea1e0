"""A connected, non-blocking stream socket with bounded waits: frames, and bytes straight into their place.

asyncio's transports copy every byte through their own buffers; here the kernel writes into the caller's memory.
At most one task reads and one task writes at a time.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from kv_transfer.transport.spinning import Spin
from tandem.core.errors import TandemError

_LENGTH: Final = struct.Struct("<I")
_PIECES_MAX: Final = 512
"""Buffers per system call; Linux takes 1024."""
AHEAD_BYTES: Final = 4 << 10
"""Read at once where a frame is due: most frames, and what follows them, come with one system call."""

Got = TypeVar("Got", bytes, int)


class WireLost(TandemError):
    """The connection cannot be used any more: closed, broken, or silent for too long."""

    def __init__(self, message: str) -> None:
        super().__init__("transfer_failed", message)


class Wire:
    """Owns `sock`. `stall_s` bounds every single wait for the peer; `peer` is for messages. With `spin` short waits
    for bytes are spun through."""

    def __init__(self, sock: socket.socket, peer: str, stall_s: float, spin: Spin | None = None) -> None:
        sock.setblocking(False)
        self.peer = peer
        self.socket = sock
        self._stall_s = stall_s
        self._spin = spin
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._ahead = b""
        """Bytes that arrived before they were asked for."""

    async def opened(self, within_s: float) -> None:
        """Whatever comes before the first byte of ours. Raises `WireLost`."""

    @property
    def closed(self) -> bool:
        return self.socket.fileno() < 0

    def close(self) -> None:
        """Close now; pending waits and reads raise `WireLost`. Idempotent."""
        if self.closed:
            return
        self._ahead = b""
        self._loop.remove_reader(self.socket.fileno())
        self._loop.remove_writer(self.socket.fileno())
        self.socket.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(WireLost(f"the KV connection to {self.peer} was closed here"))

    def quiet(self) -> bool:
        """Whether the peer is connected and has sent nothing, so that the connection is fit for another pull."""
        if self._buffered():
            return False
        try:
            # Also below an encryption: whatever has come, it is not quiet.
            socket.socket.recv(self.socket, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` when the peer sends something or hangs up, at the earliest in the next turn of the event loop,
        which costs little where nothing is waited for. Gives a function that ends the listening; nothing may read
        from the wire before that."""
        listening = False

        def listen() -> None:
            nonlocal listening
            if self._buffered():
                heard()
            elif not self.closed:
                listening = True
                self._loop.add_reader(self.socket.fileno(), tell)

        def tell() -> None:
            end()
            heard()

        def end() -> None:
            nonlocal listening
            beginning.cancel()
            if listening and not self.closed:
                self._loop.remove_reader(self.socket.fileno())
            listening = False

        beginning = self._loop.call_soon(listen)
        return end

    async def send(self, buffers: Sequence[memoryview]) -> None:
        """Send all of `buffers`, in order, without joining them. Raises `WireLost`."""
        left: Sequence[memoryview] = [buffer for buffer in buffers if buffer.nbytes]
        while left := self.send_now(left):
            await self._wait("write", self._stall_s)

    def send_now(self, buffers: Sequence[memoryview]) -> Sequence[memoryview]:
        """Send what can be sent without waiting, and give what is left. Raises `WireLost`."""
        while buffers:
            try:
                count = self.socket.sendmsg(buffers[:_PIECES_MAX])
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                raise self._lost(error) from error
            buffers = _after(buffers, count)
        return buffers

    async def receive_into(self, views: Sequence[memoryview], wait_s: float | None = None) -> None:
        """Fill all of `views`, in order. A single wait lasts at most `wait_s`, by default the wire's bound."""
        pending = [view for view in views if view.nbytes]
        while pending and self._ahead:
            count = min(len(self._ahead), pending[0].nbytes)
            pending[0][:count] = self._ahead[:count]
            self._ahead = self._ahead[count:]
            pending = _after(pending, count)
        while pending:
            pending = _after(pending, await self._read(partial(self._receive, pending), wait_s))

    async def receive(self, size: int, wait_s: float | None = None) -> bytes:
        """Exactly `size` bytes."""
        if size > AHEAD_BYTES:
            data = bytearray(size)
            await self.receive_into([memoryview(data)], wait_s)
            return bytes(data)
        while len(self._ahead) < size:
            self._ahead += await self._read(self._some, wait_s)
        received, self._ahead = self._ahead[:size], self._ahead[size:]
        return received

    async def frame(self, bytes_max: int, wait_s: float | None = None) -> bytes:
        """The next frame. Raises `WireLost` when it is announced longer than `bytes_max`."""
        (size,) = _LENGTH.unpack(await self.receive(_LENGTH.size, wait_s))
        if size > bytes_max:
            raise WireLost(f"the KV peer {self.peer} announced a frame of {size} bytes; {bytes_max} are allowed")
        return await self.receive(size)

    def _buffered(self) -> bool:
        """Whether something has come that is not with the kernel any more."""
        return bool(self._ahead)

    def _some(self) -> bytes:
        """The bytes of the stream that are available now, up to a bound; empty at its end."""
        return self.socket.recv(AHEAD_BYTES)

    def _receive(self, pending: list[memoryview]) -> int:
        if len(pending) == 1:
            return self.socket.recv_into(pending[0])
        return self.socket.recvmsg_into(pending[:_PIECES_MAX])[0]

    async def _read(self, attempt: Callable[[], Got], wait_s: float | None) -> Got:
        """The result of `attempt` as soon as there is something to read. Spins where that is likely to be at once."""
        spin = self._spin
        while True:
            try:
                got = attempt()
            except (BlockingIOError, InterruptedError):
                if spin is not None and spin.again(self._loop.time()):
                    # Where both ends are on one processor the other one could not answer else.
                    os.sched_yield()
                    await asyncio.sleep(0)
                else:
                    await self._wait("read", self._stall_s if wait_s is None else wait_s)
            except OSError as error:
                raise self._lost(error) from error
            else:
                if not got:
                    raise WireLost(f"the KV peer {self.peer} closed the connection")
                if spin is not None:
                    spin.over(self._loop.time())
                return got

    async def _wait(self, way: str, wait_s: float | None) -> None:
        if self.closed:
            raise WireLost(f"the KV connection to {self.peer} was closed here")
        assert way not in self._waiting, f"two tasks {way} one wire"
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting[way] = future
        fd = self.socket.fileno()
        add, remove = self._hooks(way)
        add(fd, _wake, future)
        timer = None if wait_s is None else self._loop.call_later(wait_s, self._expire, future, wait_s)
        try:
            await future
        finally:
            del self._waiting[way]
            if timer is not None:
                timer.cancel()
            if not self.closed:
                remove(fd)

    def _hooks(self, way: str) -> "tuple[Callable[..., object], Callable[[int], object]]":
        if way == "read":
            return self._loop.add_reader, self._loop.remove_reader
        return self._loop.add_writer, self._loop.remove_writer

    def _expire(self, future: asyncio.Future[None], wait_s: float) -> None:
        if not future.done():
            future.set_exception(WireLost(f"the KV peer {self.peer} was silent for {wait_s:.1f} s"))

    def _lost(self, error: OSError) -> WireLost:
        return WireLost(f"the KV connection to {self.peer} broke: {error.strerror or error}")


def framed(*frames: bytes) -> list[memoryview]:
    """`frames`, each after its length, as one buffer to send."""
    return [memoryview(b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames))]


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _after(pending: Sequence[memoryview], count: int) -> list[memoryview]:
    """The buffers that remain of `pending` after its first `count` bytes."""
    for position, buffer in enumerate(pending):
        if count < buffer.nbytes:
            return [buffer[count:], *pending[position + 1 :]]
        count -= buffer.nbytes
    return []
