"""The real clock and entropy. Simulated code never imports this module."""

import os
import time
from typing import Final

_POOL_BYTES: Final = 4096


class SystemClock:
    """`tandem.core.clock.Clock` over the operating system; agrees with asyncio's loop time."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


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
