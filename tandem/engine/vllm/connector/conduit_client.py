"""A rank's end of the conduit: a packet socket used from the engine's own thread, with every wait bounded.

A call of the `socket` module lets go of Python's lock, and vLLM's thread that sends its outputs takes it: a step then
waits for hundreds of microseconds for a call of one. So what does not wait is asked of the C library with the lock
held.
"""

import ctypes
import errno
import os
import select
import socket
import struct
import time
from array import array
from typing import Final

from tandem.core.errors import TandemError
from tandem.engine.memory import HostMemory
from tandem.engine.vllm.conduit_messages import (
    PACKET_BYTES_MAX,
    FromRank,
    RankHello,
    ToRank,
    Welcome,
    decode_to_rank,
    encode,
)

_SEND_TIMEOUT: Final = struct.pack("ll", 5, 0)
"""Seconds and microseconds for which a stage may leave its packets unread."""
_DESCRIPTOR: Final = array("i")
_WELCOME_S: Final = 30.0
_AT_ONCE: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_LIBC: Final = ctypes.PyDLL(None, use_errno=True)
"""The C library, whose functions are called with Python's lock held."""
_LIBC.recv.argtypes = _LIBC.send.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.recv.restype = _LIBC.send.restype = ctypes.c_ssize_t


class ConduitClient:
    """A rank's connection to the stage. It connects at once and sends its hello. Afterwards `lost` says whether the
    stage is gone; no method raises for that."""

    def __init__(self, path: str, hello: RankHello) -> None:
        """Connect to the stage. Raises `engine_failed` when nothing listens at `path`."""
        self.lost = False
        self.memory: HostMemory | None = None
        """The stage's memory, once it has shown it."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        # A timeout of Python's own would make even a read that is not to wait wait.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        self._heard: list[ToRank] = []
        self._packet = ctypes.create_string_buffer(PACKET_BYTES_MAX)
        self._poll = select.poll()
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise TandemError("engine_failed", f"the stage cannot be reached at {path}: {error}") from error
        self._poll.register(self._socket, select.POLLIN)
        self.send(hello)

    def send(self, message: FromRank) -> None:
        """Tell the stage; for one that is gone, or does not read for long, nothing is sent and `lost` is set."""
        if self.lost:
            return
        packet = encode(message)
        if _LIBC.send(self._socket.fileno(), packet, len(packet), _AT_ONCE) == len(packet):
            return
        try:
            # Says what is wrong, or waits for room.
            self._socket.send(packet)
        except OSError:
            self._lose()

    def receive(self) -> list[ToRank]:
        """The messages received since the last call. Never waits."""
        while not self.lost and self._read():
            pass
        heard, self._heard = self._heard, []
        return heard

    def wait(self, timeout_s: float) -> None:
        """Wait until the stage sends a message, for at most `timeout_s`."""
        if not self.lost and not self._heard:
            self._poll.poll(timeout_s * 1e3)

    def mapped(self) -> HostMemory:
        """The stage's memory; waits for it the first time. Raises `engine_failed` when it does not come."""
        until = time.monotonic() + _WELCOME_S
        while self.memory is None:
            if self.lost or time.monotonic() > until:
                raise TandemError("engine_failed", "the stage has not shown its memory")
            self._poll.poll(100)
            self._read()
        return self.memory

    def close(self) -> None:
        """Idempotent."""
        self._lose()
        if self.memory is not None:
            self.memory.close()

    def _read(self) -> bool:
        """Take one packet if there is one."""
        if self.memory is None:
            return self._read_first()
        length: int = _LIBC.recv(self._socket.fileno(), self._packet, PACKET_BYTES_MAX, _AT_ONCE)
        if length > 0:
            self._heard.append(decode_to_rank(ctypes.string_at(self._packet, length)))
        elif length == 0 or ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            self._lose()
        return length > 0

    def _read_first(self) -> bool:
        """Take one packet if there is one, the stage's memory perhaps with it."""
        try:
            packet, extra, _, _ = self._socket.recvmsg(
                PACKET_BYTES_MAX, socket.CMSG_SPACE(_DESCRIPTOR.itemsize), socket.MSG_DONTWAIT
            )
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            packet, extra = b"", []
        fds = [descriptor for _, _, data in extra for descriptor in array("i", data)]
        if not packet:
            self._lose()
            return False
        message = decode_to_rank(packet)
        if isinstance(message, Welcome) and fds:
            self.memory = HostMemory(message.block_bytes, message.blocks, fd=fds[0])
        else:
            for fd in fds:
                os.close(fd)
            self._heard.append(message)
        return True

    def _lose(self) -> None:
        if not self.lost:
            self.lost = True
            self._poll.unregister(self._socket)
            self._socket.close()
