"""Demotion where the lower tier cannot hold what the upper one has: everything is written, nothing for ever."""

import asyncio
from pathlib import Path

from kv_transfer.tiers.memory_tiers import memory_tiers
from kv_transfer.tiers.settings import TierSettings
from tandem.core.metrics import NullMeter
from tandem.service.system import SystemClock
from tests.contract.block_space import block_layout
from tests.contract.tier_stage import BLOCK, Pool, named

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
