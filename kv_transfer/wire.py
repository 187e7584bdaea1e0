"""A connected, non-blocking stream socket with bounded waits: frames, and bytes straight into their place.

asyncio's transports copy every byte through their own buffers; here the kernel writes into the caller's memory.
At most one task reads and one task writes at a time.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final

from kv_transfer.spinning import Spin
from tandem.core.errors import TandemError

_LENGTH: Final = struct.Struct("<I")
_PIECES_MAX: Final = 512
"""Buffers per system call; Linux takes 1024."""


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

    async def opened(self, within_s: float) -> None:
        """Whatever comes before the first byte of ours. Raises `WireLost`."""

    @property
    def closed(self) -> bool:
        return self.socket.fileno() < 0

    def close(self) -> None:
        """Close now; whoever waits gets `WireLost`. Idempotent."""
        if self.closed:
            return
        self._loop.remove_reader(self.socket.fileno())
        self._loop.remove_writer(self.socket.fileno())
        self.socket.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(WireLost(f"the KV connection to {self.peer} was closed here"))

    def quiet(self) -> bool:
        """Whether the peer is connected and has said nothing: a connection fit for another pull."""
        try:
            # Also below an encryption: whatever has come, it is not quiet.
            socket.socket.recv(self.socket, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    async def heard(self) -> None:
        """Wait without bound until the peer says something or hangs up. The caller bounds it."""
        await self._wait("read", None)

    async def send(self, buffers: Sequence[memoryview]) -> None:
        """Send all of `buffers`, in order, without joining them. Raises `WireLost`."""
        pending = [buffer for buffer in buffers if buffer.nbytes]
        while pending:
            try:
                count = self.socket.sendmsg(pending[:_PIECES_MAX])
            except (BlockingIOError, InterruptedError):
                await self._wait("write", self._stall_s)
            except OSError as error:
                raise self._lost(error) from error
            else:
                pending = _after(pending, count)

    async def receive_into(self, views: Sequence[memoryview], wait_s: float | None = None) -> None:
        """Fill all of `views`, in order. A single wait lasts at most `wait_s`, by default the wire's bound."""
        pending = [view for view in views if view.nbytes]
        while pending:
            try:
                count = self._receive(pending)
            except (BlockingIOError, InterruptedError):
                await self._bytes_due(self._stall_s if wait_s is None else wait_s)
            except OSError as error:
                raise self._lost(error) from error
            else:
                if count == 0:
                    raise WireLost(f"the KV peer {self.peer} closed the connection")
                pending = _after(pending, count)

    async def receive(self, size: int, wait_s: float | None = None) -> bytes:
        """Exactly `size` bytes."""
        data = bytearray(size)
        await self.receive_into([memoryview(data)], wait_s)
        return bytes(data)

    async def frame(self, bytes_max: int, wait_s: float | None = None) -> bytes:
        """The next frame. Raises `WireLost` when it is announced longer than `bytes_max`."""
        (size,) = _LENGTH.unpack(await self.receive(_LENGTH.size, wait_s))
        if size > bytes_max:
            raise WireLost(f"the KV peer {self.peer} announced a frame of {size} bytes; {bytes_max} are allowed")
        return await self.receive(size)

    async def send_descriptor(self, fd: int) -> None:
        """Send one byte that carries a file descriptor (Unix sockets only)."""
        while True:
            try:
                socket.send_fds(self.socket, [b"\0"], [fd])
                return
            except (BlockingIOError, InterruptedError):
                await self._wait("write", self._stall_s)
            except OSError as error:
                raise self._lost(error) from error

    async def receive_descriptor(self) -> int:
        """The file descriptor sent by `send_descriptor`; the caller closes it."""
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.socket, 1, 1, socket.MSG_CMSG_CLOEXEC)
            except (BlockingIOError, InterruptedError):
                await self._wait("read", self._stall_s)
            except OSError as error:
                raise self._lost(error) from error
            else:
                if not data or len(fds) != 1:
                    raise WireLost(f"the KV peer {self.peer} sent no file descriptor where one was due")
                return fds[0]

    def _receive(self, pending: list[memoryview]) -> int:
        if len(pending) == 1:
            return self.socket.recv_into(pending[0])
        return self.socket.recvmsg_into(pending[:_PIECES_MAX])[0]

    async def _bytes_due(self, wait_s: float) -> None:
        """Wait for bytes, awake where they are likely to come at once."""
        spin = self._spin
        if spin is None:
            await self._wait("read", wait_s)
            return
        began = self._loop.time()
        if not (spin.budget_s() and await self._spun(spin, began)):
            await self._wait("read", wait_s)
        spin.waited(self._loop.time() - began)

    async def _spun(self, spin: Spin, began: float) -> bool:
        """Give others their turns until there are bytes. False when it is better to sleep."""
        turn, until = began, began + spin.budget_s()
        while turn < until:
            await asyncio.sleep(0)
            if self.closed or not self.quiet():
                return True
            last, turn = turn, self._loop.time()
            if spin.crowded(turn - last):
                return False
        return False

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


def _after(pending: list[memoryview], count: int) -> list[memoryview]:
    """What is left of `pending` once `count` bytes of it are done."""
    for position, buffer in enumerate(pending):
        if count < buffer.nbytes:
            return [buffer[count:], *pending[position + 1 :]]
        count -= buffer.nbytes
    return []
