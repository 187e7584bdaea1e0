"""Computes the content words of blocks: the `Hashing` seam, and its form without threads."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from tandem.core.kv import Layout
from tandem.engine.digest import Digester

Blocks = Sequence[memoryview]


class DigestJob(Protocol):
    """A job that hashes blocks. Until it is over, its caller may not give their slots to others."""

    @property
    def over(self) -> "asyncio.Future[None]":
        """A future that is done once the blocks are no longer read."""
        ...

    def words(self) -> list[bytes]:
        """The content words of each block, in order. Only of a job that is over and was not given up."""
        ...

    def give_up(self) -> None:
        """Give up the words, which are no longer wanted: hashing that has not begun never does."""
        ...


class Hashing(Protocol):
    """Computes content words of blocks of one layout. Called on the event loop."""

    def begin(self, blocks: Blocks) -> DigestJob:
        """Begin to hash blocks. The job is already over on return where hashing takes less time than handing it to a
        thread."""
        ...

    def close(self) -> None:
        """Let go of threads when they have done what they were given; what comes later is hashed where it is asked
        for."""
        ...


OpenHashing = Callable[[Layout], Hashing]


async def hashed(hashing: Hashing, blocks: Blocks) -> list[bytes]:
    """The content words of each block, in order. When cancelled, it ends once the blocks are no longer read."""
    job = hashing.begin(blocks)
    try:
        await is_over(job)
    except asyncio.CancelledError:
        job.give_up()
        while not job.over.done():
            with suppress(asyncio.CancelledError):
                await is_over(job)
        raise
    return job.words()


async def is_over(job: DigestJob) -> None:
    """Wait until a job is over; cancelling the caller leaves the job alone."""
    if not job.over.done():
        await asyncio.wait((job.over,))


class DoneJob:
    """`DigestJob` that was over when it began."""

    def __init__(self, words: list[bytes]) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over.set_result(None)
        self._words = words

    def words(self) -> list[bytes]:
        return self._words

    def give_up(self) -> None:
        return None


class InlineHashing:
    """`Hashing` where it is asked for, as on the virtual time of a simulation."""

    def __init__(self, layout: Layout) -> None:
        self._digester = Digester(layout)

    def begin(self, blocks: Blocks) -> DoneJob:
        return DoneJob(self._digester.content_words_each(blocks))

    def close(self) -> None:
        return None
