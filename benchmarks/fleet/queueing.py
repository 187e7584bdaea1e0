"""Who is next on a worker: the scheduler's order, and its three ways to enter."""

from bisect import bisect_left, insort
from collections.abc import Callable
from operator import itemgetter

from benchmarks.fleet.worker_request import WorkerRequest
from tandem.engine.scheduler.step_rules import Order, Way, may_enter, turn

_Key = tuple[bool, Order, int]
_key_of = itemgetter(0)


class Queue:
    """Jobs that wait, the most urgent first: those that are ready, then by priority and arrival."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[_Key, WorkerRequest]] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def head(self) -> WorkerRequest | None:
        return self._entries[0][1] if self._entries else None

    @property
    def jobs(self) -> list[WorkerRequest]:
        return [job for _, job in self._entries]

    def push(self, job: WorkerRequest) -> None:
        insort(self._entries, (turn(job.ready, job.order, 0), job))

    def remove(self, job: WorkerRequest) -> bool:
        """Whether it waited here."""
        place = bisect_left(self._entries, turn(job.ready, job.order, 0), key=_key_of)
        if place == len(self._entries) or self._entries[place][1] is not job:
            return False
        del self._entries[place]
        return True


class Waiting:
    """Everything that has no place yet, by the way it will come by its prompt's KV."""

    __slots__ = ("_count", "_queues")

    def __init__(self) -> None:
        self._queues: dict[Way, Queue] = {"fetch": Queue(), "bring": Queue(), "compute": Queue()}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def jobs(self) -> list[WorkerRequest]:
        return [job for queue in self._queues.values() for job in queue.jobs]

    def push(self, job: WorkerRequest) -> None:
        self._queues[job.way].push(job)
        self._count += 1

    def remove(self, job: WorkerRequest) -> bool:
        """Whether it waited."""
        waited = self._queues[job.way].remove(job)
        self._count -= waited
        return waited

    def head(
        self, budget_left: bool, brought_ahead: int, fetch_ahead: int, may_export: Callable[[WorkerRequest], bool]
    ) -> WorkerRequest | None:
        """The most urgent that may enter now, its room aside. One that waits for exports to shrink does not hold up
        the others."""
        best: WorkerRequest | None = None
        for way, queue in self._queues.items():
            job = queue.head
            if job is None or (best is not None and best.order < job.order):
                continue
            if may_enter(way, budget_left, brought_ahead, fetch_ahead) and (not job.prefill_only or may_export(job)):
                best = job
        return best
