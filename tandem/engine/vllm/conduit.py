"""The stage's end of the conduit: a Unix packet socket on which the ranks of one engine meet it.

A rank is one connection for the life of its process, so that its end, however it comes, shows at once as the end of
the connection. The socket lies in a private directory, and only processes of the same user are listened to.
"""

import asyncio
import contextlib
import os
import socket
import struct
import tempfile
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from tandem.core.errors import TandemError
from tandem.engine.vllm.conduit_messages import (
    PACKET_BYTES_MAX,
    FromRank,
    RankHello,
    ToRank,
    decode_from_rank,
    encode,
)

_CREDENTIALS: Final = struct.Struct("3i")
_PACKETS_PER_TICK: Final = 64
_QUEUE_MAX: Final = 65536
"""Packets a rank may leave unread before it counts as gone."""
_BACKLOG: Final = 1024


class Conduit:
    """Tells `on_message(rank, message)` what ranks say, their hellos included, and `on_lost` in one sentence when one
    is gone."""

    def __init__(
        self,
        directory: str | None,
        on_message: Callable[[int, FromRank], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._on_message = on_message
        self._on_lost = on_lost
        self._cleanup = contextlib.ExitStack()
        self._peers: dict[int, _Peer] = {}
        self._strangers: dict[_Peer, None] = {}
        """Connections that have not sent their hello."""
        self.path = ""

    def open(self) -> str:
        """Listen; gives the socket's path. Raises `bad_setting` when there is no directory for it."""
        try:
            folder = self._cleanup.enter_context(
                tempfile.TemporaryDirectory(prefix="tandem-stage-", dir=self._directory)
            )
            self.path = os.path.join(folder, "conduit")
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            self._cleanup.callback(listener.close)
            listener.bind(self.path)
            listener.listen(_BACKLOG)
        except OSError as error:
            self._cleanup.close()
            where = self._directory or tempfile.gettempdir()
            raise TandemError(
                "bad_setting", f"no socket for the engine's ranks under {where}: {error.strerror or error}"
            ) from error
        loop = asyncio.get_running_loop()
        loop.add_reader(listener, self._accept, listener)
        self._cleanup.callback(loop.remove_reader, listener)
        return self.path

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have sent their hello, in order."""
        return tuple(sorted(self._peers))

    def tell(self, message: ToRank) -> None:
        """Tell all ranks."""
        packet = encode(message)
        for peer in tuple(self._peers.values()):
            peer.send(packet)

    def show(self, message: ToRank, fd: int) -> None:
        """Tell all ranks, with a descriptor."""
        packet = encode(message)
        for peer in tuple(self._peers.values()):
            peer.send(packet, fd)

    def close(self) -> None:
        """Close the connections to all peers, without reporting any of them as lost."""
        for peer in (*self._peers.values(), *self._strangers):
            peer.close()
        self._peers.clear()
        self._strangers.clear()
        self._cleanup.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        if _is_stranger(sock):
            sock.close()
            return
        self._strangers[_Peer(sock, self._heard, self._gone)] = None

    def _heard(self, peer: "_Peer", message: FromRank) -> None:
        if peer.hello is not None:
            self._on_message(peer.hello.rank, message)
        elif isinstance(message, RankHello) and message.rank not in self._peers:
            peer.hello = message
            del self._strangers[peer]
            self._peers[message.rank] = peer
            self._on_message(message.rank, message)
        else:
            peer.close()
            self._strangers.pop(peer, None)

    def _gone(self, peer: "_Peer", why: str) -> None:
        self._strangers.pop(peer, None)
        hello = peer.hello
        if hello is not None and self._peers.get(hello.rank) is peer:
            del self._peers[hello.rank]
            self._on_lost(f"rank {hello.rank} of {hello.world} of the engine (process {hello.pid}) {why}")


class _Peer:
    """One connection."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[["_Peer", FromRank], None],
        on_gone: Callable[["_Peer", str], None],
    ) -> None:
        self.hello: RankHello | None = None
        self._socket = sock
        self._on_message = on_message
        self._on_gone = on_gone
        self._unsent: deque[tuple[bytes, int | None]] = deque()
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._read)

    def send(self, packet: bytes, fd: int | None = None) -> None:
        """Now, or as soon as the rank has read what came before."""
        if self._socket.fileno() < 0:
            return
        self._unsent.append((packet, fd))
        if len(self._unsent) == 1:
            self._write()
        elif len(self._unsent) > _QUEUE_MAX:
            self._lose(f"has left {len(self._unsent)} messages unread")

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    def _write(self) -> None:
        while self._unsent:
            packet, fd = self._unsent[0]
            try:
                socket.send_fds(self._socket, [packet], [] if fd is None else [fd])
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._socket, self._write)
                return
            except OSError as error:
                self._lose(f"is gone: {error.strerror or error}")
                return
            self._unsent.popleft()
        self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        for _ in range(_PACKETS_PER_TICK):
            if self._socket.fileno() < 0:
                return
            try:
                packet = self._socket.recv(PACKET_BYTES_MAX)
                if not packet:
                    self._lose("is gone")
                    return
                message = decode_from_rank(packet)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._lose(f"is gone: {error.strerror or error}")
                return
            except msgspec.DecodeError as error:
                self._lose(f"said something that cannot be understood: {error}")
                return
            self._on_message(self, message)

    def _lose(self, why: str) -> None:
        if self._socket.fileno() >= 0:
            self.close()
            self._on_gone(self, why)


def _is_stranger(sock: socket.socket) -> bool:
    """Whether the process at the other end runs as another user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return bool(uid != os.getuid())
