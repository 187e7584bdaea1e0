"""Deadlines of requests, and bounds on how long each request may wait for a place or for its KV. Pure: no clock."""

import heapq
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from math import inf
from typing import Final, Generic, Protocol, TypeVar

from tandem.engine.protocol import EngineRequest

_ENTRIES_SPARE: Final = 1024


class Wait(Enum):
    """The resource that a request waits for. `PLACE`: a place in the batch, blocks of its own, or its turn to have
    its images read. `KV`: the request has blocks, and their content is being fetched. `NOTHING`: the request is being
    computed or has been, or its images are being read."""

    PLACE = "place"
    KV = "kv"
    NOTHING = "nothing"


class TimedRequest(Protocol):
    """A request that has deadlines. `waits_since` is when its present wait began; `waits_for_prefill` tells whether
    another worker computes its prompt and is not known to be done; `begun` whether its client has received some of
    the output."""

    @property
    def work(self) -> EngineRequest: ...
    @property
    def work_id(self) -> int: ...
    @property
    def wait(self) -> Wait: ...
    @property
    def waits_since(self) -> float: ...
    @property
    def waits_for_prefill(self) -> bool: ...
    @property
    def begun(self) -> bool: ...


TimedRequestT = TypeVar("TimedRequestT", bound=TimedRequest)


def _never(_work_id: int) -> bool:
    return False


class RequestDeadlines(Generic[TimedRequestT]):
    """A heap of the times at which requests may be due. An entry that no longer holds is detected when its time
    comes.

    A request may wait `queue_s` for its place and `kv_s` for the content of its blocks, both counted from the last
    time at which prompts ahead of it made progress (`moved`). While `fetched(work_id)` says that a fetch brings its
    blocks, the bounds of the fetch apply. A request whose prompt is computed on another worker waits for as long as
    its router does, because the router follows the progress of the prefill and a place here would be of no use yet. A
    request whose output has begun waits for a place until the deadline of the request. A request that is being
    computed has that deadline alone: whether the engine makes progress is not known here.
    """

    def __init__(
        self,
        jobs: Mapping[int, TimedRequestT],
        queue_s: float,
        kv_s: float = inf,
        fetched: Callable[[int], bool] = _never,
    ) -> None:
        self._jobs = jobs
        self._bounds = {Wait.PLACE: queue_s, Wait.KV: kv_s, Wait.NOTHING: inf}
        self._fetched = fetched
        self._moved = -inf
        self._moments: list[tuple[float, int]] = []
        self._armed: dict[int, float] = {}
        """The time at which the wait of each work is checked next."""

    def watch(self, job: TimedRequestT, now: float) -> None:
        """A work begins, and waits."""
        if len(self._moments) > 4 * len(self._jobs) + _ENTRIES_SPARE:
            self._moments = [entry for entry in self._moments if entry[1] in self._jobs]
            heapq.heapify(self._moments)
            self._armed = {work_id: at for work_id, at in self._armed.items() if work_id in self._jobs}
        heapq.heappush(self._moments, (job.work.deadline, job.work_id))
        self.watch_wait(job)

    def watch_wait(self, job: TimedRequestT) -> None:
        """A work waits for something else from now on."""
        self._arm(self._until(job), job.work_id)

    def moved(self, now: float) -> None:
        """Some prompt is being computed: what waits for a place behind it does not stand still."""
        self._moved = now

    def passed(self, now: float) -> Iterator[tuple[TimedRequestT, str]]:
        """Works that are due, each with the reason."""
        while self._moments and self._moments[0][0] <= now:
            at, work_id = heapq.heappop(self._moments)
            if self._armed.get(work_id) == at:
                del self._armed[work_id]
            job = self._jobs.get(work_id)
            if job is None:
                continue
            if now >= job.work.deadline:
                yield job, "the request's deadline passed on the worker"
            elif now < (until := self._until(job)):
                self._arm(until, work_id)
            elif job.wait is Wait.PLACE:
                yield job, f"waited {now - job.waits_since:.1f} s for a place on the worker"
            elif self._fetched(work_id):
                self._arm(now + self._bounds[Wait.KV], work_id)
            else:
                yield job, f"waited {now - job.waits_since:.1f} s for its KV blocks"

    def next(self) -> float:
        """The next moment to look; infinity for never."""
        while self._moments and self._moments[0][1] not in self._jobs:
            heapq.heappop(self._moments)
        return self._moments[0][0] if self._moments else inf

    def _until(self, job: TimedRequestT) -> float:
        if job.waits_for_prefill or (job.begun and job.wait is Wait.PLACE):
            return inf
        return max(job.waits_since, self._moved) + self._bounds[job.wait]

    def _arm(self, until: float, work_id: int) -> None:
        """Keep one entry for the wait of a request. An entry that comes up too early is armed again."""
        if until < self._armed.get(work_id, inf):
            self._armed[work_id] = until
            heapq.heappush(self._moments, (until, work_id))
