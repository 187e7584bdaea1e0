"""The router's side of a simulated fleet: what it knows, when it knows it, and who decides.

What a router knows is late, as in reality: load figures are those of the last multiple of 50 ms, block events take
`event_s` to arrive. What it did itself it knows at once.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Protocol

from benchmarks.fleet.worker import Worker
from benchmarks.fleet.workload import Request
from kv_transfer.index.memory_index import MemoryIndex
from tandem.core.messages import Load


class Decider(Protocol):
    """A routing policy: one object per run. Workers are named by their number."""

    def place(self, request: Request, now: float) -> tuple[int, int] | None:
        """(decode worker, prefill worker); -1 for the latter where the former computes the prompt itself. Whatever
        the decider keeps about requests under way it notes here: the answer is always carried out. None refuses the
        request, which then is over and never ends."""
        ...

    def first_token(self, request: Request, now: float) -> None:
        """The prompt has been computed."""
        ...

    def finished(self, request: Request, now: float) -> None:
        """It is over: `request.ended` with its whole answer, or cancelled, then perhaps before its first token."""
        ...

    def transferred(self, request: Request, tokens: int, seconds: float) -> None:
        """A hand-off has ended, which moved so many tokens in so long."""
        ...


class Knowledge:
    """Workers as the router sees them: their latest figures, and which blocks they have."""

    def __init__(self, workers: Sequence[Worker], event_s: float = 0.002) -> None:
        self.workers = tuple(workers)
        self.index = MemoryIndex()
        self._event_s = event_s
        self._events: list[tuple[float, int, int, str, tuple[int, ...], tuple[int, ...]]] = []
        """A heap: workers tell of steps that have ended when they are looked at."""
        self._told = 0
        self._names = _Names()
        self.away: set[int] = set()
        """Workers that have not come yet or are lost: nobody may be placed there."""
        self.ids = tuple(f"w{worker.index:03d}" for worker in workers)
        self.numbers = {name: number for number, name in enumerate(self.ids)}

    def heard(self, worker: int, tier: str, stored: tuple[int, ...], removed: tuple[int, ...], now: float) -> None:
        """A worker has told of blocks; it takes its time."""
        self._told += 1
        heappush(self._events, (now + self._event_s, self._told, worker, tier, stored, removed))

    def came(self, worker: int) -> None:
        """A worker is there, with nothing in its pool."""
        self.away.discard(worker)

    def lost(self, worker: int) -> None:
        """A worker is gone, and all it had with it."""
        self.away.add(worker)
        self.index.drop(self.ids[worker])

    def renew(self, now: float) -> None:
        """Bring the index and all figures up to what has arrived by now."""
        events, ids, names = self._events, self.ids, self._names
        for each in self.workers:
            each.touch(now)
        while events and events[0][0] <= now:
            _, _, worker, tier, stored, removed = heappop(events)
            if worker in self.away:
                continue
            if stored:
                self.index.stored(ids[worker], [names[block] for block in stored], tier)
            if removed:
                self.index.removed(ids[worker], [names[block] for block in removed], tier)

    def load(self, worker: int) -> Load:
        return self.workers[worker].load

    def names(self, request: Request) -> list[bytes]:
        """The names of its blocks as the index knows them."""
        names = self._names
        return [names[block] for block in request.blocks]


class _Names(dict[int, bytes]):
    """16 bytes for every block."""

    def __missing__(self, block: int) -> bytes:
        name = self[block] = block.to_bytes(16, "little")
        return name
