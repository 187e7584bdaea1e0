"""The real clock and entropy. Simulated code never imports this module."""

import os
import time


class SystemClock:
    """`tandem.core.clock.Clock` over the operating system; agrees with asyncio's loop time."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class SystemEntropy:
    """`tandem.core.entropy.Entropy` over the operating system."""

    def u64(self) -> int:
        return int.from_bytes(os.urandom(8), "little")

    def token(self, size: int) -> bytes:
        return os.urandom(size)
