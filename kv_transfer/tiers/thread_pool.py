"""A few threads that do what must not hold up the event loop: copies, checksums, disk I/O.

Jobs come in lanes, which take turns: a long restore does not keep a short one waiting for its end. Threads are
daemons, because nothing can end a thread whose disk does not answer.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class _Job:
    __slots__ = ("done", "loop", "work")

    def __init__(self, work: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.done: asyncio.Future[Any] = loop.create_future()


class Lane:
    """Jobs that are begun in order. All methods are called on the event loop."""

    def __init__(self, crew: "ThreadPool") -> None:
        self._thread_pool = crew
        self.jobs: deque[_Job] = deque()

    def submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Have `work` done by a thread. The future gets its result or what it raised."""
        job = _Job(work, asyncio.get_running_loop())
        self._thread_pool.add(self, job)
        return job.done

    def clear(self) -> None:
        """Jobs that have not begun never do; their futures are cancelled."""
        for job in self._thread_pool.take_out(self):
            job.done.cancel()


class ThreadPool:
    """`threads` threads, started with the first job."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._name = name
        self._started: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._lanes: deque[Lane] = deque()
        self._begun: dict[int, float] = {}
        self._closing = False

    def lane(self) -> Lane:
        return Lane(self)

    def busy_for_s(self) -> float:
        """Seconds that the longest-running job has been running; 0 when no job runs."""
        with self._changed:
            begun = min(self._begun.values(), default=None)
        return 0.0 if begun is None else time.monotonic() - begun

    def add(self, lane: Lane, job: _Job) -> None:
        """Put a job at the end of its lane."""
        with self._changed:
            assert not self._closing, "the crew is closed"
            lane.jobs.append(job)
            if len(lane.jobs) == 1:
                self._lanes.append(lane)
            self._changed.notify()
        if len(self._started) < self._threads:
            number = len(self._started)
            thread = threading.Thread(target=self._run, args=(number,), name=f"{self._name}-{number}", daemon=True)
            self._started.append(thread)
            thread.start()

    def take_out(self, lane: Lane) -> tuple[_Job, ...]:
        """The jobs of a lane that have not begun."""
        with self._changed:
            jobs = tuple(lane.jobs)
            lane.jobs.clear()
            if jobs:
                self._lanes.remove(lane)
        return jobs

    async def close(self, within_s: float) -> None:
        """Do what is in the lanes, then end the threads; those that take longer than `within_s` are left behind."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        until = time.monotonic() + within_s
        # Threads tell nobody when they end; this happens once, and mostly at once.
        while any(thread.is_alive() for thread in self._started) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    def _next(self, number: int) -> _Job | None:
        """The next job of the lane whose turn it is; None when there will be no more."""
        with self._changed:
            self._begun.pop(number, None)
            while not self._lanes:
                if self._closing:
                    return None
                self._changed.wait()
            lane = self._lanes.popleft()
            job = lane.jobs.popleft()
            if lane.jobs:
                self._lanes.append(lane)
            self._begun[number] = time.monotonic()
            return job

    def _run(self, number: int) -> None:
        while (job := self._next(number)) is not None:
            try:
                outcome, error = job.work(), None
            except BaseException as raised:  # noqa: BLE001 - it belongs to whoever waits for the job
                outcome, error = None, raised
            try:
                job.loop.call_soon_threadsafe(_settle, job.done, outcome, error)
            except RuntimeError:
                return  # The loop is closed: nobody waits any more.


def _settle(done: "asyncio.Future[Any]", outcome: object, error: BaseException | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(outcome)
    else:
        done.set_exception(error)
