"""Blocks that come straight into places of DRAM: from the NVMe below it."""

from pathlib import Path

from kv_transfer.tiers.backend import FillableBackend
from kv_transfer.tiers.inbound import InboundBlocks
from kv_transfer.tiers.tier import Tier
from tests.worlds.tier_stage import BLOCK, Stage, named, stage

NAMES = [named(i) for i in range(8)]


async def below_alone(b: Stage) -> tuple[InboundBlocks, Tier]:
    """DRAM has lost all that NVMe has."""
    await b.keep(NAMES)
    upper, lower = b.tiers.levels
    upper.forget(NAMES, "test")
    assert isinstance(upper.backend, FillableBackend)
    return InboundBlocks(upper, upper.backend), lower


async def test_what_is_on_disk_comes_up_and_is_counted_as_read(tmp_path: Path) -> None:
    async with stage("both", tmp_path) as b:
        inbound, lower = await below_alone(b)
        await inbound.onboard_from(lower, [*NAMES, named(99)])
        assert set(b.views["dram"]) == set(NAMES)
        assert b.figure("tandem_tier_bytes_total", "nvme", "read") == 8 * BLOCK
        assert inbound.coming == 0
        assert b.good(NAMES, await b.restore(NAMES))


async def test_a_block_that_is_damaged_on_disk_is_forgotten_and_the_others_come(tmp_path: Path) -> None:
    async with stage("both", tmp_path) as b:
        inbound, lower = await below_alone(b)
        (path, *_) = sorted(b.folder.glob("*.kv"))
        data = bytearray(path.read_bytes())
        data[4096 + 4096 + 700] ^= 1  # A byte of the first block.
        path.write_bytes(data)
        await inbound.onboard_from(lower, NAMES)
        assert set(b.views["dram"]) == set(b.views["nvme"]) == set(NAMES[1:])
        assert b.figure("tandem_tier_misses_total", "nvme", "torn") == 1
        assert b.figure("tandem_tier_bytes_total", "nvme", "read") == 7 * BLOCK
        assert inbound.coming == 0
        await b.keep(NAMES[:1])
        assert b.good(NAMES, await b.restore(NAMES))
