"""A rank's end of the conduit: a packet socket used from the engine's own thread, with every wait bounded."""

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


class ConduitClient:
    """Connects at once and says hello. Afterwards `lost` tells whether the stage is gone; nothing raises for that."""

    def __init__(self, path: str, hello: RankHello) -> None:
        """Raises `engine_failed` when nobody listens at `path`."""
        self.lost = False
        self.memory: HostMemory | None = None
        """The stage's memory, once it has shown it."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        # A timeout of Python's own would make even a read that is not to wait wait.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        self._heard: list[ToRank] = []
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
        try:
            self._socket.send(encode(message))
        except OSError:
            self._lose()

    def receive(self) -> list[ToRank]:
        """What has been said since the last call. Never waits."""
        while not self.lost and self._read():
            pass
        heard, self._heard = self._heard, []
        return heard

    def wait(self, timeout_s: float) -> None:
        """Until the stage says something, or for so long."""
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
