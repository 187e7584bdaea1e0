"""The clock seam over an event loop, for tests on virtual time."""

import asyncio


class LoopClock:
    """The clock of a loop on virtual time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return 1_800_000_000.0 + self._loop.time()
