"""Many timers on one of the event loop's.

Every request sets several and gives most of them up: on the loop each costs microseconds, here a push onto a heap.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import Final

from tandem.core.clock import Clock

_LEFT_MAX: Final = 64
"""Number of stale entries that are kept in addition to as many as there are pending alarms."""
_PAUSE_S: Final = 0.001
"""Minimum seconds between two rings: the precision of a loop's timers, so that no alarm rings early again and
again."""


class Alarms:
    """Rings alarms at their times or a millisecond later, those of one moment in the order in which they were set.

    They ring in the context in which the first one was set: it is the owner's, not that of a single request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._heap: list[tuple[float, int, Alarm]] = []
        self._order = 0
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = float("inf")
        self._context: Context | None = None

    def add(self, at: float, alarm: "Alarm", *, anew: bool) -> int:
        """Have an alarm rung; `anew` when it is not set yet. Gives the number that it is set under."""
        self._order = order = self._order + 1
        self._waiting += anew
        heappush(self._heap, (at, order, alarm))
        if at < self._due:
            self._wake_at(at)
        elif len(self._heap) > 2 * self._waiting + _LEFT_MAX:
            self._heap = [entry for entry in self._heap if entry[2].order == entry[1]]
            heapify(self._heap)
        return order

    def give_up(self) -> None:
        """One that was set will not ring."""
        self._waiting -= 1

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._context is None:
            self._context = copy_context()
        self._due = at
        wait_s = max(0.0, at - self._clock.now())
        self._timer = self._loop.call_later(wait_s, self._ring, context=self._context)

    def _ring(self) -> None:
        """Whatever is due; what one raises does not keep the others from ringing."""
        self._timer, self._due = None, float("-inf")
        heap, now = self._heap, self._clock.now()
        try:
            while heap and heap[0][0] <= now:
                _, order, alarm = heappop(heap)
                if alarm.order == order:
                    self._waiting -= 1
                    alarm.ring()
                    heap = self._heap
        finally:
            self._sleep()

    def _sleep(self) -> None:
        """Sleep until the next pending alarm."""
        heap = self._heap
        while heap and heap[0][2].order != heap[0][1]:
            heappop(heap)
        self._due = float("inf")
        if heap:
            self._wake_at(max(heap[0][0], self._clock.now() + _PAUSE_S))


class Alarm:
    """Rings once at the time it was last set to."""

    __slots__ = ("_alarms", "_on_ring", "order")

    def __init__(self, alarms: Alarms, on_ring: Callable[[], None]) -> None:
        self._alarms = alarms
        self._on_ring = on_ring
        self.order = 0
        """The number that it is set under; 0 when it is not."""

    @property
    def is_set(self) -> bool:
        return self.order != 0

    def set(self, at: float) -> None:
        """Ring at `at` (clock seconds), soon when that has passed, and not when it was set to before."""
        self.order = self._alarms.add(at, self, anew=self.order == 0)

    def off(self) -> None:
        """Do not ring."""
        if self.order:
            self.order = 0
            self._alarms.give_up()

    def retire(self) -> None:
        """Switch the alarm off for good and release its callback: it will not be set again."""
        self.off()
        self._on_ring = _nobody

    def ring(self) -> None:
        """Run the alarm's callback: its time has come."""
        self.order = 0
        self._on_ring()


def _nobody() -> None:
    raise AssertionError("a retired alarm rang")
