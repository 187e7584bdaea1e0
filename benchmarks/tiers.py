"""Restores from DRAM against memcpy; restores from and writes to NVMe against fio, in the same run.

Each figure is the median of rounds in which every contender runs in turn. Both go past the page cache and give the
disk as many requests at a time; fio's have the size of a block, the tier puts several small blocks into one. Every
other round goes backwards, so that nobody always comes after a write. The NVMe tier is full when it is measured, as
it is after a while in service: new segments are written into the files of old ones. Fio's file is new each time, with
its room allocated, and fio writes one cached buffer over and over, the tier all of its blocks. Without fio a bare
loop of `preadv` and `pwritev` takes its place, and the table says so. `--directory` must be on the disk to be
measured. Exits non-zero when a limit is not met; the last line is the verdict.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.rounds import alternate
from kv_transfer.tickets import Keyring, TicketKey
from kv_transfer.tiers.disk import aligned_buffer
from kv_transfer.tiers.local import LocalTiers
from kv_transfer.tiers.open import TierIdentity, open_tiers
from kv_transfer.tiers.protocol import OffloadCandidate, Restored
from kv_transfer.tiers.settings import TierSettings
from tandem.core.kv import Handle, Layout
from tandem.core.metrics import NullMeter
from tandem.engine.digest import Digester, bind
from tandem.engine.memory import HostMemory
from tandem.engine.protocol import FetchTarget
from tandem.process.system import SystemClock, SystemEntropy

ROUNDS: Final = 7
LIMIT: Final = 0.8
SIZES: Final = (64 << 10, 1 << 20, 8 << 20)
TOTAL: Final = 256 << 20
"""Bytes restored or written per measurement."""
DRAM_REPEATS: Final = 4
READ_THREADS: Final = 4
WRITE_THREADS: Final = 4
SEGMENTS: Final = 6
"""Of an NVMe tier; a round fills two."""
_HEADS, _HEAD_DIM = 8, 64


class Space:
    """Blocks of an engine's pool, the first half full, the second to be filled."""

    def __init__(self, block_bytes: int) -> None:
        self.epoch = 1
        tokens = block_bytes // (2 * _HEADS * _HEAD_DIM * 2)
        self.layout = Layout("bench", "plain", "bfloat16", 2, 1, tokens, _HEADS, _HEAD_DIM)
        self.count = TOTAL // block_bytes
        self.memory = HostMemory(block_bytes, 2 * self.count)
        noise = os.urandom(block_bytes)
        digester = Digester(self.layout)
        self._words = []
        for slot in range(self.count):
            block = self.memory.block(slot)
            block[:] = noise
            block[:8] = slot.to_bytes(8, "little")
            self._words.append(digester.content_words(block))
        for slot in range(self.count, 2 * self.count):
            self.memory.block(slot)[:] = bytes(block_bytes)
        self._round = 0

    def names(self) -> list[bytes]:
        """The names of the blocks in this round: `fresh` gives others to the same bytes."""
        return [b"%08d%08d" % (self._round, slot) for slot in range(self.count)]

    def fresh(self) -> list[bytes]:
        self._round += 1
        return self.names()

    def hold(self, name: bytes) -> Handle | None:
        slot = int(name[8:])
        return Handle(self.epoch, name, slot, 1, bind(self._words[slot], self.epoch, name, 1))

    def unhold(self, slot: int) -> None:
        return None

    def targets(self, names: Sequence[bytes]) -> list[FetchTarget]:
        tokens = self.layout.block_tokens
        return [FetchTarget(index, name, self.count + index, 1, tokens) for index, name in enumerate(names)]

    def memcpy(self) -> None:
        """Every block into its target, one after the other, by one thread."""
        for slot in range(self.count):
            self.memory.block(self.count + slot)[:] = self.memory.block(slot)


@dataclass(frozen=True)
class TierRow:
    """One contender's figure against its limit, GB/s."""

    name: str
    rate: float
    reference: float
    ratio: float
    limit: float | None

    @property
    def met(self) -> bool:
        return self.limit is None or self.ratio >= self.limit

    def text(self) -> str:
        asked = "reported" if self.limit is None else f">= {self.limit} {'ok' if self.met else 'NOT MET'}"
        return f"{self.name:<34}{self.rate:8.2f}{self.reference:10.2f}{self.ratio:8.2f}  {asked}"


@asynccontextmanager
async def tiers_over(space: Space, settings: TierSettings, owner: str) -> AsyncGenerator[LocalTiers, None]:
    keyring = Keyring(TicketKey("bench", os.urandom(32)))
    identity = TierIdentity(owner, b"root of a model.")
    tiers = open_tiers(settings, space, SystemClock(), NullMeter(), keyring, identity, SystemEntropy())
    try:
        await _opened(tiers)
        yield tiers
    finally:
        await tiers.close()


async def _opened(tiers: LocalTiers) -> None:
    async with asyncio.timeout(30.0):
        while not tiers.usable:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def keep(tiers: LocalTiers, space: Space, names: Sequence[bytes]) -> float:
    """Seconds from offering the blocks to the last of them being written."""
    begun = time.perf_counter()
    tiers.offer([OffloadCandidate(name) for name in names])
    await tiers.settle()
    seconds = time.perf_counter() - begun
    assert len(tiers.where(names)) == len(names), "not every block was kept"
    return seconds


async def restore(tiers: LocalTiers, space: Space, names: Sequence[bytes]) -> float:
    """Seconds until every block is in its target, verified."""
    begun = time.perf_counter()
    restoring = tiers.restore(space.targets(names), space.memory, SystemClock().now() + 60)
    outcomes = [outcome async for batch in restoring for outcome in batch]
    seconds = time.perf_counter() - begun
    assert all(isinstance(outcome, Restored) for outcome in outcomes), "a block was lost"
    return seconds


def timed(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


async def dram_rows(size: int, rounds: int) -> list[TierRow]:
    space = Space(size)
    settings = TierSettings(dram_bytes=TOTAL + size, offers_max=1 << 20)
    ours, theirs, writes = [], [], []
    async with tiers_over(space, settings, "dram") as tiers:
        names = space.names()
        await keep(tiers, space, names)
        for _ in range(rounds):
            theirs.append(sum(timed(space.memcpy) for _ in range(DRAM_REPEATS)))
            ours.append(sum([await restore(tiers, space, names) for _ in range(DRAM_REPEATS)]))
            tiers.forget(names, "again")
            writes.append(await keep(tiers, space, names))
    total = TOTAL * DRAM_REPEATS
    label = _label(size)
    return [
        _row(f"DRAM restore, {label}", total, ours, theirs, LIMIT if size >= 1 << 20 else None),
        _row(f"DRAM write, {label}", TOTAL, writes, [each / DRAM_REPEATS for each in theirs], None),
    ]


async def nvme_rows(size: int, rounds: int, directory: Path, reference: "DiskReference") -> list[TierRow]:
    space = Space(size)
    settings = TierSettings(
        nvme_dir=directory,
        nvme_bytes=SEGMENTS * (TOTAL // 2),
        segment_bytes=TOTAL // 2,
        offers_max=1 << 20,
        read_threads=READ_THREADS,
        write_threads=WRITE_THREADS,
    )
    async with tiers_over(space, settings, f"nvme-{size}") as tiers:

        async def ours_written() -> float:
            tiers.forget(space.names(), "again")  # As fio's file is removed: nothing has to be kept for new blocks.
            return await keep(tiers, space, space.fresh())

        async def ours_read() -> float:
            return await restore(tiers, space, space.names())

        # Every other round begins with reading what the one before has written.
        await asyncio.to_thread(reference.write, size)
        for _ in range(SEGMENTS // 2 + 1):
            await ours_written()
        times = await alternate(
            {
                "fio write": lambda: asyncio.to_thread(reference.write, size),
                "write": ours_written,
                "read": ours_read,
                "fio read": lambda: asyncio.to_thread(reference.read, size),
            },
            rounds,
        )
    label = _label(size)
    return [
        _row(f"NVMe restore, {label}", TOTAL, times["read"], times["fio read"], LIMIT),
        _row(f"NVMe write, {label}", TOTAL, times["write"], times["fio write"], LIMIT),
    ]


def _row(name: str, total: int, ours: Sequence[float], theirs: Sequence[float], limit: float | None) -> TierRow:
    ratio = statistics.median(reference / own for own, reference in zip(ours, theirs, strict=True))
    rate, reference = (total / statistics.median(times) / 1e9 for times in (ours, theirs))
    return TierRow(name, rate, reference, ratio, limit)


def _label(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


# ---- what the disk can do -------------------------------------------------------------------------------------


class DiskReference:
    """Sequential direct reads and writes of `TOTAL` bytes, spread over threads; gives seconds."""

    name = "fio"

    def __init__(self, directory: Path) -> None:
        self._file = directory / "fio.bin"

    def write(self, size: int) -> float:
        self._file.unlink(missing_ok=True)
        return self._run("write", size, WRITE_THREADS)

    def read(self, size: int) -> float:
        return self._run("read", size, READ_THREADS)

    def _run(self, kind: str, size: int, threads: int) -> float:
        share = TOTAL // threads
        command = ["fio", "--name=x", f"--filename={self._file}", f"--rw={kind}", f"--bs={size}", f"--size={share}"]
        command += [f"--numjobs={threads}", f"--offset_increment={share}", "--direct=1", "--ioengine=psync"]
        command += ["--thread", "--group_reporting", "--fallocate=posix", "--output-format=json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        figures = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0][kind]
        return TOTAL / float(figures["bw_bytes"])


class BareLoop(DiskReference):
    """The same without fio: threads that read and write with `preadv` and `pwritev`."""

    name = "bare loop"

    def _run(self, kind: str, size: int, threads: int) -> float:
        flags = os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC
        fd = os.open(self._file, flags, 0o600)
        share = TOTAL // threads
        try:
            os.posix_fallocate(fd, 0, TOTAL)
            move = os.preadv if kind == "read" else os.pwritev

            def work(start: int) -> None:
                buffer = aligned_buffer(size)
                for offset in range(start, start + share, size):
                    move(fd, [buffer], offset)

            crew = [threading.Thread(target=work, args=(number * share,)) for number in range(threads)]
            begun = time.perf_counter()
            for thread in crew:
                thread.start()
            for thread in crew:
                thread.join()
            return time.perf_counter() - begun
        finally:
            os.close(fd)


def takes_direct(directory: Path) -> bool:
    """Whether files there can be read past the page cache."""
    path = directory / "direct.probe"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)
    return True


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--directory", type=Path, help="where to write; by default the system's temporary directory")
    parser.add_argument("--only", choices=("dram", "nvme"))
    arguments = parser.parse_args()
    rows: list[TierRow] = []
    with tempfile.TemporaryDirectory(prefix="tandem-tiers-", dir=arguments.directory) as folder:
        directory = Path(folder)
        reference = (DiskReference if shutil.which("fio") else BareLoop)(directory)
        direct = takes_direct(directory)
        for size in SIZES:
            if arguments.only != "nvme":
                rows += asyncio.run(dram_rows(size, arguments.rounds))
            if arguments.only != "dram" and direct:
                rows += asyncio.run(nvme_rows(size, arguments.rounds, directory, reference))
    print(f"{'tiers':<34}{'GB/s':>8}{'limit':>10}{'ratio':>8}")
    for row in rows:
        print(row.text())
    if not direct:
        print("NVMe was not measured: the directory takes no direct I/O; give another with --directory")
    print(f"Limits: memcpy by one thread for DRAM; {reference.name} with as many requests at a time for NVMe.")
    missed = [row.name for row in rows if not row.met]
    print(f"NOT MET: {', '.join(missed)}" if missed else "MET: tiers")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
