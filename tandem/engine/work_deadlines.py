"""By when works must be over, and by when they must have got their place."""

import heapq
from collections.abc import Iterator, Mapping
from math import inf
from typing import Generic, Protocol, TypeVar

from tandem.engine.protocol import Work


class Timed(Protocol):
    """What has deadlines. `admitted` is when it got its place, `queued` when it began to wait for it."""

    @property
    def work(self) -> Work: ...
    @property
    def work_id(self) -> int: ...
    @property
    def admitted(self) -> float | None: ...
    @property
    def queued(self) -> float: ...


TimedJob = TypeVar("TimedJob", bound=Timed)


class WorkDeadlines(Generic[TimedJob]):
    """A heap of moments at which a work may be due. What is no longer so is found out when its moment comes."""

    def __init__(self, jobs: Mapping[int, TimedJob], queue_s: float) -> None:
        self._jobs = jobs
        self._queue_s = queue_s
        self._moments: list[tuple[float, int]] = []

    def watch(self, job: TimedJob, now: float) -> None:
        """A work begins."""
        if len(self._moments) > 4 * len(self._jobs) + 1024:
            self._moments = [entry for entry in self._moments if entry[1] in self._jobs]
            heapq.heapify(self._moments)
        heapq.heappush(self._moments, (job.work.deadline, job.work_id))
        self.watch_place(job, now)

    def watch_place(self, job: TimedJob, now: float) -> None:
        """A work waits for its place from now on."""
        heapq.heappush(self._moments, (now + self._queue_s, job.work_id))

    def passed(self, now: float) -> Iterator[tuple[TimedJob, str]]:
        """Works that are due, each with the reason."""
        while self._moments and self._moments[0][0] <= now:
            _, work_id = heapq.heappop(self._moments)
            job = self._jobs.get(work_id)
            if job is None:
                continue
            if now >= job.work.deadline:
                yield job, "the request's deadline passed on the worker"
            elif job.admitted is None and now >= job.queued + self._queue_s:
                yield job, f"waited {now - job.queued:.1f} s for a place on the worker"

    def next(self) -> float:
        """The next moment to look; infinity for never."""
        while self._moments and self._moments[0][1] not in self._jobs:
            heapq.heappop(self._moments)
        return self._moments[0][0] if self._moments else inf
