"""The NVMe backend: append-only segment files, which a few threads read and write past the page cache.

Every fault becomes a miss. A record that is not what it should be is forgotten. A full or read-only disk takes no
blocks for a while. A disk that fails or does not answer is not used until it is tried again later.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from kv_transfer.tiers.backend import BackendOwner, BlockRead, BlockReadFailed, Item, Record, Wanted
from kv_transfer.tiers.backoff import Backoff
from kv_transfer.tiers.disk import Disk, reason_of
from kv_transfer.tiers.mac import Seals
from kv_transfer.tiers.nvme_scan import FoundSegment, Stray, scan
from kv_transfer.tiers.nvme_writing import Run, SegmentWriter
from kv_transfer.tiers.record import Shape, fits
from kv_transfer.tiers.segment_io import Segment, SegmentIo
from kv_transfer.tiers.segment_log import SegmentLog, index_of, place_of, segment_of
from kv_transfer.tiers.settings import TierSettings
from kv_transfer.tiers.slot_writer import SlotWriter
from kv_transfer.tiers.thread_pool import ThreadPool
from kv_transfer.tiers.threaded_reading import Job, ThreadedReading
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter
from tandem.engine.digest import Digester
from tandem.engine.protocol import BlockMemory
from tandem.process.logs import event

_log = logging.getLogger(__name__)
_READ_ERRORS_MAX: Final = 3
_ADOPTED_AT_ONCE: Final = 256
CHECKING: Final = 2
"""Number of threads that check or seal one batch while the disk works on others."""
_PASSING: Final = ("disk_full", "read_only", "missing", "busy")
"""Reasons for which a disk takes no more blocks for now, while the blocks it has can still be read."""


class NvmeBackend:
    """`kv_transfer.tiers.backend.StorageBackend` on a disk. Raises `bad_setting` when not one block fits into a
    segment."""

    tier = "nvme"
    memory: BlockMemory | None = None

    def __init__(
        self,
        disk: Disk,
        shape: Shape,
        digester: Digester,
        seals: Seals,
        settings: TierSettings,
        clock: Clock,
        entropy: Entropy,
        meter: Meter,
    ) -> None:
        records = shape.records(settings.segment_bytes)
        if records < 1:
            problem = f"segment_bytes = {settings.segment_bytes}: a block takes {shape.stride} bytes and one page"
            raise TandemError("bad_setting", problem, param="tiers.segment_bytes")
        self._disk = disk
        self._seals = seals
        self._settings = settings
        self._clock = clock
        self._meter = meter
        reads, writes = settings.read_threads, settings.write_threads
        self._io = SegmentIo(shape, digester, settings.batch_bytes, reads, writes)
        self._readers = ThreadPool(reads + CHECKING, "tier-read")
        self._writers = ThreadPool(writes + CHECKING, "tier-write")
        self._segments_max = settings.nvme_bytes // settings.segment_bytes
        self._log = SegmentLog(self._segments_max)
        self._writer = SegmentWriter(
            disk, self._io, self._log, seals.current, records, entropy, self._writers, settings.stall_s
        )
        self._backoff = Backoff(settings.retry_s, settings.retry_max_s)
        self._failed = asyncio.Event()
        self._up = self._paused = False
        self._read_errors = 0
        self._life: asyncio.Task[None] | None = None
        self._owner: BackendOwner | None = None
        self.blocks = (self._segments_max - 1) * records

    # -- life --

    def open(self, owner: BackendOwner) -> None:
        self._owner = owner
        self._writer.owner = owner
        self._life = asyncio.get_running_loop().create_task(self._live(), name="tier-nvme")

    @property
    def owner(self) -> BackendOwner:
        assert self._owner is not None, "not open"
        return self._owner

    async def _live(self) -> None:
        """Take the directory and look at what is there; after a failure do it again, later each time."""
        while True:
            self._failed.clear()
            try:
                await self._start()
            except OSError as error:
                self._fail(reason_of(error))
            await self._failed.wait()
            await asyncio.sleep(max(0.0, self._backoff.failed(self._clock.now())))

    async def _start(self) -> None:
        lane = self._readers.lane()
        await lane.submit(self._disk.claim)
        self._up = True
        async for found, ratio in scan(self._disk, self._io, self._seals, lane):
            if not self._up:
                return
            if isinstance(found, Stray):
                self._meter.add("tandem_tier_found_total", 1.0, f"segment_{found.reason}")
                event(_log, "tier_segment_ignored", segment=found.name, reason=found.reason)
                self._writer.strays.append(found)
            else:
                await self._adopt(found)
            self._meter.set("tandem_tier_scan_ratio", ratio)
        await self._writer.shrink()
        if self._up:
            self.owner.usable(True, "")

    async def _adopt(self, found: FoundSegment) -> None:
        """Take in the records of a segment that are genuine and not known from a newer one, some at a time."""
        number = found.number
        for problem in (each for each in found.records if isinstance(each, str)):
            self._meter.add("tandem_tier_found_total", 1.0, problem)
        if self._log.crowded or not found.records:
            self._writer.strays.append(Stray(number, found.segment.name, "surplus" if found.records else "empty"))
            self._writer.let_go(found.segment)
            return
        self._writer.segments[number] = found.segment
        self._log.adopt(number, len(found.records))
        records = [
            Record(head.name, head.tenant, place_of(number, index))
            for index, head in enumerate(found.records)
            if not isinstance(head, str)
        ]
        for start in range(0, len(records), _ADOPTED_AT_ONCE):
            self._take_in(records[start : start + _ADOPTED_AT_ONCE])
            await asyncio.sleep(0)
            if not self._up:
                return

    def _take_in(self, records: Sequence[Record]) -> None:
        for record, kept in zip(records, self.owner.found(records), strict=True):
            if kept:
                self._log.put(record.place, record.name)
            self._meter.add("tandem_tier_found_total", 1.0, "kept" if kept else "unwanted")

    def _fail(self, reason: str) -> None:
        """Do without the disk until it is tried again: what it has is not there any more."""
        if self._failed.is_set():
            return
        self._failed.set()
        self._up = self._paused = False
        self._read_errors = 0
        self.owner.usable(False, reason)
        self.owner.lost(self._writer.abandon(), reason)

    def _pause(self, reason: str) -> None:
        """Write nothing for a while; what is there can still be read."""
        if self._paused or not self._up:
            return
        self._paused = True
        self.owner.usable(False, reason)
        wait_s = max(0.0, self._backoff.failed(self._clock.now()))
        asyncio.get_running_loop().call_later(wait_s, self._resume)

    def _resume(self) -> None:
        if self._paused and self._up:
            self._paused = False
            self.owner.usable(True, "")

    async def close(self, within_s: float) -> None:
        self._up = self._paused = False
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait((self._life,))
        await self._writer.finish(within_s)
        await self._writers.close(within_s)
        await self._readers.close(within_s)
        self._writer.abandon()
        self._disk.release()

    # -- writing --

    async def write(
        self, items: Sequence[Item], memory: BlockMemory, staged: Callable[[], None]
    ) -> Sequence[int | str]:
        try:
            return await self._write(items, memory)
        finally:
            staged()

    async def _write(self, items: Sequence[Item], memory: BlockMemory) -> Sequence[int | str]:
        if not self._up or self._paused:
            return ["off"] * len(items)
        fitting = [item for item in items if fits(item.tenant, item.words)]
        try:
            runs = await self._writer.allocate(fitting)
        except OSError as error:
            self._trouble(error)
            return [reason_of(error)] * len(items)
        futures = [self._writer.submit(run, memory) for run in runs]
        late = "off"
        for future in futures:
            try:
                await self._writer.ended(future)
            except TimeoutError as error:
                late = reason_of(error)
                self._trouble(error)
        # From here to the settling of the outcomes nothing else runs: no segment goes in between.
        outcomes = dict[bytes, int | str]()
        for run, future in zip(runs, futures, strict=True):
            outcomes.update(self._outcome(run, future, late))
        return [outcomes.get(item.name, "head_full") for item in items]

    def _outcome(self, run: Run, future: "asyncio.Future[list[int]]", late: str) -> dict[bytes, int | str]:
        """The outcome of a run by block name: the block's place, or the reason that it was not stored; `late` where
        the run's segment was given up meanwhile or its write has not finished."""
        names = [item.name for item in run.items]
        if run.segment.retired or not future.done() or future.cancelled():
            return dict.fromkeys(names, late)
        error = future.exception()
        if error is None:
            self._backoff.worked()
            placed: dict[bytes, int | str] = dict(zip(names, run.places, strict=True))
            for number in future.result():
                self._log.free(run.places[number])
                placed[names[number]] = "digest"
            return placed
        if not isinstance(error, OSError):
            raise error
        self._trouble(error)
        for place in run.places:
            self._log.free(place)
        return dict.fromkeys(names, reason_of(error))

    def _trouble(self, error: OSError) -> None:
        reason = reason_of(error)
        event(_log, "tier_write_failed", level=logging.WARNING, tier=self.tier, reason=reason, error=str(error))
        if reason in _PASSING:
            self._pause(reason)
        else:
            self._fail(reason)

    # -- reading --

    def read(self, wanted: Sequence[Wanted], memory: BlockMemory) -> ThreadedReading:
        runs = _runs(wanted, self._io.batch)
        segments = [self._writer.use(segment_of(run[0].place)) for run in runs]
        jobs = [(run, self._job(segment, run, memory)) for segment, run in zip(segments, runs, strict=True)]

        def over(number: int) -> None:
            segment = segments[number]
            if segment is not None:
                self._writer.unuse(segment)

        return ThreadedReading(self._readers, jobs, self._settings.stall_s, self._read_failed, over)

    def _job(self, segment: Segment | None, run: Sequence[Wanted], memory: BlockMemory) -> Job:
        if segment is None:
            return lambda landing: tuple(BlockReadFailed(each.index, "gone") for each in run)
        first = index_of(run[0].place)

        def work(landing: SlotWriter) -> tuple[BlockRead | BlockReadFailed, ...]:
            outcomes = self._io.read(segment, first, run, memory, landing)
            self._read_errors = 0
            return outcomes

        return work

    def _read_failed(self, error: OSError) -> str:
        """Two bad places on a disk are bad luck; more are a bad disk, and so is one that does not answer."""
        reason = reason_of(error)
        self._read_errors += 1
        event(_log, "tier_read_failed", level=logging.WARNING, tier=self.tier, reason=reason, error=str(error))
        if reason == "stalled" or self._read_errors >= _READ_ERRORS_MAX:
            self._fail(reason)
        return reason

    # -- places --

    def words(self, place: int) -> bytes:
        raise AssertionError("blocks on disk are in no memory")

    def free(self, place: int) -> None:
        self._log.free(place)


def _runs(wanted: Sequence[Wanted], most: int) -> list[Sequence[Wanted]]:
    """Blocks that lie side by side, in pieces of at most `most`."""
    runs = list[list[Wanted]]()
    for each in wanted:
        run = runs[-1] if runs else None
        if run is not None and len(run) < most and each.place == run[-1].place + 1:
            run.append(each)
        else:
            runs.append([each])
    return list(runs)
