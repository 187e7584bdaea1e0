"""A reading whose batches are jobs of a thread pool: all are started at once and reported in order."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from kv_transfer.tiers.backend import BlockRead, BlockReadFailed, Wanted
from kv_transfer.tiers.slot_writer import SlotWriter, call_off
from kv_transfer.tiers.thread_pool import ThreadPool

Outcome = BlockRead | BlockReadFailed
Job = Callable[[SlotWriter], tuple[Outcome, ...]]
"""Done by a thread: reads one batch and lands it. Raises `OSError`."""


class ThreadedReading:
    """`kv_transfer.tiers.backend.Reading` of (blocks, job) pairs.

    `failed` turns the exception that a job raised into a reason. `over` is called with the number of each job that
    will not touch anything any more, even if that is long after the reading was abandoned.
    """

    def __init__(
        self,
        crew: ThreadPool,
        jobs: Sequence[tuple[Sequence[Wanted], Job]],
        stall_s: float,
        failed: Callable[[OSError], str],
        over: Callable[[int], None],
    ) -> None:
        self._thread_pool = crew
        self._lane = crew.lane()
        self._landings = [SlotWriter() for _ in jobs]
        self._batches = [wanted for wanted, _ in jobs]
        self._stall_s = stall_s
        self._failed = failed
        loop = asyncio.get_running_loop()
        self._begun, self._ended, self._left = loop.time(), 0.0, len(jobs)
        self._futures = [self._submit(number, job, over) for number, (_, job) in enumerate(jobs)]

    def _submit(self, number: int, job: Job, over: Callable[[int], None]) -> "asyncio.Future[tuple[Outcome, ...]]":
        landing = self._landings[number]
        future = self._lane.submit(lambda: job(landing))
        future.add_done_callback(self._one_over)
        future.add_done_callback(lambda _: over(number))
        return future

    def _one_over(self, future: "asyncio.Future[tuple[Outcome, ...]]") -> None:
        if not future.cancelled():
            future.exception()  # Looked at, so that asyncio does not report the failure of an abandoned job.
        self._left -= 1
        if not self._left:
            self._ended = future.get_loop().time()

    @property
    def took_s(self) -> float | None:
        """Seconds from the request to the last byte; None until everything has arrived."""
        return self._ended - self._begun if not self._left else None

    async def results(self) -> AsyncGenerator[tuple[Outcome, ...], None]:
        for wanted, future in zip(self._batches, self._futures, strict=True):
            yield await self._result(wanted, future)

    async def _result(
        self, wanted: Sequence[Wanted], future: "asyncio.Future[tuple[Outcome, ...]]"
    ) -> tuple[Outcome, ...]:
        while not future.done():
            done, _ = await asyncio.wait((future,), timeout=self._stall_s)
            if not done and self._thread_pool.busy_for_s() >= self._stall_s:
                return _all_failed(wanted, self._failed(TimeoutError("the disk does not answer")))
        if future.cancelled():
            return _all_failed(wanted, "off")
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, OSError):
            return _all_failed(wanted, self._failed(error))
        raise error

    async def abandon(self) -> None:
        self._lane.clear()
        call_off(self._landings)


def _all_failed(wanted: Sequence[Wanted], reason: str) -> tuple[Outcome, ...]:
    return tuple(BlockReadFailed(each.index, reason) for each in wanted)
