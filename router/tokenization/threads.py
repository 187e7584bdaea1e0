"""Tokenizes long text in threads; the Rust tokenizer releases the interpreter lock while it works."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from router.tokenization.batching import TokenizeBatcher
from tandem.core.errors import TandemError

T = TypeVar("T")


class Threaded:
    """`Tokenizing` with one thread per core that this process may use. A long text waits up to `queue_s` for a
    thread; the bytes of request bodies in hand (`BodyBudget`) bound how many texts wait."""

    def __init__(self, inline_characters: int = 4096, threads: int | None = None, queue_s: float = 10.0) -> None:
        self._inline_characters = inline_characters
        self._queue_s = queue_s
        self._turns = TokenizeBatcher()
        threads = len(os.sched_getaffinity(0)) if threads is None else threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenize")

    async def run(self, work: Callable[[], T], characters: int, within_s: float) -> T:
        if characters <= self._inline_characters:
            return await self._turns.run(work, characters)
        loop = asyncio.get_running_loop()
        began: asyncio.Future[None] = loop.create_future()

        def begin() -> None:
            if not began.done():
                began.set_result(None)

        def carry_out() -> T:
            loop.call_soon_threadsafe(begin)
            return work()

        working = self._threads.submit(carry_out)
        try:
            async with asyncio.timeout(within_s):
                await self._place(began)
                return await asyncio.wrap_future(working)
        except TimeoutError:
            raise TandemError(
                "deadline_exceeded", f"the prompt was not tokenized within {max(0.0, within_s):.1f} s"
            ) from None
        finally:
            # At once, as a thread may be free before the loop turns; one that has begun goes on.
            working.cancel()

    async def _place(self, began: "asyncio.Future[None]") -> None:
        """Wait for a thread. Raises `queue_full`."""
        try:
            async with asyncio.timeout(self._queue_s):
                await began
        except TimeoutError:
            raise TandemError(
                "queue_full",
                f"the prompt waited {self._queue_s:g} s for its turn to be tokenized behind other long ones",
                retry_after_s=1.0,
            ) from None

    def close(self) -> None:
        """Let the running one end; drop those that wait."""
        self._threads.shutdown(wait=False, cancel_futures=True)
