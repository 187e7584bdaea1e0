"""The real clock and entropy. Simulated code never imports this module."""

import os
import resource
import time
from typing import Final

_POOL_BYTES: Final = 4096
DESCRIPTORS_KEPT: Final = 128
"""File descriptors a service leaves for anything but its clients' connections: links, logs, libraries."""


class SystemClock:
    """`tandem.core.clock.Clock` over the operating system; agrees with asyncio's loop time.

    A request asks a dozen times: these are the interpreter's own functions, with no call of ours around them.
    """

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


class SystemEntropy:
    """`tandem.core.entropy.Entropy` over the operating system, fetched in larger pieces.

    A request needs half a dozen small draws, and each would be a system call. Services do not fork after they have
    started, so no two processes ever share what is left of a piece.
    """

    def __init__(self) -> None:
        self._pool = b""
        self._used = 0

    def u64(self) -> int:
        return int.from_bytes(self.token(8), "little")

    def token(self, size: int) -> bytes:
        start, end = self._used, self._used + size
        if end > len(self._pool):
            self._pool = os.urandom(max(size, _POOL_BYTES))
            start, end = 0, size
        self._used = end
        return self._pool[start:end]


def descriptors(wanted: int) -> int:
    """Raise this process's bound on open file descriptors to `wanted`, as far as it may; gives the bound."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft)
