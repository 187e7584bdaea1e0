"""What is wrong with a block in DRAM is noticed before its tokens are used."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kv_transfer.tiers.backend import BlockRead, Item, Wanted
from kv_transfer.tiers.dram import DramBackend
from kv_transfer.tiers.local import LocalTiers
from kv_transfer.tiers.memory_backend import MemoryDisk
from kv_transfer.tiers.passes import PIECE_BYTES
from kv_transfer.tiers.protocol import Lost, Restored
from tandem.process.metrics import PrometheusMeter
from tandem.process.system import SystemClock
from tests.contract.block_space import block_layout, content
from tests.worlds.tier_stage import BLOCK, Pool, Stage, named, settings_for

NAMES = [named(i) for i in range(8)]


@asynccontextmanager
async def dram(folder: Path, block_bytes: int = BLOCK) -> AsyncGenerator[tuple[Stage, DramBackend], None]:
    """DRAM alone, and its shelf, into whose memory a test can reach."""
    pool, meter, clock = Pool(block_layout(block_bytes), 16), PrometheusMeter(), SystemClock()
    settings = settings_for("dram", 16, folder)
    backend = DramBackend(16, pool.layout, 2, settings.stall_s)
    tiers = LocalTiers(pool, (backend,), clock, meter, settings)
    tiers.open()
    try:
        yield Stage("dram", pool, tiers, meter, MemoryDisk(), folder), backend
    finally:
        await tiers.close()
    assert not pool.held


def place_of(b: Stage, name: bytes) -> int:
    copy = b.tiers.levels[0].book.find(name)
    assert copy is not None
    assert copy.place is not None
    return copy.place


@pytest.mark.parametrize("at", [0, 777, BLOCK - 1])
async def test_a_byte_that_flipped_in_dram_is_a_miss_and_forgotten(tmp_path: Path, at: int) -> None:
    async with dram(tmp_path) as (b, backend):
        await b.keep(NAMES)
        assert backend.memory is not None
        backend.memory.block(place_of(b, NAMES[2]))[at] ^= 16
        outcomes = await b.restore(NAMES)
        assert outcomes[2] == Lost(2, "digest")
        assert all(isinstance(outcome, Restored) for number, outcome in enumerate(outcomes) if number != 2)
        assert b.figure("tandem_tier_misses_total", "dram", "digest") == 1
        assert len(b.tiers.where(NAMES)) == 2
        await b.keep(NAMES[2:3])
        assert b.good(NAMES, await b.restore(NAMES))


async def test_a_byte_that_flips_in_any_piece_of_a_large_block_is_noticed(tmp_path: Path) -> None:
    size = 3 * PIECE_BYTES
    async with dram(tmp_path, size) as (b, backend):
        await b.keep(NAMES[:4])
        assert backend.memory is not None
        for number in range(3):
            backend.memory.block(place_of(b, NAMES[number]))[number * PIECE_BYTES + 5] ^= 1
        outcomes = await b.restore(NAMES[:4])
        assert outcomes[:3] == [Lost(number, "digest") for number in range(3)]
        assert isinstance(outcomes[3], Restored)
        assert b.landed(3) == content(NAMES[3], size)


async def test_a_block_that_was_damaged_before_it_was_copied_never_comes_back(tmp_path: Path) -> None:
    async with dram(tmp_path) as (b, _):
        offers = b.pool.compute(NAMES)
        b.pool.memory.block(3)[9] ^= 4
        b.tiers.offer(offers)
        await b.tiers.settle()
        assert len(b.tiers.where(NAMES)) == 3
        lost = (await b.restore(NAMES))[3]
        assert lost == Lost(3, "absent")
        assert b.figure("tandem_tier_dropped_total", "dram", "digest") == 1
        await b.keep(NAMES)
        assert b.good(NAMES, await b.restore(NAMES))


async def test_a_whole_block_in_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    async with dram(tmp_path) as (b, _):
        await b.keep(NAMES)
        book = b.tiers.levels[0].book
        zero, one = place_of(b, NAMES[0]), place_of(b, NAMES[1])
        assert book.move(NAMES[0], one)
        assert book.move(NAMES[1], zero)
        outcomes = await b.restore(NAMES)
        assert outcomes[:2] == [Lost(0, "digest"), Lost(1, "digest")]
        assert all(isinstance(outcome, Restored) for outcome in outcomes[2:])


@pytest.mark.parametrize("flipped", [False, True])
async def test_a_place_that_somebody_else_filled_is_compared_with_its_words(tmp_path: Path, flipped: bool) -> None:
    async with dram(tmp_path) as (b, backend):
        level, name = b.tiers.levels[0], NAMES[0]
        await b.keep([name])
        b.tiers.forget([name], "test")
        assert level.reserve(name, "")
        place = backend.take()
        assert backend.memory is not None
        backend.memory.block(place)[:] = content(name, BLOCK)
        backend.filled(place, name, b.pool.words(name))
        level.settle(name, place)
        backend.memory.block(place)[1] ^= int(flipped)
        outcomes = await b.restore([name])
        assert outcomes == [Lost(0, "digest")] if flipped else b.good([name], outcomes)


def shelf_of(blocks: int, size: int, threads: int) -> tuple[DramBackend, Pool]:
    """A shelf by itself."""
    pool = Pool(block_layout(size), 2)
    return DramBackend(blocks, pool.layout, threads, 5.0), pool


@pytest.mark.parametrize(
    ("size", "count", "threads", "told"),
    [
        (64 << 10, 8, 2, [4, 4]),
        (64 << 10, 32, 2, [8, 8, 8, 8]),
        (1 << 20, 64, 1, [16, 16, 16, 16]),
    ],
    ids=["no less than is worth a thread", "two turns of every thread", "16 MiB at most"],
)
async def test_a_restore_is_shared_among_all_threads_and_told_as_it_comes(
    size: int, count: int, threads: int, told: list[int]
) -> None:
    """With one share the other threads have nothing to do; with few the first blocks come as late as the last."""
    backend, pool = shelf_of(1, size, threads)
    pool.compute(NAMES[:1])
    (place,) = await backend.write([Item(NAMES[0], "", 0, pool.words(NAMES[0]))], pool.memory, lambda: None)
    assert isinstance(place, int)
    wanted = [Wanted(index, NAMES[0], place, 1) for index in range(count)]
    batches = [batch async for batch in backend.read(wanted, pool.memory).results()]
    assert [len(batch) for batch in batches] == told
    assert [outcome for batch in batches for outcome in batch] == [
        BlockRead(index, pool.words(NAMES[0])) for index in range(count)
    ]
    await backend.close(10.0)


async def test_a_damaged_block_takes_no_place() -> None:
    """Else every one costs a block of DRAM for good, until there is none for what is whole."""
    backend, pool = shelf_of(1, BLOCK, 1)
    pool.compute(NAMES[:2])
    pool.memory.block(0)[9] ^= 4
    damaged, whole = (Item(name, "", slot, pool.words(name)) for slot, name in enumerate(NAMES[:2]))
    for _ in range(2):
        assert await backend.write([damaged], pool.memory, lambda: None) == ["digest"]
    (place,) = await backend.write([whole], pool.memory, lambda: None)
    assert isinstance(place, int)
    assert backend.words(place) == whole.words
    backend.free(place)
    assert await backend.write([whole], pool.memory, lambda: None) == [place], "one that is free is used again"
    await backend.close(10.0)
