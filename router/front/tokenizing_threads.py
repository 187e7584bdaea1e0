"""Tokenizing long text in threads; the Rust tokenizer lets go of the interpreter while it works."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from router.front.tokenizing_turns import Turns
from tandem.core.errors import TandemError

T = TypeVar("T")


class Threaded:
    """`Tokenizing` with a bounded number of long texts in hand."""

    def __init__(self, inline_characters: int = 4096, threads: int = 1, waiting_max: int = 64) -> None:
        self._inline_characters = inline_characters
        self._waiting_max = waiting_max
        self._waiting = 0
        self._turns = Turns()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenize")

    async def run(self, work: Callable[[], T], characters: int, within_s: float) -> T:
        if characters <= self._inline_characters:
            return await self._turns.run(work, characters)
        if self._waiting >= self._waiting_max:
            raise TandemError(
                "queue_full", f"{self._waiting} long prompts are waiting to be tokenized", retry_after_s=1.0
            )
        self._waiting += 1
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            raise TandemError(
                "deadline_exceeded", f"the prompt was not tokenized within {max(0.0, within_s):.1f} s"
            ) from None
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Let the running one end; drop those that wait."""
        self._threads.shutdown(wait=False, cancel_futures=True)
