"""Measure how long the event loop is held: while one callback runs, nothing else in the process gets a turn.

A timer that is due every few milliseconds is late by the duration of what ran when it became due. The time that the
thread computed meanwhile, by the thread's own clock, tells a busy loop from a busy machine.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from tandem.core.metrics import Meter

PERIOD_S: Final = 0.01
METRIC: Final = "tandem_loop_held_seconds"


def held_s(gap_s: float, computed_s: float) -> tuple[float, float]:
    """The least time for which the loop was held, by wall and by thread clock, within the `gap_s` between two looks,
    in which its thread computed for `computed_s`. Of each, up to a period may have gone by in short turns."""
    wall_s = max(0.0, gap_s - PERIOD_S)
    return wall_s, min(wall_s, max(0.0, computed_s - PERIOD_S))


class LoopWatch:
    """Looks every period and observes both. `wall` and `thread` are clocks in seconds, the latter of the loop's own
    thread."""

    def __init__(self, meter: Meter, wall: Callable[[], float], thread: Callable[[], float]) -> None:
        self._meter = meter
        self._wall = wall
        self._thread = thread
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._computed = 0.0

    async def run(self) -> None:
        """Watch the loop until cancelled."""
        loop = asyncio.get_running_loop()
        self._at, self._computed = self._wall(), self._thread()
        self._timer = loop.call_later(PERIOD_S, self._look, loop)
        try:
            await loop.create_future()
        finally:
            self._timer.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        at, computed = self._wall(), self._thread()
        wall_s, thread_s = held_s(at - self._at, computed - self._computed)
        self._meter.observe(METRIC, wall_s, "wall")
        self._meter.observe(METRIC, thread_s, "thread")
        self._at, self._computed = at, computed
        self._timer = loop.call_later(PERIOD_S, self._look, loop)
