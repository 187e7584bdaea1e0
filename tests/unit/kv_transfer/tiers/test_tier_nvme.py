"""Whatever happens to the disk or to what lies on it is a miss with a reason, and passes."""

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kv_transfer.tickets import Keyring, TicketKey
from kv_transfer.tiers.backend import Item, Record
from kv_transfer.tiers.disk import SystemDisk, aligned_buffer
from kv_transfer.tiers.local import LocalTiers
from kv_transfer.tiers.mac import Seals, available
from kv_transfer.tiers.memory_backend import MemoryDisk
from kv_transfer.tiers.nvme import NvmeBackend
from kv_transfer.tiers.protocol import Lost, Pinning, Restored
from kv_transfer.tiers.record import ALIGN, shape_of
from tandem.core.entropy import SeededEntropy
from tandem.core.kv import Layout
from tandem.engine.digest import Digester
from tandem.engine.memory import HostMemory
from tandem.process.metrics import PrometheusMeter
from tandem.process.system import SystemClock
from tests.contract.block_space import block_layout, content
from tests.worlds.failing_disk import FailingDisk
from tests.worlds.tier_stage import (
    BLOCK,
    KEYRING,
    ROOT,
    SEGMENT,
    STRIDE,
    Pool,
    Stage,
    named,
    settings_for,
    stage,
    until,
)

NAMES = [named(i) for i in range(8)]


@asynccontextmanager
async def failing(
    folder: Path, blocks: int = 32, layout: Layout | None = None, **changes: object
) -> AsyncGenerator[tuple[Stage, FailingDisk], None]:
    """NVMe alone, over a disk that fails when told to."""
    settings = settings_for("nvme", blocks, folder, **{"stall_s": 30.0, **changes})
    meter, clock, disk = PrometheusMeter(), SystemClock(), FailingDisk(folder)
    pool = Pool(layout or block_layout(BLOCK), 64)
    shape, seals = shape_of(pool.layout, ROOT), Seals(KEYRING)
    backend = NvmeBackend(disk, shape, Digester(pool.layout), seals, settings, clock, SeededEntropy(1), meter)
    tiers = LocalTiers(pool, (backend,), clock, meter, settings)
    tiers.open()
    made = Stage("nvme", pool, tiers, meter, MemoryDisk(), folder)
    tiers.watch(made.told)
    try:
        await until(lambda: tiers.usable)
        yield made, disk
    finally:
        disk.going.set()
        await tiers.close()
    assert not pool.held
    assert disk.open_files == 0, "a file is still open"


def files(b: Stage) -> list[Path]:
    return sorted(b.folder.glob("*.kv"))


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


# ---- what lies on the disk --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "reason"),
    [(4096 + 60, "forged"), (4096 + 4096 + 700, "torn"), (4096 + 1, "torn"), (4096 + 8, "forged")],
    ids=["head", "body", "magic", "length"],
)
async def test_a_changed_record_is_a_miss_and_forgotten(tmp_path: Path, at: int, reason: str) -> None:
    async with stage("nvme", tmp_path) as b:
        await b.keep(NAMES)
        flip(files(b)[0], at)
        first, *others = await b.restore(NAMES)
        assert first == Lost(0, reason)
        assert not any(isinstance(outcome, Lost) for outcome in others)
        assert b.figure("tandem_tier_misses_total", "nvme", reason) == 1
        assert b.tiers.where(NAMES) == ()
        await b.keep(NAMES[:1])
        assert b.good(NAMES, await b.restore(NAMES))


async def test_records_that_changed_places_are_misses(tmp_path: Path) -> None:
    async with stage("nvme", tmp_path) as b:
        await b.keep(NAMES)
        path = files(b)[0]
        data = bytearray(path.read_bytes())
        one, two = slice(4096, 4096 + STRIDE), slice(4096 + STRIDE, 4096 + 2 * STRIDE)
        data[one], data[two] = data[two], data[one]
        path.write_bytes(data)
        outcomes = await b.restore(NAMES)
        assert outcomes[:2] == [Lost(0, "forged"), Lost(1, "forged")]
        assert all(not isinstance(outcome, Lost) for outcome in outcomes[2:])


async def test_a_block_that_was_damaged_in_memory_is_not_written(tmp_path: Path) -> None:
    async with stage("nvme", tmp_path) as b:
        offers = b.pool.compute(NAMES)
        b.pool.memory.block(3)[9] ^= 4
        b.tiers.offer(offers)
        await b.tiers.settle()
        assert len(b.tiers.where(NAMES)) == 3
        assert b.figure("tandem_tier_dropped_total", "nvme", "digest") == 1
        assert b.tiers.where(NAMES[4:]) == ("nvme",) * 4


async def test_a_file_cut_short_loses_what_was_beyond(tmp_path: Path) -> None:
    async with stage("nvme", tmp_path) as b:
        await b.keep(NAMES)
        os.truncate(files(b)[0], 4096 + 3 * STRIDE + 4096)
        outcomes = await b.restore(NAMES)
        assert outcomes[3:] == [Lost(index, "truncated") for index in range(3, 8)]
    async with stage("nvme", tmp_path) as b:
        assert b.tiers.where(NAMES) == ("nvme",) * 4
        fourth = await b.restore(NAMES[3:4])
        assert fourth == [Lost(0, "truncated")]


async def test_forged_heads_are_not_believed_at_the_start(tmp_path: Path) -> None:
    async with stage("nvme", tmp_path) as b:
        await b.keep(NAMES)
        path = files(b)[0]
    flip(path, 4096 + STRIDE + 30)
    async with stage("nvme", tmp_path) as b:
        assert b.tiers.where(NAMES) == ("nvme",)
        assert b.figure("tandem_tier_found_total", "forged") == 1
        assert b.figure("tandem_tier_found_total", "kept") == 7


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"keyring": Keyring(TicketKey("k2", b"another key of enough bytes"))}, "segment_other_key"),
        ({"keyring": Keyring(TicketKey("k1", b"other bytes under the same name"))}, "segment_forged"),
        ({"layout": block_layout(BLOCK, packing="other", block_tokens=16)}, "segment_foreign"),
        ({"root": b"another model..."}, "segment_foreign"),
    ],
    ids=["key", "secret", "layout", "model"],
)
async def test_segments_of_others_are_ignored_counted_and_the_first_to_go(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    async with stage("nvme", tmp_path, blocks=32) as b:
        await b.keep([named(i, "old") for i in range(24)])
    old = files(b)
    async with stage("nvme", tmp_path, blocks=32, **changes) as b:  # type: ignore[arg-type]
        assert b.tiers.snapshot() == {"nvme": ()}
        assert b.figure("tandem_tier_found_total", reason) == len(old) == 3
        many = [named(i) for i in range(32)]
        await b.keep(many)
        assert len(b.tiers.where(many)) == 32
        assert not set(old) & set(files(b))
        assert len(files(b)) * SEGMENT <= 5 * SEGMENT
    async with stage("nvme", tmp_path, blocks=32, **changes) as b:  # type: ignore[arg-type]
        assert len(b.tiers.where(many)) == 32, "a segment of ours went with theirs"


async def test_a_rotated_key_still_reads_what_the_old_one_wrote(tmp_path: Path) -> None:
    async with stage("nvme", tmp_path) as b:
        await b.keep(NAMES)
    rotated = Keyring(TicketKey("k2", b"another key of enough bytes"), KEYRING.current)
    async with stage("nvme", tmp_path, keyring=rotated) as b:
        assert b.good(NAMES, await b.restore(NAMES))


async def test_a_segment_under_another_number_is_ignored(tmp_path: Path) -> None:
    """A file that was put back from a copy, say: its number is its age, and what its records are called by."""
    async with stage("nvme", tmp_path) as b:
        await b.keep(NAMES)
        old, *_ = files(b)
    old.rename(old.with_name(f"{int(old.stem, 16) + 4:016x}.kv"))
    async with stage("nvme", tmp_path) as b:
        assert b.tiers.where(NAMES) == ()
        assert b.figure("tandem_tier_found_total", "segment_swapped") == 1


async def test_other_files_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "worker.2f.1"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / f"{9:016x}.kv").write_bytes(b"not a segment")
    async with stage("nvme", tmp_path) as b:
        await b.keep(NAMES)
        assert b.good(NAMES, await b.restore(NAMES))
        assert b.figure("tandem_tier_found_total", "segment_damaged") == 1
    assert (folder / "notes.txt").read_text() == "mine"


async def test_what_is_used_survives_the_segment_it_was_in(tmp_path: Path) -> None:
    async with stage("nvme", tmp_path, blocks=32) as b:
        await b.keep([named(i) for i in range(8)])
        hot = [named(2), named(5)]
        for start in range(8, 80, 8):
            assert b.good(hot, await b.restore(hot))
            await b.keep([named(i) for i in range(start, start + 8)])
        assert b.good(hot, await b.restore(hot))
        assert not b.tiers.where([named(0)])
        assert len(files(b)) <= 5


async def test_a_tier_made_smaller_keeps_the_newest_and_goes_on(tmp_path: Path) -> None:
    """After a restart with a smaller `nvme_bytes`: else the disk has more than it may, and takes nothing any more."""
    many = [named(i) for i in range(64)]
    async with stage("nvme", tmp_path, blocks=64) as b:
        await b.keep(many)
    async with stage("nvme", tmp_path, blocks=32) as b:
        assert set(b.tiers.snapshot()["nvme"]) == set(many[32:])
        assert len(files(b)) <= 5
        more = [named(i, "more") for i in range(32)]
        await b.keep(more)
        assert b.good(more, await b.restore(more))
        assert len(files(b)) <= 5


async def test_after_a_kill_all_that_was_written_is_found_again(tmp_path: Path) -> None:
    """The segment that was made ahead has nothing in it: it must not stand in the way of an older one that has."""
    killed, again = tmp_path / "killed", tmp_path / "again"
    async with stage("nvme", killed, blocks=32) as b:
        await b.keep([named(i) for i in range(32)])
        await until(lambda: len(files(b)) == 5)
        shutil.copytree(killed, again)
    async with stage("nvme", again, blocks=32) as b:
        assert set(b.tiers.snapshot()["nvme"]) == {named(i) for i in range(32)}


async def test_a_closed_tier_leaves_neither_threads_nor_an_empty_file(tmp_path: Path) -> None:
    """Threads that stayed would write on into a directory that another process has by then."""
    before = set(threading.enumerate())
    async with stage("nvme", tmp_path) as b:
        await b.keep(NAMES)
        await until(lambda: len(files(b)) == 2)  # One of them ahead of need.
        assert b.good(NAMES, await b.restore(NAMES))
        names = {thread.name.rpartition("-")[0] for thread in set(threading.enumerate()) - before}
        assert names == {"tier-read", "tier-write"}
    assert set(threading.enumerate()) <= before
    assert len(files(b)) == 1


async def test_what_a_file_had_before_is_never_found_again(tmp_path: Path) -> None:
    async with stage("nvme", tmp_path, blocks=32) as b:
        for start in range(0, 80, 8):
            await b.keep([named(i) for i in range(start, start + 8)])
        await b.keep([named(80), named(81)])  # What follows in their file is what it had before.
        kept = set(b.tiers.snapshot()["nvme"])
        assert len(files(b)) <= 5
        last = files(b)[-2]
        before = last.read_bytes()[4096 + 4 * STRIDE :][: 4 * STRIDE]
        assert before[:4] == b"TdKv", "the file was not written again"
    async with stage("nvme", tmp_path, blocks=32) as b:
        await until(lambda: b.tiers.usable)
        assert set(b.tiers.snapshot()["nvme"]) == kept
        assert all(b.figure("tandem_tier_found_total", reason) == 0 for reason in ("forged", "torn", "empty"))
        names = sorted(kept)
        assert b.good(names, await b.restore(names))


async def test_after_a_key_was_rotated_what_a_file_had_before_is_not_taken_for_forged(tmp_path: Path) -> None:
    """An operator would look for an intruder: what the old key sealed looks like what somebody else wrote."""
    async with stage("nvme", tmp_path, blocks=32) as b:
        await b.keep([named(i) for i in range(32)])
    rotated = Keyring(TicketKey("k2", b"another key of enough bytes"), KEYRING.current)
    async with stage("nvme", tmp_path, blocks=32, keyring=rotated) as b:
        for start in range(40, 56, 8):
            await b.keep([named(i) for i in range(start, start + 8)])
        await b.keep([named(80), named(81)])
        kept = set(b.tiers.snapshot()["nvme"])
    async with stage("nvme", tmp_path, blocks=32, keyring=rotated) as b:
        assert set(b.tiers.snapshot()["nvme"]) == kept
        assert all(b.figure("tandem_tier_found_total", reason) == 0 for reason in ("forged", "torn"))


async def test_a_file_that_is_gone_is_not_missed(tmp_path: Path) -> None:
    async with stage("nvme", tmp_path, blocks=32) as b:
        for start in range(0, 48, 8):
            await b.keep([named(i) for i in range(start, start + 8)])
            files(b)[0].unlink(missing_ok=True)
        names = [named(i) for i in range(40, 48)]
        assert b.tiers.usable
        assert len(b.tiers.where(names)) == 8


async def test_a_file_that_is_being_read_is_not_written_again(tmp_path: Path) -> None:
    async with failing(tmp_path) as (b, disk):
        await b.keep(NAMES)
        targets = b.pool.targets(NAMES)
        disk.reading.clear()
        restoring = asyncio.ensure_future(_all(b.tiers.restore(targets, b.pool.memory, SystemClock().now() + 5.0)))
        await until(lambda: disk.reads_waiting > 0)
        b.tiers.forget(NAMES, "test")  # Nothing of it has to be kept.
        first = files(b)[0]
        for start in range(8, 48, 8):
            await b.keep([named(i) for i in range(start, start + 8)])
        await until(lambda: not first.exists())
        disk.reading.set()
        assert b.good(NAMES, await restoring)


async def _all(batches: AsyncGenerator[tuple[Restored | Lost, ...], None]) -> list[Restored | Lost]:
    return [outcome async for batch in batches for outcome in batch]


async def test_a_second_process_does_not_get_the_same_directory(tmp_path: Path) -> None:
    async with stage("nvme", tmp_path) as b:
        await b.keep(NAMES)
        async with stage("nvme", tmp_path, usable=False) as other:
            assert not other.tiers.usable
            other.tiers.offer(other.pool.compute(NAMES))
            await other.tiers.settle()
            assert other.tiers.where(NAMES) == ()
        assert b.good(NAMES, await b.restore(NAMES))


# ---- the disk itself --------------------------------------------------------------------------------------------


TAKES_NO_MORE = pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.ENOSPC, "disk_full"), (errno.EROFS, "read_only"), (errno.EFBIG, "disk_full")],
)


@TAKES_NO_MORE
async def test_a_disk_that_takes_no_more_is_still_read_and_tried_again(
    tmp_path: Path, code: int, reason: str
) -> None:
    async with failing(tmp_path) as (b, disk):
        await b.keep(NAMES)
        disk.fail = {"write": code, "create": code}
        await b.keep([named(20)])
        assert b.figure("tandem_tier_dropped_total", "nvme", reason) == 1
        assert b.good(NAMES, await b.restore(NAMES))
        disk.fail = {}
        await until(lambda: b.tiers.usable)
        await b.keep([named(20)])
        assert b.tiers.where([named(20)])


async def test_a_disk_with_less_room_than_promised_gives_up_the_oldest(tmp_path: Path) -> None:
    async with failing(tmp_path, blocks=64) as (b, disk):
        await b.keep([named(i) for i in range(24)])
        create, disk_create = disk._disk.create, 0

        def full_once(name: str, size: int) -> object:
            nonlocal disk_create
            disk_create += 1
            if disk_create <= 2:  # Ahead of need, and then.
                raise OSError(errno.ENOSPC, "full")
            return create(name, size)

        disk._disk.create = full_once  # type: ignore[method-assign, assignment]
        await b.keep([named(i) for i in range(30, 39)])
        assert len(b.tiers.where([named(i) for i in range(30, 39)])) == 9
        assert not b.tiers.where([named(0)])
        assert b.tiers.where([named(8)])
        assert b.figure("tandem_tier_removed_total", "nvme", "disk_full") == 8


async def test_a_disk_that_fails_to_read_is_done_without_and_found_again(tmp_path: Path) -> None:
    async with failing(tmp_path, batch_bytes=1) as (b, disk):
        await b.keep(NAMES)
        disk.fail = {"read": errno.EIO}
        outcomes = await b.restore(NAMES[:2])
        assert outcomes == [Lost(0, "io_error"), Lost(1, "io_error")]
        assert b.tiers.usable
        assert await b.restore(NAMES[2:3]) == [Lost(0, "io_error")], "two are bad luck, a third is a bad disk"
        assert not b.tiers.usable
        assert b.views["nvme"] == {}
        disk.fail = {}
        await until(lambda: b.tiers.usable)
        disk.fail = {"read": errno.EIO}
        assert await b.restore(NAMES[3:5]) == [Lost(0, "io_error"), Lost(1, "io_error")]
        disk.fail = {}
        assert b.tiers.usable, "what was counted before says nothing of the disk as it is now"
        assert b.good(NAMES[5:], await b.restore(NAMES[5:]))


@TAKES_NO_MORE
async def test_a_disk_that_takes_no_more_is_left_alone_until_it_is_time_to_try_again(
    tmp_path: Path, code: int, reason: str
) -> None:
    """Else every block that is offered meets the full disk again, with a warning in the log each time."""
    async with failing(tmp_path, retry_s=3600.0, retry_max_s=3600.0) as (b, disk):
        await b.keep(NAMES)
        disk.fail = {"write": code, "create": code}
        await b.keep([named(20)])
        assert b.figure("tandem_tier_dropped_total", "nvme", reason) == 1
        disk.fail = {}
        for _ in range(20):
            await asyncio.sleep(0)
        assert not b.tiers.usable
        await b.keep([named(21)])
        assert b.figure("tandem_tier_dropped_total", "nvme", "off") == 1
        assert b.good(NAMES, await b.restore(NAMES)), "what is there can still be read"


async def test_a_failed_disk_is_left_alone_until_it_is_time_to_try_again(tmp_path: Path) -> None:
    """Else a disk that is broken is opened and scanned over and over."""
    async with failing(tmp_path, batch_bytes=1, retry_s=3600.0, retry_max_s=3600.0) as (b, disk):
        await b.keep(NAMES)
        disk.fail = {"read": errno.EIO}
        await b.restore(NAMES[:3])
        disk.fail = {}
        await until(lambda: disk.claims > 1, within_s=0.1, strict=False)
        assert disk.claims == 1
        assert not b.tiers.usable


async def test_a_full_disk_that_fails_meanwhile_is_not_used_before_it_was_looked_at_again(
    tmp_path: Path,
) -> None:
    """Its time as a full disk is over first: what it has would be asked for where nothing is known of it."""
    async with failing(tmp_path, batch_bytes=1, retry_s=0.2, retry_max_s=10.0) as (b, disk):
        await b.keep(NAMES)
        disk.fail = {"write": errno.ENOSPC, "create": errno.ENOSPC}
        await b.keep([named(20)])
        assert not b.tiers.usable
        disk.fail = {"read": errno.EIO}
        await b.restore(NAMES[:3])
        disk.fail = {}
        assert not b.tiers.usable
        await until(lambda: b.tiers.usable)
        assert disk.claims == 2
        assert b.good(NAMES, await b.restore(NAMES))


async def test_a_full_disk_is_not_tried_again_once_its_tier_is_closed(tmp_path: Path) -> None:
    """Nobody writes to the directory then, and another process may have it."""
    async with failing(tmp_path, retry_s=0.02) as (b, disk):
        disk.fail = {"write": errno.ENOSPC, "create": errno.ENOSPC}
        await b.keep(NAMES)
        assert not b.tiers.usable
        disk.fail = {}
        await b.tiers.close()
        await until(lambda: b.tiers.usable, within_s=0.2, strict=False)
        assert not b.tiers.usable


async def test_a_disk_that_comes_back_empty_takes_blocks_again(tmp_path: Path) -> None:
    """One that was replaced, say: the segment that was being written to is not there any more."""
    async with failing(tmp_path) as (b, disk):
        await b.keep(NAMES[:4])
        disk.fail = {"write": errno.EIO, "claim": errno.EIO}
        b.tiers.offer(b.pool.compute(NAMES[4:]))
        await b.tiers.settle()
        assert not b.tiers.usable
        for path in files(b):
            path.unlink()
        disk.fail = {}
        await until(lambda: b.tiers.usable)
        async with asyncio.timeout(100.0):
            await b.keep(NAMES)
        assert b.good(NAMES, await b.restore(NAMES))


async def test_of_an_engines_blocks_an_eighth_is_held_for_copying_at_most(tmp_path: Path) -> None:
    """A disk that is slow must not keep requests waiting for blocks."""
    async with failing(tmp_path) as (b, disk):
        disk.going.clear()
        b.tiers.offer(b.pool.compute([named(i) for i in range(64)]))
        await until(lambda: disk.waiting > 0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert 0 < len(b.pool.held) <= b.pool.memory.blocks // 8
        disk.going.set()
        await b.tiers.settle()


async def test_a_bad_place_now_and_then_does_not_close_a_disk(tmp_path: Path) -> None:
    """Disks of that size have some in their lifetime; only several on end mean that the disk is bad."""
    async with failing(tmp_path, batch_bytes=1) as (b, disk):
        await b.keep(NAMES)
        for bad, good in ((NAMES[:2], NAMES[4:5]), (NAMES[2:4], NAMES[5:6])):
            disk.fail = {"read": errno.EIO}
            assert all(isinstance(outcome, Lost) for outcome in await b.restore(bad))
            disk.fail = {}
            assert b.good(good, await b.restore(good))
            assert b.tiers.usable
        assert disk.claims == 1


class _Owner:
    """What stands on a shelf, as its owner knows it."""

    def __init__(self) -> None:
        self.names: dict[bytes, int] = {}
        self.open = False

    def found(self, records: Sequence[Record]) -> Sequence[bool]:
        return [False for _ in records]

    def lost(self, names: Sequence[bytes], reason: str) -> None:
        for name in names:
            assert self.names.pop(name, None) is not None, "never was there"

    def moved(self, name: bytes, place: int) -> bool:
        raise AssertionError("nothing is worth it")

    def worth(self, name: bytes) -> int:
        return 0

    def usable(self, usable: bool, reason: str) -> None:
        self.open = usable


async def test_a_failed_write_takes_no_place(tmp_path: Path) -> None:
    """Else every moment in which the disk is full costs good blocks later, for room that nothing lies in."""
    layout, settings = block_layout(BLOCK), settings_for("nvme", 32, tmp_path, stall_s=30.0, retry_s=0.001)
    disk, owner, digester = FailingDisk(tmp_path), _Owner(), Digester(layout)
    shape, entropy = shape_of(layout, ROOT), SeededEntropy(1)
    backend = NvmeBackend(disk, shape, digester, Seals(KEYRING), settings, SystemClock(), entropy, PrometheusMeter())
    memory = HostMemory(BLOCK, 8)

    async def write(prompt: str) -> list[int | str]:
        items = []
        for slot in range(8):
            name = named(slot, prompt)
            memory.block(slot)[:] = content(name, BLOCK)
            items.append(Item(name, "", slot, digester.content_words(content(name, BLOCK))))
        placed = list(await backend.write(items, memory, lambda: None))
        for item, place in zip(items, placed, strict=True):
            if isinstance(place, int):
                owner.names[item.name] = place
        return placed

    backend.open(owner)
    try:
        await until(lambda: owner.open)
        await write("first")
        disk.fail = {"write": errno.ENOSPC}
        assert set(await write("failed")) == {"disk_full"}
        assert set(backend._log.names()) == set(owner.names) == {named(slot, "first") for slot in range(8)}
    finally:
        await backend.close(1.0)


async def test_a_disk_that_fails_to_write_is_done_without_and_tried_again(tmp_path: Path) -> None:
    async with failing(tmp_path) as (b, disk):
        await b.keep(NAMES[:4])
        disk.fail = {"write": errno.EIO}
        b.tiers.offer(b.pool.compute(NAMES[4:]))
        await b.tiers.settle()
        failed, late = (b.figure("tandem_tier_dropped_total", "nvme", reason) for reason in ("io_error", "off"))
        assert failed > 0
        assert failed + late == 4
        assert not b.tiers.usable
        disk.fail = {}
        await until(lambda: b.tiers.usable)
        await b.keep(NAMES[4:])
        assert b.good(NAMES, await b.restore(NAMES))


async def test_a_disk_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    async with failing(tmp_path, stall_s=2.0) as (b, disk):
        await b.keep(NAMES)
        disk.going.clear()
        targets = b.pool.targets(NAMES)
        restoring = b.tiers.restore(targets, b.pool.memory, SystemClock().now() + 0.05)
        async with asyncio.timeout(100.0):
            assert [outcome async for batch in restoring for outcome in batch] == [
                Lost(index, "deadline") for index in range(8)
            ]
        async with asyncio.timeout(100.0):
            outcomes = await b.restore(NAMES)
        assert outcomes == [Lost(index, "stalled") for index in range(8)]
        assert not b.tiers.usable
        disk.going.set()
        await until(lambda: b.tiers.usable)
        assert not any(any(b.landed(index)) for index in range(8)), "bytes landed after the restore was over"
        assert b.good(NAMES, await b.restore(NAMES))


async def test_a_disk_that_does_not_answer_to_writes_lets_go_of_the_slots(tmp_path: Path) -> None:
    async with failing(tmp_path, stall_s=2.0) as (b, disk):
        await b.keep(NAMES[:1])
        disk.going.clear()
        b.tiers.offer(b.pool.compute(NAMES[1:]))
        async with asyncio.timeout(100.0):
            await b.tiers.settle()
        assert not b.pool.held
        assert b.figure("tandem_tier_dropped_total", "nvme", "stalled") == 7
        disk.going.set()
        await until(lambda: b.tiers.usable)
        await b.keep(NAMES)
        assert b.good(NAMES, await b.restore(NAMES))


async def test_a_file_that_is_being_made_when_the_disk_is_given_up_is_closed(tmp_path: Path) -> None:
    """A disk that does not answer now and then would else cost a descriptor each time."""
    async with failing(tmp_path, stall_s=0.2) as (b, disk):
        await b.keep(NAMES)
        await until(lambda: len(files(b)) == 2)
        disk.going.clear()
        b.tiers.offer(b.pool.compute([named(20)]))
        await until(lambda: disk.waiting == 2)  # The block, and the head of the segment that is made ahead.
        await b.tiers.settle()
        assert not b.tiers.usable
        disk.going.set()
        await until(lambda: b.tiers.usable)


async def test_what_waited_for_its_turn_is_not_written_to_a_disk_that_was_given_up_meanwhile(tmp_path: Path) -> None:
    """Its file would be opened once more when the disk is looked at again, and the first descriptor never closed."""
    async with failing(tmp_path, retry_s=30.0, retry_max_s=30.0) as (b, disk):
        usual = disk.check

        def once(what: str) -> None:
            if what == "write":
                disk.check = usual  # type: ignore[method-assign]
                raise OSError(errno.EIO, "drawn")

        disk.check = once  # type: ignore[method-assign]
        await b.keep(NAMES)
        assert not b.tiers.usable
        assert b.tiers.where(NAMES) == ()
        await until(lambda: disk.open_files == 0)


async def test_a_directory_that_cannot_be_had_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with stage("nvme", tmp_path / "file", usable=False, retry_s=0.02) as b:
        assert not b.tiers.usable
        b.tiers.offer(b.pool.compute(NAMES))
        await b.tiers.settle()
        assert b.figure("tandem_tier_dropped_total", "nvme", "off") == 8
        (tmp_path / "file").unlink()
        await until(lambda: b.tiers.usable)
        await b.keep(NAMES)
        assert b.good(NAMES, await b.restore(NAMES))


_LIMITED = """
import asyncio, resource, sys
from pathlib import Path
from tests.worlds.tier_stage import SEGMENT, named, stage

async def main():
    async with stage("nvme", Path(sys.argv[1])) as b:
        resource.setrlimit(resource.RLIMIT_FSIZE, (SEGMENT - 4096, SEGMENT - 4096))
        await b.keep([named(0)])
        print(b.tiers.where([named(0)]), b.figure("tandem_tier_dropped_total", "nvme", "disk_full"))

asyncio.run(main())
"""


def test_a_real_limit_of_the_operating_system_is_a_miss_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path)],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["()", "1.0"]
    assert list(tmp_path.glob("*/*.kv")) == []


# ---- tenants, keys ----------------------------------------------------------------------------------------------


async def test_pins_move_with_their_segments_even_if_all_of_one_is_pinned(tmp_path: Path) -> None:
    async with stage("nvme", tmp_path, blocks=64, pin_share=0.5) as b:
        kept = [named(i, "kept") for i in range(16)]
        assert b.tiers.pin(kept, Pinning(0, 60.0)) == 16
        await b.keep(kept)
        for start in range(0, 256, 8):
            await b.keep([named(i) for i in range(start, start + 8)])
        assert b.good(kept, await b.restore(kept))


@pytest.mark.parametrize("algorithm", sorted(available()))
async def test_every_algorithm_seals(tmp_path: Path, algorithm: str) -> None:
    seals = Seals(KEYRING, {algorithm: available()[algorithm]})
    seal = seals.current
    assert seal.algorithm == algorithm
    body = seal.body()
    body.update(b"one")
    body.update(b"two")
    again = seal.body()
    again.update(b"onetwo")
    assert body.digest() == again.digest() != seal.head(b"onetwo")
    assert len(body.digest()) == 32
    assert seals.find("k1", algorithm) == replace(seal)
    assert seals.find("k1", "none") is None
    assert seals.find("k9", algorithm) is None


async def test_of_records_that_are_written_anew_together_a_damaged_one_is_lost(tmp_path: Path) -> None:
    async with stage("nvme", tmp_path, blocks=32) as b:
        await b.keep(NAMES)
        hot = NAMES[1:5]
        assert b.good(hot, await b.restore(hot))
        first = files(b)[0]
        flip(first, 4096 + 2 * STRIDE + 20)
        for start in range(8, 40, 8):
            b.tiers.offer(b.pool.compute(hot))  # Wanted again: they are here already.
            await b.keep([named(i) for i in range(start, start + 8)])
        assert not first.exists()
        assert [bool(b.tiers.where([name])) for name in hot] == [True, False, True, True]
        assert b.figure("tandem_tier_removed_total", "nvme", "reclaimed") == 5
        kept = [hot[0], *hot[2:]]
        assert b.good(kept, await b.restore(kept))


# ---- large blocks, which the disk takes from where they are --------------------------------------------------------


@pytest.mark.parametrize("size", [64 << 10, (64 << 10) + 2048], ids=["in place", "padded"])
async def test_large_blocks_come_back_and_are_found_again(tmp_path: Path, size: int) -> None:
    shape = block_layout(size)
    async with stage("nvme", tmp_path, layout=shape, segment_bytes=1 << 20, nvme_bytes=8 << 20) as b:
        offers = b.pool.compute(NAMES)
        b.pool.memory.block(5)[size - 1] ^= 1
        b.tiers.offer(offers)
        await b.tiers.settle()
        assert len(b.tiers.where(NAMES)) == 5
        assert b.figure("tandem_tier_dropped_total", "nvme", "digest") == 1
    async with stage("nvme", tmp_path, layout=shape, segment_bytes=1 << 20, nvme_bytes=8 << 20) as b:
        await until(lambda: len(b.views.get("nvme", {})) == 7)
        outcomes = await b.restore(NAMES)
        assert outcomes[5] == Lost(5, "absent")
        for number in (0, 1, 2, 3, 4, 6, 7):
            assert b.landed(number) == content(NAMES[number], size)
        flip(files(b)[0], 4096 + 4096 + size // 2)
        assert (await b.restore(NAMES[:1])) == [Lost(0, "torn")]


async def test_bytes_that_change_while_a_disk_takes_them_are_a_miss(tmp_path: Path) -> None:
    shape = block_layout(64 << 10)
    async with failing(tmp_path, layout=shape, segment_bytes=1 << 20, nvme_bytes=8 << 20, stall_s=2.0) as (b, disk):
        await b.keep(NAMES[:1])
        disk.going.clear()
        b.tiers.offer(b.pool.compute(NAMES[1:2]))
        await until(lambda: disk.waiting > 0)
        b.pool.memory.block(1)[100] ^= 1
        disk.going.set()
        await b.tiers.settle()
        assert len(b.tiers.where(NAMES[:2])) == 2
        outcomes = await b.restore(NAMES[:2])
        assert outcomes[1] == Lost(1, "torn")
        assert b.landed(0) == content(NAMES[0], 64 << 10)


def test_a_write_that_stops_short_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SystemDisk(tmp_path)
    file = disk.create("x", 6 * ALIGN)
    pieces = [aligned_buffer(pages * ALIGN) for pages in (1, 2, 3)]
    for number, piece in enumerate(pieces):
        piece[:] = bytes([number + 1]) * len(piece)
    whole = os.pwritev

    def short(fd: int, buffers: list[memoryview], offset: int) -> int:
        return whole(fd, [buffers[0][:ALIGN]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    file.write(pieces, 0)
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(OSError, match="takes no more"):
        file.write(pieces, 0)
    monkeypatch.undo()
    got = aligned_buffer(6 * ALIGN)
    assert file.read(got, 0) == 6 * ALIGN
    assert bytes(got) == b"".join(bytes(piece) for piece in pieces)
    file.close()
