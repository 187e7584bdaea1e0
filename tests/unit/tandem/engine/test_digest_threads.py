"""Threads hash blocks; a job that is over reads them no more, whatever became of whoever wanted to know."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from tandem.core.kv import Layout
from tandem.engine.digest import Bytes, Digester
from tandem.engine.digest_threads import INLINE_BYTES, DigestThreads
from tandem.engine.hashing import InlineHashing, hashed

LAYOUT = Layout("test", "plain", "x", 1, 1, 64 << 10, 1, 1)
SMALL = Layout("test", "plain", "x", 1, 1, 4 << 10, 1, 1)


class Gated(Digester):
    """Hashes when it is told to, and says where."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.open = threading.Event()
        self.begun = threading.Event()
        self.by: list[str] = []

    def content_words_each(self, blocks: Sequence[Bytes]) -> list[bytes]:
        self.by.append(threading.current_thread().name)
        self.begun.set()
        assert self.open.wait(30)
        return super().content_words_each(blocks)


def blocks(layout: Layout, count: int) -> list[memoryview]:
    return [memoryview(bytearray([number % 251] * layout.block_bytes)) for number in range(count)]


async def begun(digester: Gated) -> None:
    assert await asyncio.to_thread(digester.begun.wait, 30)


@pytest.mark.parametrize(("layout", "count"), [(LAYOUT, 40), (SMALL, 700), (LAYOUT, 1), (SMALL, 1), (LAYOUT, 0)])
@pytest.mark.parametrize("threads", [1, 3, None])
async def test_the_words_are_those_of_each_block_in_order(layout: Layout, count: int, threads: int | None) -> None:
    hashing, data = DigestThreads(layout, threads), blocks(layout, count)
    assert await hashed(hashing, data) == Digester(layout).content_words_each(data)
    assert await hashed(InlineHashing(layout), data) == await hashed(hashing, data)
    hashing.close()
    assert await hashed(hashing, data) == Digester(layout).content_words_each(data)


async def test_only_what_is_small_is_hashed_on_the_event_loop() -> None:
    digester = Gated(LAYOUT)
    digester.open.set()
    hashing, here = DigestThreads(LAYOUT, 2, digester), threading.current_thread().name
    most = INLINE_BYTES // LAYOUT.block_bytes
    await hashed(hashing, blocks(LAYOUT, most))
    assert digester.by == [here]
    await hashed(hashing, blocks(LAYOUT, 40 * most))
    assert len(digester.by) > 2
    assert here not in digester.by[1:]
    hashing.close()


async def test_the_event_loop_goes_on_and_a_cancelled_wait_lasts_until_nobody_reads() -> None:
    digester = Gated(LAYOUT)
    hashing = DigestThreads(LAYOUT, 1, digester)
    waiting = asyncio.get_running_loop().create_task(hashed(hashing, blocks(LAYOUT, 100)))
    await begun(digester)
    for _ in range(3):
        waiting.cancel()
        await asyncio.sleep(0.01)
        assert not waiting.done()
    digester.open.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(digester.by) == 1, "what had not begun never did"
    hashing.close()


async def test_a_job_that_is_given_up_is_over_when_its_running_part_is() -> None:
    digester = Gated(LAYOUT)
    hashing = DigestThreads(LAYOUT, 1, digester)
    job = hashing.begin(blocks(LAYOUT, 100))
    await begun(digester)
    job.give_up()
    await asyncio.sleep(0.01)
    assert not job.over.done()
    digester.open.set()
    async with asyncio.timeout(100):
        await job.over
    hashing.close()
