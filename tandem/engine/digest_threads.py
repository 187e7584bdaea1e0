"""Computes content words in threads, so that the event loop continues with what streams."""

import asyncio
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from tandem.core.kv import Layout
from tandem.engine.digest import RELEASING_BYTES, Digester
from tandem.engine.hashing import Blocks, DigestJob, DoneJob

INLINE_BYTES: Final = 512 << 10
"""Up to so many bytes at a time hashing takes less time (some 20 µs) than handing over to a thread."""
_THREADS_MAX: Final = 4
"""Together they read as fast as the memory of most machines gives."""
_PART_BYTES: Final = 2 << 20
"""Blocks are put together up to this size, so that handing over costs a fraction of hashing."""

Part = Future[list[bytes]]


def threads_here() -> int:
    """The number of threads that are of use: one per core of this process, 4 at most."""
    return max(1, min(_THREADS_MAX, len(os.sched_getaffinity(0))))


class ThreadJob:
    """`tandem.engine.hashing.DigestJob` in parts, each of which is done by a thread in 0.2 ms or so."""

    def __init__(self, parts: Sequence[Part]) -> None:
        loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = loop.create_future()
        self._parts = parts
        self._left = len(parts)
        for part in parts:
            part.add_done_callback(lambda _: self._tell(loop))

    def words(self) -> list[bytes]:
        return [words for part in self._parts for words in part.result(timeout=0)]

    def give_up(self) -> None:
        for part in self._parts:
            part.cancel()

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called by the thread of a part that is over."""
        with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            loop.call_soon_threadsafe(self._one_over)

    def _one_over(self) -> None:
        self._left -= 1
        if not self._left:
            self.over.set_result(None)


class DigestThreads:
    """`tandem.engine.hashing.Hashing` by `threads` threads, by default `threads_here()`, started when needed."""

    def __init__(self, layout: Layout, threads: int | None = None, digester: Digester | None = None) -> None:
        self._digester = digester or Digester(layout)
        count = threads_here() if threads is None else threads
        self._threads: ThreadPoolExecutor | None = ThreadPoolExecutor(count, thread_name_prefix="kv-digest")

    def begin(self, blocks: Blocks) -> DigestJob:
        size = self._digester.block_bytes
        if self._threads is None or size * len(blocks) <= INLINE_BYTES:
            return DoneJob(self._digester.content_words_each(blocks))
        step = max(1, _PART_BYTES // size)
        work = self._digester.content_words_each if size > RELEASING_BYTES else self._yielding
        starts = range(0, len(blocks), step)
        return ThreadJob([self._threads.submit(work, blocks[start : start + step]) for start in starts])

    def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)

    def _yielding(self, blocks: Blocks) -> list[bytes]:
        """Small blocks are hashed without letting go of the interpreter, so others get a turn between them."""
        step = max(1, INLINE_BYTES // self._digester.block_bytes)
        words = list[bytes]()
        for start in range(0, len(blocks), step):
            words += self._digester.content_words_each(blocks[start : start + step])
            time.sleep(0)
        return words
