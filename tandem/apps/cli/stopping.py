"""Ends supervised processes: asks, asks again to hurry, kills. Runs on the `Process` seam and a clock only."""

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tandem.core.clock import Clock
from tandem.process.processes import Process

_LOOK_EVERY_S: Final = 0.05


@dataclass(frozen=True)
class StopTimes:
    """Seconds that processes may take: to stop after the first signal, to stop after the second before they are
    killed, and to begin to drain once their router was told to ask them."""

    drain_s: float = 35.0
    hurry_s: float = 3.0
    ask_s: float = 2.0


class Stopper:
    """`running` is the owner's table of live processes, by name; one that is not in it any more has ended."""

    def __init__(self, running: Mapping[str, Process], clock: Clock, times: StopTimes) -> None:
        self._running = running
        self._clock = clock
        self._times = times

    async def end(self, names: Sequence[str], hurrying: asyncio.Event) -> None:
        """Signal, wait for `drain_s` or until `hurrying`, and then insist."""
        there = self.running(names)
        send(there.values(), signal.SIGTERM)
        if not await self.gone(there, self._times.drain_s, unless=hurrying.is_set):
            await self.insist(there)

    async def insist(self, there: Mapping[str, Process]) -> None:
        """Signal a second time, and kill the processes that still run `hurry_s` later."""
        send(self._left(there), signal.SIGTERM)
        if not await self.gone(there, self._times.hurry_s):
            send(self._left(there), signal.SIGKILL)

    def running(self, names: Sequence[str]) -> dict[str, Process]:
        """The processes of these names that run now. One that starts later under the same name is another process."""
        return {name: self._running[name] for name in names if name in self._running}

    async def gone(
        self, there: Mapping[str, Process], within_s: float, *, unless: Callable[[], bool] = lambda: False
    ) -> bool:
        """Wait until none of them runs, at most `within_s` or until `unless` holds; whether they are gone."""
        deadline = self._clock.now() + within_s
        while self._left(there):
            if self._clock.now() >= deadline or unless():
                return False
            await asyncio.sleep(_LOOK_EVERY_S)
        return True

    def _left(self, there: Mapping[str, Process]) -> list[Process]:
        return [process for name, process in there.items() if self._running.get(name) is process]


def send(processes: Iterable[Process], number: int) -> None:
    """Signal each of the processes."""
    for process in processes:
        process.signal(number)
