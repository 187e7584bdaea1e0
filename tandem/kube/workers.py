"""Works off a queue: a fixed number of tasks, each with one key at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from tandem.core.errors import TandemError
from tandem.kube.queue import WorkQueue

K = TypeVar("K")

Work = Callable[[K], Awaitable[float | None]]
"""Brings one key up to date; gives the seconds after which to look again, None for not before it changes."""
OnFailure = Callable[[K, str], None]


class Workers(Generic[K]):
    """`run` ends only by being cancelled. A key that takes longer than `limit_s` has failed, and is tried again."""

    def __init__(
        self, queue: WorkQueue[K], work: Work[K], on_failure: OnFailure[K], *, count: int = 4, limit_s: float = 60.0
    ) -> None:
        self._queue = queue
        self._work = work
        self._on_failure = on_failure
        self._count = count
        self._limit_s = limit_s

    async def run(self) -> None:
        """Work until cancelled. A mistake of ours (any error that is not an operating one) ends the process."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._count):
                tasks.create_task(self._serve(), name=f"worker-{number}")

    async def _serve(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                await self._one(key)
            finally:
                self._queue.done(key)

    async def _one(self, key: K) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                again_s = await self._work(key)
        except TimeoutError:
            self._failed(key, f"not done within {self._limit_s:g} s")
        except TandemError as error:
            self._failed(key, error.message)
        else:
            self._queue.forget(key)
            if again_s is not None:
                self._queue.add_after(key, again_s)

    def _failed(self, key: K, why: str) -> None:
        self._on_failure(key, why)
        self._queue.retry(key)
