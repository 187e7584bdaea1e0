"""The write side of the NVMe backend: appends runs of records, creates segments, and gives up segments to make
room."""

import asyncio
import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from kv_transfer.tiers.backend import BackendOwner, Item
from kv_transfer.tiers.disk import Disk, DiskFile, aligned_buffer, reason_of
from kv_transfer.tiers.mac import Seal
from kv_transfer.tiers.nvme_scan import Stray, file_name
from kv_transfer.tiers.record import ALIGN, SegmentHead, encode_segment
from kv_transfer.tiers.segment_io import Segment, SegmentIo
from kv_transfer.tiers.segment_log import SegmentLog, index_of, place_of, segment_of
from kv_transfer.tiers.thread_pool import ThreadPool
from tandem.core.entropy import Entropy
from tandem.engine.protocol import BlockMemory

T = TypeVar("T")


@dataclass
class Run:
    """Records that are written together: side by side in one segment, from number `first` on."""

    segment: Segment
    first: int
    items: list[Item] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Gone:
    """A segment of which nothing is wanted any more."""

    segment: Segment
    reusable: bool
    """Whether the next segment can be written into this one's file: no job reads it, and its content is known."""


class SegmentWriter:
    """Owns the open segment files and decides with the log what is written where."""

    def __init__(
        self,
        disk: Disk,
        io: SegmentIo,
        log: SegmentLog,
        seal: Seal,
        records: int,
        entropy: Entropy,
        crew: ThreadPool,
        stall_s: float,
    ) -> None:
        self._disk = disk
        self._io = io
        self._log = log
        self._seal = seal
        self._records = records
        self._entropy = entropy
        self._thread_pool = crew
        self._lane = crew.lane()
        self._making_room = crew.lane()
        """A lane of its own, whose turn comes next: everything that is to be written waits for its jobs."""
        self._stall_s = stall_s
        self._round = 0
        """Counter that grows when everything is released: work that was under way then is not continued."""
        self._rolling = asyncio.Lock()
        self._ahead: asyncio.Future[Segment] | None = None
        """The segment after the open one, made beside what is being written, so that nothing has to wait for it."""
        self.segments: dict[int, Segment] = {}
        self.strays: list[Stray] = []
        """Files of no use, the newest first: the first to go when room is needed."""
        self.owner: BackendOwner | None = None

    # -- appending --

    async def allocate(self, items: Sequence[Item]) -> list[Run]:
        """Places for blocks, in runs of at most a batch. Raises `OSError` when there is no room for a new segment, or
        the disk was given up before its turn came: then nothing is allocated."""
        runs, begun = list[Run](), self._round
        async with self._rolling:
            if self._round != begun:
                raise OSError(errno.EIO, "the disk was given up")
            try:
                for item in items:
                    if self._log.full:
                        await self._make_room()
                    self._append(runs, item)
            except OSError:
                for run in runs:
                    self.undo(run)
                raise
        return runs

    def undo(self, run: Run) -> None:
        """A run will not be written."""
        for place in run.places:
            self._log.written(place)
            self._log.free(place)

    def _append(self, runs: list[Run], item: Item) -> None:
        place = self._log.append(item.name)
        segment = self.segments[segment_of(place)]
        if not runs or runs[-1].segment is not segment or len(runs[-1].items) >= self._io.batch:
            runs.append(Run(segment, index_of(place)))
        runs[-1].items.append(item)
        runs[-1].places.append(place)

    def submit(self, run: Run, memory: BlockMemory) -> "asyncio.Future[list[int]]":
        """Have a run written; gives the numbers in it of blocks that turned out to be damaged."""
        run.segment.users += 1
        future = self._lane.submit(lambda: self._io.write(run.segment, run.first, run.items, memory))
        future.add_done_callback(lambda _: self._written(run, future))
        return future

    def _written(self, run: Run, future: "asyncio.Future[list[int]]") -> None:
        if not future.cancelled():
            future.exception()  # Looked at, so that asyncio does not report what a given up segment failed with.
        for place in run.places:
            self._log.written(place)
        self.unuse(run.segment)

    # -- segments --

    def use(self, number: int) -> Segment | None:
        """A segment for one more job, if it is there; follow it with `unuse`."""
        segment = self.segments.get(number)
        if segment is not None:
            segment.users += 1
        return segment

    def unuse(self, segment: Segment) -> None:
        """A job is over."""
        segment.users -= 1
        if segment.retired and not segment.users:
            segment.file.close()

    def let_go(self, segment: Segment) -> None:
        """Retire a segment: close its file once no job uses it."""
        segment.retired = True
        if not segment.users:
            segment.file.close()

    def abandon(self) -> tuple[bytes, ...]:
        """Let go of everything, on the disk it stays. Gives the names that were there."""
        self._round += 1
        self._lane.clear()
        self._making_room.clear()
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.done():
            _close(ahead)
        elif ahead is not None:
            ahead.add_done_callback(_close)
        names = self._log.names()
        for number, segment in self.segments.items():
            self.let_go(segment)
            self._log.drop(number)
        self.segments.clear()
        self.strays.clear()
        return names

    async def shrink(self) -> None:
        """Remove strays that are over the number of segments there may be."""
        while self.strays and len(self._log) + len(self.strays) >= self._log.segments_max:
            await self._remove_stray()

    async def _do(self, work: Callable[[], T]) -> T:
        """Have a thread do something. Raises what it raises, or `OSError` when the disk does not answer or was given
        up meanwhile."""
        begun = self._round
        future = self._making_room.submit(work)
        await self.ended(future)
        if future.cancelled() or self._round != begun:
            raise OSError(errno.EIO, "the disk was given up")
        return future.result()

    async def ended(self, future: "asyncio.Future[T]") -> None:
        """Wait for a job, but not for a disk that does not answer: then it raises `TimeoutError`."""
        while not future.done():
            done, _ = await asyncio.wait((future,), timeout=self._stall_s)
            if not done and self._thread_pool.busy_for_s() >= self._stall_s:
                raise TimeoutError("the disk does not answer")

    async def _remove_stray(self) -> None:
        name = self.strays.pop().name
        await self._do(lambda: self._disk.remove(name))

    async def _make_room(self) -> None:
        """See to it that the next record has a place. Raises `OSError`."""
        for _ in range(self._log.segments_max):
            if not self._log.full:
                return
            await self._roll()
        if self._log.full:
            raise OSError(errno.EBUSY, "everything on the disk must be kept")

    async def _roll(self) -> None:
        """Begin a new segment, at the expense of the oldest where need be. Raises `OSError`."""
        while self.strays and len(self._log) + len(self.strays) >= self._log.segments_max - 1:
            await self._remove_stray()
        victim = self._log.oldest() if self._log.crowded else None
        if self._log.crowded and victim is None:
            raise OSError(errno.EBUSY, "every segment is being written to")
        try:
            await self._begin()
        except OSError as error:
            if reason_of(error) != "disk_full" or not await self._sacrifice():
                raise
            victim = None
            await self._begin()
        gone = None if victim is None else await self._empty(victim)
        self._ahead = self._make(gone)

    async def _begin(self) -> None:
        """Open the segment that was made ahead; make one where there is none, or was no room for it then."""
        ahead = self._ahead
        if ahead is None or (ahead.done() and _found_no_room(ahead)):
            ahead = self._ahead = self._make(None)
        try:
            await self.ended(ahead)
            if self._ahead is not ahead:
                raise OSError(errno.EIO, "the disk was given up")
            segment = ahead.result()
        finally:
            if self._ahead is ahead and ahead.done():
                self._ahead = None
        self.segments[segment.head.number] = segment
        self._log.begin(segment.head.number, self._records)

    def _make(self, gone: "_Gone | None") -> "asyncio.Future[Segment]":
        """Have the next segment made: in the file of the one that is gone, or anew once that is removed."""
        number, taken = self._log.next_number(), {stray.number for stray in self.strays}
        while number in taken:
            number += 1
        before = gone.segment.head.segment_id if gone is not None and gone.reusable else bytes(16)
        head = SegmentHead(self._entropy.token(16), number, self._records, self._seal, before)
        future = self._making_room.submit(lambda: self._create(head, gone))
        future.add_done_callback(_made)
        return future

    async def finish(self, within_s: float) -> None:
        """Remove the segment that was made ahead: nothing was written to it."""
        if self._ahead is None:
            return
        done, _ = await asyncio.wait((self._ahead,), timeout=within_s)
        for ahead in done:
            if (segment := _made(ahead)) is not None:
                self._making_room.submit(partial(self._disk.remove, segment.name))

    def _create(self, head: SegmentHead, gone: "_Gone | None") -> Segment:
        """Create the file of a segment and write its head, on a thread. Raises `OSError`."""
        name = file_name(head.number)
        file = self._new_file(name, self._io.shape.offset(head.records), gone)
        page = aligned_buffer(ALIGN)
        page[:] = encode_segment(head, self._io.shape)
        try:
            file.write((page,), 0)
        except OSError:
            file.close()
            self._disk.remove(name)
            raise
        return Segment(head, file, name)

    def _new_file(self, name: str, size: int, gone: "_Gone | None") -> DiskFile:
        if gone is not None and gone.reusable:
            with suppress(FileNotFoundError):  # Somebody else has removed it.
                return self._disk.reuse(gone.segment.name, name, size)
        elif gone is not None:
            self._disk.remove(gone.segment.name)
        self._disk.remove(name)
        return self._disk.create(name, size)

    async def _sacrifice(self) -> bool:
        """The disk has less room than we were promised: give up a stray or the oldest segment with all it has."""
        if self.strays:
            await self._remove_stray()
            return True
        victim = self._log.oldest()
        if victim is None:
            return False
        name = self._give_up(victim, "disk_full").segment.name
        await self._do(lambda: self._disk.remove(name))
        return True

    async def _empty(self, victim: int) -> "_Gone":
        """Write anew what must be kept, then what is worth it up to half a segment; the rest goes with the segment.
        Gives it back with nothing in it that is wanted.

        What must be kept is a bounded share of everything, so that some segment has room to give.
        """
        assert self.owner is not None
        live = [(self.owner.worth(name), index, name) for index, name in self._log.live(victim)]
        must = [(index, name) for worth, index, name in live if worth == 2]
        worth_it = [(index, name) for worth, index, name in live if worth == 1]
        chosen = sorted(must + worth_it[: max(0, self._records // 2 - len(must))])
        for run in _side_by_side(chosen, self._io.batch):
            await self._move(victim, run)
        return self._give_up(victim, "reclaimed")

    async def _move(self, victim: int, run: Sequence[tuple[int, bytes]]) -> None:
        """Write records of a segment anew that lie side by side: (record number, name) each."""
        assert self.owner is not None
        first, places = run[0][0], [self._log.append(name) for _, name in run]
        source, target = self.use(victim), self.use(segment_of(places[0]))
        assert source is not None
        assert target is not None
        lost = list(range(len(run)))
        try:
            lost = await self._do(lambda: self._io.move(source, first, target, index_of(places[0]), len(run)))
        finally:
            for number, ((index, name), place) in enumerate(zip(run, places, strict=True)):
                # The name of one that is lost goes with its segment.
                if number not in lost and self.owner.moved(name, place):
                    self._log.free(place_of(victim, index))
                else:
                    self._log.free(place)
                self._log.written(place)
            self.unuse(source)
            self.unuse(target)

    def _give_up(self, victim: int, reason: str) -> "_Gone":
        """Give up a segment with all its blocks. Its file stays on the disk.

        The file is reused without being removed, because removing it and allocating a new one would keep the disk
        from writing. To be reused, it must have been filled with records under the present seal, which can be told
        from new ones.
        """
        assert self.owner is not None
        names = [name for _, name in self._log.live(victim)]
        segment, filled = self.segments.pop(victim), self._log.filled(victim)
        self._log.drop(victim)
        self.owner.lost(names, reason)
        self.let_go(segment)
        alike = segment.head.records == self._records and segment.head.seal == self._seal
        return _Gone(segment, filled and alike and not segment.users)


def _made(future: "asyncio.Future[Segment]") -> Segment | None:
    """The segment being made, if it is ready. An error that prevented it is reported to the caller that needs the
    segment, not to asyncio."""
    return None if future.cancelled() or future.exception() is not None else future.result()


def _close(future: "asyncio.Future[Segment]") -> None:
    """Close the file of a segment that was being made and is no longer wanted."""
    if (segment := _made(future)) is not None:
        segment.file.close()


def _found_no_room(future: "asyncio.Future[Segment]") -> bool:
    error = None if future.cancelled() else future.exception()
    return isinstance(error, OSError) and reason_of(error) == "disk_full"


def _side_by_side(records: Sequence[tuple[int, bytes]], most: int) -> list[list[tuple[int, bytes]]]:
    """Records in order, in runs of at most `most` whose numbers follow each other."""
    runs = list[list[tuple[int, bytes]]]()
    for record in records:
        run = runs[-1] if runs else None
        if run is not None and len(run) < most and record[0] == run[-1][0] + 1:
            run.append(record)
        else:
            runs.append([record])
    return runs
