"""Demotion where the lower tier cannot hold what the upper one has: everything is written, nothing for ever."""

import asyncio
from pathlib import Path
from typing import NoReturn

import pytest

from kv_transfer.tiers.memory_tiers import memory_tiers
from kv_transfer.tiers.settings import TierSettings
from tandem.core.metrics import NullMeter
from tandem.process.system import SystemClock
from tests.contract.block_space import block_layout
from tests.worlds.tier_stage import BLOCK, Pool, named

UPPER, LOWER = 12, 5


class CountingMeter(NullMeter):
    """Bytes written to NVMe."""

    def __init__(self) -> None:
        self.written = 0.0

    def add(self, name: str, value: float = 1.0, *labels: str) -> None:
        if name == "tandem_tier_bytes_total" and labels == ("nvme", "written"):
            self.written += value


async def test_blocks_do_not_push_each_other_out_of_a_lower_tier_that_is_too_small() -> None:
    meter = CountingMeter()
    pool = Pool(block_layout(BLOCK), 2 * UPPER)
    settings = TierSettings(
        dram_bytes=UPPER * BLOCK,
        nvme_dir=Path("/nowhere"),
        nvme_bytes=LOWER * BLOCK,
        segment_bytes=BLOCK,
        write_through=True,
    )
    tiers = memory_tiers(settings, pool, SystemClock(), meter)
    names = [named(index) for index in range(UPPER)]
    async with asyncio.timeout(20.0):
        for name in names:
            tiers.offer(pool.compute([name]))
            await tiers.settle()
    assert set(tiers.snapshot()["dram"]) == set(names)
    assert len(tiers.snapshot()["nvme"]) == LOWER
    assert UPPER <= meter.written / BLOCK <= 2 * UPPER
    tiers.forget(names[:1], "digest")
    written = meter.written
    for tier in tiers.levels[1:]:
        lost = [name for name in names[1:] if name in tier.book][:2]
        tier.forget(lost, "digest")
    async with asyncio.timeout(20.0):
        await tiers.settle()
    assert meter.written > written, "what the lower tier has lost, and has room for, is written again"
    await tiers.close()


async def test_blocks_of_a_tenant_do_not_push_each_other_out_of_its_share_of_the_lower_tier() -> None:
    """The lower tier has room, and this tenant has none: each would be written anew for ever."""
    meter = CountingMeter()
    pool = Pool(block_layout(BLOCK), 2 * UPPER)
    settings = TierSettings(
        dram_bytes=4 * UPPER * BLOCK,
        nvme_dir=Path("/nowhere"),
        nvme_bytes=2 * LOWER * BLOCK,
        segment_bytes=BLOCK,
        tenant_share=0.5,
        write_through=True,
    )
    tiers = memory_tiers(settings, pool, SystemClock(), meter)
    names = [named(index) for index in range(UPPER)]
    async with asyncio.timeout(20.0):
        for name in names:
            tiers.offer(pool.compute([name], "tenant"))
            await tiers.settle()
    assert set(tiers.snapshot()["dram"]) == set(names)
    assert len(tiers.snapshot()["nvme"]) == LOWER
    assert UPPER <= meter.written / BLOCK <= 2 * UPPER
    await tiers.close()


async def test_while_the_lower_tier_takes_nothing_nothing_is_tried_and_what_is_due_is_copied_later() -> None:
    """Else the same blocks would be tried over and over, and the loop would do nothing else."""
    meter = CountingMeter()
    pool = Pool(block_layout(BLOCK), 2 * UPPER)
    settings = TierSettings(
        dram_bytes=UPPER * BLOCK,
        nvme_dir=Path("/nowhere"),
        nvme_bytes=UPPER * BLOCK,
        segment_bytes=BLOCK,
        write_through=True,
    )
    tiers = memory_tiers(settings, pool, SystemClock(), meter)
    upper, lower = tiers.levels
    lower.usable(False, "test")
    names = [named(index) for index in range(3)]
    async with asyncio.timeout(20.0):
        tiers.offer(pool.compute(names))
        await tiers.settle()
    assert set(upper.book.names()) == set(names)
    assert (lower.book.names(), meter.written) == ((), 0.0)
    lower.usable(True, "")
    async with asyncio.timeout(20.0):
        await tiers.settle()
    assert set(lower.book.names()) == set(names)
    await tiers.close()


async def test_a_block_that_has_gone_before_its_turn_does_not_end_all_copying() -> None:
    pool = Pool(block_layout(BLOCK), 2 * UPPER)
    settings = TierSettings(
        dram_bytes=UPPER * BLOCK,
        nvme_dir=Path("/nowhere"),
        nvme_bytes=UPPER * BLOCK,
        segment_bytes=BLOCK,
        write_through=True,
    )
    tiers = memory_tiers(settings, pool, SystemClock(), NullMeter())
    upper, lower = tiers.levels
    lower.usable(False, "test")
    names = [named(index) for index in range(3)]
    async with asyncio.timeout(20.0):
        tiers.offer(pool.compute(names))
        await tiers.settle()
        upper.book.remove(names[0])
        lower.usable(True, "")
        await tiers.settle()
    assert set(lower.book.names()) == set(names[1:])
    await tiers.close()


async def test_a_share_of_dram_is_clean_and_the_rest_is_spared_the_disk() -> None:
    """What DRAM gives up without a copy below is lost and computed again; what it keeps need not wear the disk."""
    meter = CountingMeter()
    pool = Pool(block_layout(BLOCK), 2 * UPPER)
    settings = TierSettings(
        dram_bytes=UPPER * BLOCK,
        nvme_dir=Path("/nowhere"),
        nvme_bytes=4 * UPPER * BLOCK,
        segment_bytes=BLOCK,
        clean_share=0.25,
    )
    tiers = memory_tiers(settings, pool, SystemClock(), meter)
    names = [named(index) for index in range(3 * UPPER)]
    async with asyncio.timeout(20.0):
        for count, name in enumerate(names, 1):
            tiers.offer(pool.compute([name]))
            await tiers.settle()
            assert len(tiers.snapshot()["nvme"]) == max(0, count - 9), "all but three quarters of DRAM"
    assert len(tiers.where(names)) == len(names), "nothing is lost"
    assert meter.written == (len(names) - 9) * BLOCK, "nothing is written twice"
    await tiers.close()


@pytest.mark.parametrize("broken", ["dram", "nvme"])
async def test_one_batch_that_fails_as_none_should_does_not_end_all_copying(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying once ended for ever with the first such batch, while the tiers still said that they take blocks."""
    told = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
    pool = Pool(block_layout(BLOCK), 2 * UPPER)
    settings = TierSettings(
        dram_bytes=UPPER * BLOCK,
        nvme_dir=Path("/nowhere"),
        nvme_bytes=UPPER * BLOCK,
        segment_bytes=BLOCK,
        write_through=True,
    )
    tiers = memory_tiers(settings, pool, SystemClock(), NullMeter())
    backend = next(level.backend for level in tiers.levels if level.tier == broken)
    fault = RuntimeError("the shelf is broken")

    async def fails(*_arguments: object) -> NoReturn:
        monkeypatch.undo()
        raise fault

    monkeypatch.setattr(backend, "write", fails)
    names = [named(index) for index in range(3)]
    async with asyncio.timeout(20.0):
        for name in names:
            tiers.offer(pool.compute([name]))
            await tiers.settle()
        assert told == [fault]
        assert set(tiers.snapshot()[broken]) == set(names[1:])
        for tier in ("dram", "nvme"):
            if names[0] not in tiers.snapshot()[tier]:
                tiers.forget(names[:1], "digest")
                tiers.offer(pool.compute(names[:1]))
                await tiers.settle()
    assert all(set(found) == set(names) for found in tiers.snapshot().values())
    await tiers.close()


async def test_a_copy_that_fails_in_a_way_that_none_should_lets_go_of_the_engines_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks that stay held are never evicted: the engine's pool would shrink with every such failure."""
    pool = Pool(block_layout(BLOCK), 4)
    tiers = memory_tiers(TierSettings(dram_bytes=8 * BLOCK), pool, SystemClock(), NullMeter())

    async def broken(*_: object) -> NoReturn:
        raise RuntimeError("drawn")

    monkeypatch.setattr(tiers.levels[0].backend, "write", broken)
    async with asyncio.timeout(20.0):
        tiers.offer(pool.compute([named(index) for index in range(4)]))
        await tiers.settle()
    assert not pool.held
    assert tiers.snapshot()["dram"] == ()
    await tiers.close()
