"""Blocks that are being hashed while a fetch goes on, fails or is called off, on virtual time: hashing lasts as long
as the test says."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest

from kv_transfer.fetch import Fetcher
from kv_transfer.transport.protocol import PullEvent
from tandem.apps.simulation.loop import LoopClock
from tandem.core.errors import TandemError
from tandem.core.kv import Layout
from tandem.engine.digest import Digester
from tandem.engine.hashing import Blocks
from tests.contract.block_space import FIRST, fetch_job, name_of, ready_lease, remote_kv
from tests.unit.kv_transfer.test_kv_fetch import DEADLINES, LAYOUT, Scripted, ScriptedPull, World, on_virtual_time


class Job:
    """Reads its blocks when it is let go, and never again."""

    def __init__(self, digester: Digester, blocks: Blocks) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.given_up = False
        self._digester = digester
        self._blocks = blocks
        self._words: list[bytes] = []

    def words(self) -> list[bytes]:
        assert not self.given_up
        return self._words

    def give_up(self) -> None:
        self.given_up = True

    def let_go(self) -> None:
        self._words = self._digester.content_words_each(self._blocks)
        self.over.set_result(None)


class Slow:
    """`Hashing` whose jobs end when the test lets them go."""

    def __init__(self, layout: Layout) -> None:
        self._digester = Digester(layout)
        self.jobs: list[Job] = []

    def begin(self, blocks: Blocks) -> Job:
        self.jobs.append(Job(self._digester, blocks))
        return self.jobs[-1]

    def close(self) -> None:
        return None


class Waiting(ScriptedPull):
    """Gives its blocks, and then nothing until it is closed."""

    async def events(self) -> AsyncGenerator[PullEvent, None]:
        with suppress(TandemError):
            async for event in super().events():
                yield event
        await asyncio.Event().wait()


def slow_fetcher(world: World, transport: object) -> tuple[Fetcher, Slow]:
    hashing = Slow(LAYOUT)
    clock = LoopClock(world.loop)
    return Fetcher(world.receiver, [transport], clock, DEADLINES, world.meter, hashing=hashing), hashing  # type: ignore[list-item]


async def jobs(hashing: Slow, count: int) -> None:
    async with asyncio.timeout(1.0):
        while len(hashing.jobs) < count:  # noqa: ASYNC110 - virtual time passes only while everybody sleeps
            await asyncio.sleep(0.001)


def test_blocks_land_in_order_whatever_order_they_are_hashed_in() -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.holder, 3)
        fetcher, hashing = slow_fetcher(world, Scripted(world.holder, 3, "kv_gone"))
        remote = remote_kv(world.holder, world.receiver, ("fake://p0",))
        fetching = asyncio.ensure_future(fetcher.fetch(fetch_job(names, LAYOUT), remote))
        await jobs(hashing, 3)
        for number, landed in ((2, []), (1, []), (0, [0, 1, 2])):
            hashing.jobs[number].let_go()
            await asyncio.sleep(0.001)
            assert list(world.receiver.landed_words) == landed
        report = await fetching
        assert (report.blocks, report.code) == (3, "kv_gone"), "what arrived before the failure is believed"
        assert world.receiver.ended == [(7, "kv_gone: as told", ())]

    on_virtual_time(main)


@pytest.mark.parametrize("ending", ["cancelled", "silent"])
def test_slots_stay_in_quarantine_until_nobody_reads_them(ending: str) -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.holder, 4)
        scripted = Scripted(world.holder, 3, "transfer_failed", pull=Waiting)
        fetcher, hashing = slow_fetcher(world, scripted)
        remote = remote_kv(world.holder, world.receiver, ("fake://p0",))
        fetching = asyncio.ensure_future(fetcher.fetch(fetch_job(names, LAYOUT), remote))
        await jobs(hashing, 3)
        hashing.jobs[0].let_go()
        await asyncio.sleep(0.001)
        slots = tuple(target.slot for target in fetch_job(names, LAYOUT).targets)
        if ending == "cancelled":
            fetching.cancel()
            await asyncio.wait((fetching,))
        else:
            await asyncio.sleep(30.0)
        (_, _, late) = world.receiver.ended[-1]
        assert late == slots[1:], "block 0 is believed, the others are not and may still be read"
        assert world.receiver.freed == []
        assert all(job.given_up for job in hashing.jobs[1:])
        hashing.jobs[1].let_go()
        await asyncio.sleep(1.0)
        assert world.receiver.freed == []
        hashing.jobs[2].let_go()
        await asyncio.wait((fetching,))
        await fetcher.close()
        assert world.receiver.freed == [slots[1:]]
        assert list(world.receiver.landed_words) == [0], "nothing lands after the end"

    on_virtual_time(main)


def test_a_damaged_block_ends_a_fetch_that_waits_for_prefill_at_once() -> None:
    async def main(world: World) -> None:
        names = tuple(name_of(i) for i in range(3))
        world.holder.lease("lease", names)
        handle = world.holder.complete("lease", 0)
        world.holder.memory.block(handle.slot)[5] ^= 1
        fetcher, hashing = slow_fetcher(world, world.pulling)
        began = world.loop.time()
        fetching = asyncio.ensure_future(
            fetcher.fetch(fetch_job(names, LAYOUT), remote_kv(world.holder, world.receiver, (world.address,)))
        )
        await jobs(hashing, 1)
        hashing.jobs[0].let_go()
        report = await fetching
        assert report.code == "kv_corrupt"
        assert world.loop.time() - began < DEADLINES.transfer_progress_s / 2
        assert world.meter.added["tandem_kv_blocks_refused_total", "digest"] == 1
        assert not world.receiver.landed_words
        await fetcher.close()
        world.settled()

    on_virtual_time(main)


def test_a_whole_fetch_ends_when_the_last_block_is_believed() -> None:
    async def main(world: World) -> None:
        names = ready_lease(world.holder, 2)
        fetcher, hashing = slow_fetcher(world, world.pulling)
        remote = remote_kv(world.holder, world.receiver, (world.address,))
        fetching = asyncio.ensure_future(fetcher.fetch(fetch_job(names, LAYOUT), remote))
        await jobs(hashing, 1)
        await asyncio.sleep(0.5)
        assert not fetching.done()
        for job in hashing.jobs:
            job.let_go()
        report = await fetching
        assert (report.blocks, report.reason, report.first) == (2, None, FIRST)
        assert not world.holder.leases, "the holder is acknowledged"
        await fetcher.close()

    on_virtual_time(main)
