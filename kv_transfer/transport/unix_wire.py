"""`Wire` over a Unix socket, which also carries file descriptors. Short waits are spun through."""

import os
import socket
from array import array
from typing import Final

from kv_transfer.transport.spinning import Spin
from kv_transfer.transport.wire import AHEAD_BYTES, Wire, WireLost

_INT: Final = array("i").itemsize
_SPACE: Final = socket.CMSG_SPACE(_INT)


class UnixWire(Wire):
    """Takes a connected socket and owns it, and every descriptor that came and was not asked for."""

    def __init__(self, sock: socket.socket, peer: str, stall_s: float, spin: Spin | None = None) -> None:
        super().__init__(sock, peer, stall_s, spin or Spin())
        self._descriptors: list[int] = []

    def close(self) -> None:
        super().close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    async def send_descriptor(self, fd: int) -> None:
        """Send one byte that carries a file descriptor."""
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
        await self.receive(1)
        if not self._descriptors:
            raise WireLost(f"the KV peer {self.peer} sent no file descriptor where one was due")
        return self._descriptors.pop()

    def _some(self) -> bytes:
        # The kernel ends what it gives at a byte that carries a descriptor, so at most one message of them comes.
        data, ancillary, _, _ = self.socket.recvmsg(AHEAD_BYTES, _SPACE, socket.MSG_CMSG_CLOEXEC)
        for _, _, packed in ancillary:
            self._descriptors += array("i", packed[: len(packed) // _INT * _INT])
        if len(self._descriptors) > 1:
            raise WireLost(f"the KV peer {self.peer} sent file descriptors where none was due")
        return data
