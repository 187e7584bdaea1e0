"""Tiers without disk or threads, on virtual time: how long they take, which simulations rest on."""

from pathlib import Path

import pytest

from kv_transfer.tiers.memory_backend import SimulatedSpeed
from kv_transfer.tiers.memory_tiers import DRAM_PACE, NVME_PACE, memory_tiers
from kv_transfer.tiers.settings import TierSettings
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.metrics import NullMeter
from tests.contract.block_space import block_layout
from tests.worlds.tier_stage import Pool, named

SIZE = 64 << 10
NAMES = [named(number) for number in range(16)]


def restored(settings: TierSettings, dram: SimulatedSpeed, nvme: SimulatedSpeed) -> tuple[float, list[int]]:
    """How long a restore of sixteen blocks takes, and how many are told together."""

    async def main(loop: VirtualLoop) -> tuple[float, list[int]]:
        pool, clock = Pool(block_layout(SIZE), 16), LoopClock(loop)
        tiers = memory_tiers(settings, pool, clock, NullMeter(), dram_pace=dram, nvme_pace=nvme)
        tiers.offer(pool.compute(NAMES))
        await tiers.settle()
        begun, targets = loop.time(), pool.targets(NAMES)
        counts = [len(batch) async for batch in tiers.restore(targets, pool.memory, begun + 60.0)]
        took_s = loop.time() - begun
        await tiers.close()
        return took_s, counts

    return run(main)


@pytest.mark.parametrize(("tier", "rate", "latency_s"), [("dram", 10e9, 100e-6), ("nvme", 3e9, 500e-6)])
def test_simulated_tiers_are_as_fast_as_a_hosts(tier: str, rate: float, latency_s: float) -> None:
    """Those of a common host: with faster ones a simulated fleet brings back what a real one computes, and what is
    concluded from it does not hold."""
    if tier == "dram":
        settings = TierSettings(dram_bytes=16 * SIZE)
    else:
        settings = TierSettings(nvme_dir=Path("/nowhere"), nvme_bytes=16 * SIZE, segment_bytes=SIZE)
    took_s, counts = restored(settings, DRAM_PACE, NVME_PACE)
    assert took_s == pytest.approx(latency_s + 16 * SIZE / rate, rel=0.001)
    assert counts == [16]


def test_a_simulated_tier_tells_what_has_come_every_two_milliseconds() -> None:
    """As a real one does: computing begins before the last block is there."""
    took_s, counts = restored(TierSettings(dram_bytes=16 * SIZE), SimulatedSpeed(SIZE / 0.0004, 0.0), NVME_PACE)
    assert counts == [5, 5, 5, 1]
    assert took_s == pytest.approx(16 * 0.0004, rel=0.001)
