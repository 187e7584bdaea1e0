"""One tier between its book and its shelf: what becomes of what the shelf says."""

from collections.abc import Callable, Sequence

import pytest

from kv_transfer.tiers.backend import Item
from kv_transfer.tiers.index import TierIndex
from kv_transfer.tiers.memory_backend import MemoryBackend, MemoryDisk
from kv_transfer.tiers.memory_tiers import DRAM_PACE
from kv_transfer.tiers.quotas import Quotas
from kv_transfer.tiers.speed import Speed
from kv_transfer.tiers.tier import Tier
from tandem.core.metrics import NullMeter
from tandem.engine.digest import Digester
from tandem.engine.protocol import BlockMemory
from tests.contract.block_space import block_layout
from tests.worlds.tier_stage import BLOCK, Pool, named


class SilentShelf(MemoryBackend):
    """It says nothing of the last block."""

    async def write(
        self, items: Sequence[Item], memory: BlockMemory, staged: Callable[[], None]
    ) -> Sequence[int | str]:
        return (await super().write(items, memory, staged))[:-1]


async def test_a_shelf_that_says_nothing_of_a_block_is_an_error() -> None:
    """Unnoticed, the block would be neither there nor to be had again, and its room lost until the worker ends."""
    pool = Pool(block_layout(BLOCK), 4)
    backend = SilentShelf("dram", 4, Digester(pool.layout), BLOCK, DRAM_PACE, MemoryDisk())
    book, speed = TierIndex(4, Quotas(4), lambda name: False), Speed(1e9, 1e-4, BLOCK)
    level = Tier(backend, book, speed, BLOCK, NullMeter(), lambda tier, stored, removed: None)
    backend.open(level)
    names = [named(number) for number in range(3)]
    pool.compute(names)
    items = [Item(name, "", slot, pool.words(name)) for slot, name in enumerate(names)]
    with pytest.raises(ValueError, match="shorter"):
        await level.keep(items, pool.memory, lambda: None)
    assert book.knows(names[0])
    assert not book.knows(names[2]), "it may be offered again"
