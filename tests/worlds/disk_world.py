"""Tiers on a disk in memory that fails as it is told, with threads that take turns on virtual time: a worker's tiers
live through drawn offers, restores, pins, quotas, failures and restarts, always the same way."""

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from kv_transfer.tiers import dram, nvme
from kv_transfer.tiers.dram import DramBackend
from kv_transfer.tiers.local import LocalTiers
from kv_transfer.tiers.mac import Seals
from kv_transfer.tiers.nvme import NvmeBackend
from kv_transfer.tiers.protocol import Lost, Pinning, Restored
from kv_transfer.tiers.record import shape_of
from kv_transfer.tiers.settings import TierSettings
from kv_transfer.tiers.thread_pool import Lane, ThreadPool, _Job, _settle
from tandem.apps.simulation.loop import LoopClock, VirtualLoop
from tandem.core.entropy import SeededEntropy, below
from tandem.engine.digest import Digester
from tests.contract.block_space import block_layout, content
from tests.worlds.golden_world import GoldenMeter
from tests.worlds.tier_stage import BLOCK, KEYRING, ROOT, SEGMENT, Pool, named

_JOB_S: Final = 0.001
_ERRORS: Final = (errno.ENOSPC, errno.EIO, errno.EROFS)
_TENANTS: Final = ("", "one", "two")
_TURNS: Final = 60


class SteppedPool(ThreadPool):
    """A pool without threads: one job at a time, a millisecond each, in the order in which threads would begin."""

    def add(self, lane: Lane, job: _Job) -> None:
        assert not self._closing, "the crew is closed"
        lane.jobs.append(job)
        if len(lane.jobs) == 1:
            self._lanes.append(lane)
        job.loop.call_later(_JOB_S, self._one)

    def _one(self) -> None:
        if not self._lanes:
            return
        job = self._next(0)
        assert job is not None
        try:
            outcome, error = job.work(), None
        except BaseException as raised:  # noqa: BLE001 - it belongs to whoever waits for the job
            outcome, error = None, raised
        self._begun.clear()
        _settle(job.done, outcome, error)

    async def close(self, within_s: float) -> None:
        while self._lanes:  # noqa: ASYNC110
            await asyncio.sleep(_JOB_S)
        self._closing = True


class LoggedDisk:
    """`Disk` in memory. `log` has every call; `fail` the errno that calls of a kind raise, and how many of them."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.log: list[str] = []
        self.fail: dict[str, tuple[int, int]] = {}
        self.open_files = 0

    def told(self, what: str, line: str) -> None:
        code, times = self.fail.get(what, (0, 0))
        self.log.append(f"  {what} {line}" + (f" {errno.errorcode[code]}" if times else ""))
        if times:
            self.fail[what] = code, times - 1
            raise OSError(code, os.strerror(code))

    def claim(self) -> None:
        self.told("claim", "")

    def names(self) -> Sequence[str]:
        return sorted(self.files)

    def create(self, name: str, size: int) -> "_LoggedFile":
        self.told("create", f"{name} {size}")
        assert name not in self.files, "a file is there that should have been removed"
        self.files[name] = bytearray(size)
        return _LoggedFile(self, name)

    def reuse(self, old: str, name: str, size: int) -> "_LoggedFile":
        self.told("create", f"{name} {size} from {old}")
        if old not in self.files:
            raise FileNotFoundError(errno.ENOENT, old)
        self.files[name] = self.files.pop(old)
        self.files[name] += bytes(max(0, size - len(self.files[name])))
        return _LoggedFile(self, name)

    def open(self, name: str) -> "_LoggedFile":
        self.told("open", name)
        return _LoggedFile(self, name)

    def remove(self, name: str) -> None:
        self.told("remove", name)
        self.files.pop(name, None)

    def release(self) -> None:
        self.log.append("  release")


class _LoggedFile:
    def __init__(self, disk: LoggedDisk, name: str) -> None:
        self._disk, self._name, self._bytes = disk, name, disk.files[name]
        self._open = True
        disk.open_files += 1

    def read(self, buffer: memoryview, offset: int) -> int:
        self._disk.told("read", f"{self._name} {len(buffer)} at {offset}")
        found = self._bytes[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def write(self, pieces: Sequence[memoryview], offset: int) -> None:
        size = sum(map(len, pieces))
        self._disk.told("write", f"{self._name} {size} at {offset}")
        assert offset + size <= len(self._bytes), "beyond what was allocated"
        self._bytes[offset : offset + size] = b"".join(pieces)

    def close(self) -> None:
        assert self._open, "closed twice"
        self._open = False
        self._disk.log.append(f"  close {self._name}")
        self._disk.open_files -= 1


class DiskWorld:
    """One worker's tiers and what is known of them from outside."""

    def __init__(self, loop: VirtualLoop, seed: int, settings: TierSettings) -> None:
        self.clock = LoopClock(loop)
        self.entropy = SeededEntropy(seed, "disk")
        self.settings = settings
        self.disk, self.meter = LoggedDisk(), GoldenMeter()
        self.story = self.disk.log
        self.views: dict[str, dict[bytes, None]] = {}
        self.pool = Pool(block_layout(BLOCK), 24)
        self.tiers = self._opened()

    def _opened(self) -> LocalTiers:
        layout, settings = self.pool.layout, self.settings
        backends: list[Any] = []
        if settings.dram_bytes:
            backends.append(
                DramBackend(settings.dram_bytes // BLOCK, layout, settings.copy_threads, settings.stall_s)
            )
        shape, seals = shape_of(layout, ROOT), Seals(KEYRING)
        digester, entropy = Digester(layout), self.entropy.fork("segments")
        backends.append(NvmeBackend(self.disk, shape, digester, seals, settings, self.clock, entropy, self.meter))
        tiers = LocalTiers(self.pool, backends, self.clock, self.meter, settings)
        self.views = {}
        tiers.watch(self._told)
        tiers.open()
        return tiers

    def _told(self, tier: str, stored: tuple[bytes, ...], removed: tuple[bytes, ...]) -> None:
        view = self.views.setdefault(tier, {})
        for name in removed:
            del view[name]
        for name in stored:
            assert name not in view, "told twice"
            view[name] = None
        self.story.append(f"  {tier} +{_names(stored)} -{_names(removed)}")

    def check(self) -> None:
        """The books are right, routers are told what is there, and no more is taken than was given."""
        for level in self.tiers.levels:
            level.book.check()
            assert set(level.book.names()) == set(self.views.get(level.tier, {})), "watchers were told something else"
        segments = self.settings.nvme_bytes // self.settings.segment_bytes
        assert len(self.disk.files) <= segments, "more files than the disk was to have"

    async def live(self) -> None:
        await asyncio.sleep(0.1)
        for turn in range(_TURNS):
            kind = below(self.entropy, 14)
            self.story.append(f"{turn}: {self.clock.now():.4f} s, {kind}")
            await self._turn(kind)
            self.check()
        self.disk.fail.clear()
        await self.close()
        await asyncio.sleep(0.1)
        assert not self.pool.held, "slots are still held"
        assert not self.disk.open_files, "files are still open"

    async def _turn(self, kind: int) -> None:
        entropy, prompt = self.entropy, "abcd"[below(self.entropy, 4)]
        count, tenant = 1 + below(entropy, 12), _TENANTS[ord(prompt) % 3]
        names = [named(number, prompt) for number in range(count)]
        match kind:
            case 0 | 1 | 2 | 3:
                self.tiers.offer(self.pool.compute(names, tenant))
                await asyncio.sleep((0.0, 0.004, 0.05)[below(entropy, 3)])
            case 4 | 5 | 6 | 7:
                await self._restore(names, (0.0, 0.002, 5.0, 5.0)[below(entropy, 4)])
            case 8:
                pinned = self.tiers.pin(names, Pinning(below(entropy, 3), 0.1 + below(entropy, 4), tenant))
                self.story.append(f"  pinned {pinned} of {count}")
            case 9:
                self.tiers.limit(tenant, (None, 4, 12)[below(entropy, 3)] and 4 * BLOCK)
                self.tiers.unpin(names[:2])
            case 10:
                self.tiers.forget(names[: 1 + count // 2], "drawn")
            case 11:
                what = ("write", "read", "create", "open", "remove")[below(entropy, 5)]
                self.disk.fail[what] = _ERRORS[below(entropy, 3)], 1 + below(entropy, 4)
            case 12:
                self._damage()
            case _:
                await self._pass_or_restart()

    async def _pass_or_restart(self) -> None:
        if below(self.entropy, 2):
            await asyncio.sleep(1.0 + below(self.entropy, 3))
        else:
            await self.close()
            self.tiers = self._opened()
            await asyncio.sleep(0.2)

    async def _restore(self, names: Sequence[bytes], within_s: float) -> None:
        targets = self.pool.targets(names)
        self.story.append(f"  expects {self.tiers.expected_s(self.tiers.where(names), BLOCK):.6f} s")
        said = []
        async for batch in self.tiers.restore(targets, self.pool.memory, self.clock.now() + within_s):
            for outcome in batch:
                assert outcome.index == len(said), "out of order"
                said.append(self._outcome(names[outcome.index], targets[outcome.index].slot, outcome))
        assert len(said) == len(names)
        self.story.append(f"  restored {' '.join(said)}")

    def _outcome(self, name: bytes, slot: int, outcome: Restored | Lost) -> str:
        if isinstance(outcome, Lost):
            return outcome.reason
        assert outcome.words == self.pool.words(name)
        assert bytes(self.pool.memory.block(slot)) == content(name, BLOCK), "another block's bytes"
        return outcome.tier

    def _damage(self) -> None:
        """A byte of a file becomes another."""
        names = sorted(self.disk.files)
        if names:
            file = self.disk.files[names[below(self.entropy, len(names))]]
            at = below(self.entropy, len(file))
            file[at] ^= 1 + below(self.entropy, 255)

    async def close(self) -> None:
        await self.tiers.close()
        self.story.append("  closed")


def _names(names: Sequence[bytes]) -> str:
    return ",".join(name.rstrip(b".").decode() for name in names)


def stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have backends work without threads."""
    for module in (dram, nvme):
        monkeypatch.setattr(module, "ThreadPool", SteppedPool)


def disk_settings(dram_blocks: int, segments: int, **changes: Any) -> TierSettings:
    """Tiers of small blocks; `segments` of eight records each."""
    return TierSettings(
        dram_bytes=dram_blocks * BLOCK,
        nvme_dir=Path("/nowhere"),
        nvme_bytes=segments * SEGMENT,
        segment_bytes=SEGMENT,
        batch_bytes=changes.pop("batch_bytes", 3 * BLOCK),
        retry_s=0.3,
        retry_max_s=1.0,
        **changes,
    )
