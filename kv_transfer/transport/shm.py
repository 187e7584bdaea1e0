"""The `shm` transport: holder and receiver on one host, user and service share the holder's block memory.

A Unix socket in a private directory carries tickets, handles and, once per connection and only after a ticket was
accepted, a read-only descriptor of the holder's pool. The receiver copies each block out of its mapping; that a
copy was made while the holder changed the block shows in the digest. A pool is mapped once however many
connections lead to it.
"""

import asyncio
import contextlib
import mmap
import os
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kv_transfer.transport.frames import Offers, Pool
from kv_transfer.transport.limits import ConnectionLimits
from kv_transfer.transport.protocol import (
    BlockReceived,
    BlockSink,
    Delivered,
    ExportSource,
    Offer,
    PullOpen,
    together,
)
from kv_transfer.transport.pulling import Connection, PullClient, StreamPull
from kv_transfer.transport.rpc import encode_pool
from kv_transfer.transport.serving import PullServer
from kv_transfer.transport.unix_wire import UnixWire
from kv_transfer.transport.wire import Wire, framed
from tandem.core.errors import TandemError
from tandem.core.kv import Handle
from tandem.engine.protocol import BlockMemory

_SCHEME: Final = "shm://"
_PREFIX: Final = "tandem-kv-"
_SOCKET: Final = "pull"
_LEFT_S: Final = 60.0
"""Age in seconds from which a socket that refuses connections is one that its process has left behind."""
_CREDENTIALS: Final = struct.Struct("3i")
_COPY_BYTES_PER_TICK: Final = 4 << 20
"""About 0.2 ms of copying, after which others on the event loop get their turn."""
_SMALL_BYTES: Final = 64 << 10
_SMALL_TOGETHER_BYTES: Final = 512 << 10
"""Bytes up to which blocks of at most `_SMALL_BYTES` are reported together: they are still in the cache when they are
examined."""
_TOGETHER_BYTES: Final = 2 << 20
"""Bytes up to which blocks larger than `_SMALL_BYTES` are reported together; other threads examine them meanwhile."""


@dataclass(frozen=True)
class ShmSettings:
    """`directory` holds the private socket directories of this host's workers; None is the system's default. In
    containers it is one that those of one node share, and `node` tells which node that is."""

    directory: str | None = None
    node: str = ""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)


class ShmTransport:
    """`kv_transfer.transport.protocol.Transport` over shared memory."""

    def __init__(self, settings: ShmSettings) -> None:
        self._settings = settings
        self._mappings = _Mappings()
        self._client = PullClient(self._connect, settings.limits)
        self._server: PullServer | None = None
        self._cleanup = contextlib.ExitStack()

    @property
    def scheme(self) -> str:
        return "shm"

    async def serve(self, source: ExportSource) -> str:
        """Listen on a socket only this user can reach. Raises `bad_setting`: no directory, or private memory."""
        assert self._server is None, "already serving"
        fd = source.memory.fd
        if fd is None:
            raise TandemError(
                "bad_setting", "shm needs block memory that can be shared (a memfd)", param="kv_transports"
            )
        try:
            read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
            self._cleanup.callback(os.close, read_only)
            sweep(self._settings.directory or tempfile.gettempdir(), time.time())
            folder = self._cleanup.enter_context(
                tempfile.TemporaryDirectory(prefix=_PREFIX, dir=self._settings.directory)
            )
            path = os.path.join(folder, _SOCKET)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self._cleanup.callback(listener.close)
            listener.bind(path)
            listener.listen(self._settings.limits.connections_max)
        except OSError as error:
            self._cleanup.close()
            where = self._settings.directory or tempfile.gettempdir()
            problem = f"cannot share KV memory through a socket under {where}: {error.strerror or error}"
            raise TandemError("bad_setting", problem, param="kv_socket_directory") from error
        self._server = PullServer(
            listener,
            source,
            lambda: _ShmCarrier(source.memory, read_only),
            self._settings.limits,
            _stranger,
            lambda peer: UnixWire(peer, "receiver", self._settings.limits.stall_s),
        )
        self._server.start()
        return f"{_SCHEME}{self._settings.node}{path}"

    async def withdraw(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()
        self._cleanup.close()

    async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> StreamPull:
        return await self._client.open(address, request, sink, timeout_s)

    async def close(self) -> None:
        await self._client.close()
        await self.withdraw()

    async def _connect(self, address: str) -> Connection:
        node, slash, rest = address.removeprefix(_SCHEME).partition("/")
        path = slash + rest
        if not address.startswith(_SCHEME) or not slash:
            raise TandemError("transfer_failed", f"{address!r} is no shm://NODE/path address")
        if self._settings.node and node not in ("", self._settings.node):
            raise TandemError("transfer_failed", f"{address} is of another node than {self._settings.node}")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            await asyncio.get_running_loop().sock_connect(sock, path)
            if (problem := _stranger(sock)) is not None:
                raise TandemError("transfer_failed", f"{address}: {problem}")
        except OSError as error:
            sock.close()
            problem = f"cannot reach {address} on this host: {error.strerror or error}"
            raise TandemError("transfer_failed", problem) from error
        except BaseException:
            sock.close()
            raise
        return Connection(UnixWire(sock, address, self._settings.limits.stall_s), _ShmReceiver(self._mappings))


class _ShmCarrier:
    """Shows the pool before the first offer of a connection; afterwards slots are all a receiver needs."""

    def __init__(self, memory: BlockMemory, read_only_fd: int) -> None:
        self._pool = Pool(memory.block_bytes, memory.blocks)
        self._fd = read_only_fd
        self._shown = False

    async def introduce(self, wire: Wire) -> None:
        if not self._shown:
            assert isinstance(wire, UnixWire), "only a Unix socket carries a descriptor"
            await wire.send(framed(encode_pool(self._pool)))
            await wire.send_descriptor(self._fd)
            self._shown = True

    def payload(self, offers: Sequence[Offer]) -> list[memoryview]:
        return []


class _ShmReceiver:
    """Copies offered slots out of the mapped pool."""

    def __init__(self, mappings: "_Mappings") -> None:
        self._mappings = mappings
        self._mapping: _Mapping | None = None
        self._block_bytes = 0
        self._blocks = 0

    async def introduce(self, wire: Wire, pool: Pool) -> None:
        assert isinstance(wire, UnixWire), "only a Unix socket carries a descriptor"
        fd = await wire.receive_descriptor()
        try:
            if self._mapping is not None or pool.block_bytes * pool.blocks != os.fstat(fd).st_size:
                raise TandemError("transfer_failed", f"{wire.peer} showed a pool that is not what it says")
            self._mapping = self._mappings.take(fd)
        except OSError as error:
            problem = f"the pool of {wire.peer} cannot be mapped: {error.strerror or error}"
            raise TandemError("transfer_failed", problem) from error
        finally:
            os.close(fd)
        self._block_bytes, self._blocks = pool.block_bytes, pool.blocks

    async def land(
        self, wire: Wire, offers: Offers, sink: BlockSink
    ) -> AsyncGenerator[BlockReceived | Delivered, None]:
        size, copied = self._block_bytes, 0
        most = max(1, (_SMALL_TOGETHER_BYTES if size <= _SMALL_BYTES else _TOGETHER_BYTES) // max(1, size))
        for start in range(0, len(offers.indices), most):
            indices, handles = offers.indices[start : start + most], offers.handles[start : start + most]
            self._copy(wire, indices, handles, sink)
            yield together(tuple(map(BlockReceived, indices, handles)))
            copied += len(indices) * size
            if copied >= _COPY_BYTES_PER_TICK:
                copied = 0
                await asyncio.sleep(0)

    def close(self) -> None:
        if self._mapping is not None:
            self._mappings.give_back(self._mapping)
            self._mapping = None

    def _copy(self, wire: Wire, indices: Sequence[int], handles: Sequence[Handle], sink: BlockSink) -> None:
        slots = [handle.slot for handle in handles]
        if self._mapping is None or max(slots) >= self._blocks:
            problem = f"{wire.peer} offered slot {max(slots)}, outside the pool of {self._blocks} that it has shown"
            raise TandemError("transfer_failed", problem)
        pool, size = self._mapping.view, self._block_bytes
        for index, slot in zip(indices, slots, strict=True):
            target = sink.block(index)
            if target.nbytes != size:
                problem = f"blocks of {wire.peer} have {size} bytes, ours have {target.nbytes}"
                raise TandemError("protocol_mismatch", problem)
            target[:] = pool[slot * size : slot * size + size]


@dataclass
class _Mapping:
    """One pool in this process's address space, read-only."""

    key: tuple[int, int]
    memory: mmap.mmap
    view: memoryview
    users: int = 0


class _Mappings:
    """Every pool is mapped once: page tables of a large pool cost more than a pull."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Mapping] = {}

    def take(self, fd: int) -> _Mapping:
        """The mapping of the file behind `fd`. Raises `OSError` when it cannot be mapped."""
        status = os.fstat(fd)
        key = (status.st_dev, status.st_ino)
        mapping = self._known.get(key)
        if mapping is None:
            memory = mmap.mmap(fd, status.st_size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
            mapping = self._known[key] = _Mapping(key, memory, memoryview(memory))
        mapping.users += 1
        return mapping

    def give_back(self, mapping: _Mapping) -> None:
        mapping.users -= 1
        if mapping.users == 0:
            del self._known[mapping.key]
            mapping.view.release()
            mapping.memory.close()


def sweep(directory: str, now: float) -> None:
    """Remove socket directories of this user whose processes were killed. `now` is wall-clock seconds."""
    for folder in Path(directory).glob(f"{_PREFIX}*"):
        try:
            status = folder.stat()
            if status.st_uid != os.getuid() or now - status.st_mtime < _LEFT_S:
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
                sock.connect(str(folder / _SOCKET))
        except ConnectionRefusedError:
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue


def _stranger(sock: socket.socket) -> str | None:
    """Why the process at the other end may not share memory with this one, or None when it may."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return None if uid == os.getuid() else f"the peer runs as user {uid}, this process as {os.getuid()}"
