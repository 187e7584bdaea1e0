"""The writing side of the NVMe shelf: appending runs of records, new segments, and segments that make room."""

import asyncio
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kv_transfer.tiers.crew import Crew
from kv_transfer.tiers.disk import Disk, aligned_buffer, reason_of
from kv_transfer.tiers.mac import Seal
from kv_transfer.tiers.nvme_scan import Stray, file_name
from kv_transfer.tiers.record import ALIGN, SegmentHead, encode_segment
from kv_transfer.tiers.segment_io import Segment, SegmentIo
from kv_transfer.tiers.segment_log import SegmentLog, index_of, place_of, segment_of
from kv_transfer.tiers.shelf import Item, ShelfOwner
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
        crew: Crew,
        stall_s: float,
    ) -> None:
        self._disk = disk
        self._io = io
        self._log = log
        self._seal = seal
        self._records = records
        self._entropy = entropy
        self._crew = crew
        self._lane = crew.lane()
        self._making_room = crew.lane()
        """Its turn comes next: everything that is to be written waits for it."""
        self._stall_s = stall_s
        self._round = 0
        """Grows when everything is let go of: what was under way then is not gone on with."""
        self._rolling = asyncio.Lock()
        self.segments: dict[int, Segment] = {}
        self.strays: list[Stray] = []
        """Files of no use, the newest first: the first to go when room is needed."""
        self.owner: ShelfOwner | None = None

    # -- appending --

    async def allocate(self, items: Sequence[Item]) -> list[Run]:
        """Places for blocks, in runs of at most a batch. Raises `OSError` when there is no room for a new segment:
        then nothing is allocated."""
        runs = list[Run]()
        async with self._rolling:
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
        """Close a segment's file once no job has it in hand."""
        segment.retired = True
        if not segment.users:
            segment.file.close()

    def abandon(self) -> tuple[bytes, ...]:
        """Let go of everything, on the disk it stays. Gives the names that were there."""
        self._round += 1
        self._lane.clear()
        self._making_room.clear()
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
            if not done and self._crew.busy_for_s() >= self._stall_s:
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
        if victim is not None:
            await self._empty(victim)

    async def _begin(self) -> None:
        number = self._log.next_number()
        head = SegmentHead(self._entropy.token(16), number, self._records, self._seal)
        segment = await self._do(lambda: self._create(head))
        self.segments[number] = segment
        self._log.begin(number, self._records)

    def _create(self, head: SegmentHead) -> Segment:
        """By a thread. Raises `OSError`."""
        name = file_name(head.number)
        self._disk.remove(name)
        file = self._disk.create(name, self._io.shape.offset(head.records))
        page = aligned_buffer(ALIGN)
        page[:] = encode_segment(head, self._io.shape)
        try:
            file.write((page,), 0)
        except OSError:
            file.close()
            self._disk.remove(name)
            raise
        return Segment(head, file, name)

    async def _sacrifice(self) -> bool:
        """The disk has less room than we were promised: give up a stray or the oldest segment with all it has."""
        if self.strays:
            await self._remove_stray()
            return True
        victim = self._log.oldest()
        if victim is None:
            return False
        await self._give_up(victim, "disk_full")
        return True

    async def _empty(self, victim: int) -> None:
        """Write anew what must be kept, then what is worth it up to half a segment; the rest goes with the segment.

        What must be kept is a bounded share of everything, so that some segment has room to give.
        """
        assert self.owner is not None
        live = [(self.owner.worth(name), index, name) for index, name in self._log.live(victim)]
        must = [(index, name) for worth, index, name in live if worth == 2]
        worth_it = [(index, name) for worth, index, name in live if worth == 1]
        chosen = sorted(must + worth_it[: max(0, self._records // 2 - len(must))])
        for run in _side_by_side(chosen, self._io.batch):
            await self._move(victim, run)
        await self._give_up(victim, "reclaimed")

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

    async def _give_up(self, victim: int, reason: str) -> None:
        assert self.owner is not None
        names = [name for _, name in self._log.live(victim)]
        segment = self.segments.pop(victim)
        self._log.drop(victim)
        self.owner.lost(names, reason)
        self.let_go(segment)
        await self._do(lambda: self._disk.remove(segment.name))


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
