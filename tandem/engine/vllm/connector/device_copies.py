"""`Copies` for tensors on a CUDA device: on side streams, behind events, to and from pinned memory.

Whatever the layout of the engine's cache, one kernel gathers the pages of many blocks in canonical order in a buffer
on the device, and one batched copy moves them to their slots; loads go the other way. So the link transfers pieces of
a whole block (of a layer's heads where ranks share a slot). The detour through the buffer costs only device memory
traffic, some hundredths of the link's time.

Saves run on a stream of their own, behind what the step has computed so far, while the engine goes on computing. Full
blocks are not written to again while their request has them, and the engine keeps the blocks of a finished request
until its saves are reported as over. The blocks of a preempted request are reassigned at once, so the next step
begins with a fence: the engine's stream waits, the host does not. Loads begin behind everything that was launched
before the step.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from tandem.engine.vllm.connector.cache_pages import CachePages
from tandem.engine.vllm.connector.device_calls import DeviceCalls, Event, pinned_pieces
from tandem.engine.vllm.connector.orders import PageTarget

_BUFFER_BYTES: Final = 64 << 20
_GROUPS: Final = 4
"""A step's blocks are saved in so many groups of layers: the first are on their way while the last are computed."""


class DeviceCopying:
    """Copies between two events of a stream. Keeps what they read alive until they are over."""

    def __init__(self, size_bytes: int, began: Event, ended: Event, kept: list[torch.Tensor]) -> None:
        self.bytes = size_bytes
        self._began = began
        self.ended = ended
        self._kept = kept
        self._over = False

    @property
    def over(self) -> bool:
        if not self._over and self.ended.query():
            self._over = True
            self._kept.clear()
        return self._over

    @property
    def seconds(self) -> float:
        return self._began.elapsed_time(self.ended) / 1e3


class _Lane:
    """A stream with a buffer of `blocks` blocks of this rank."""

    def __init__(self, calls: DeviceCalls, pages: CachePages, blocks: int) -> None:
        self.stream = calls.side_stream()
        page = pages.layers[0].shape[2:]
        shape = (blocks * len(pages.layers), len(pages.part.units), *page)
        self.buffer = torch.empty(shape, dtype=pages.layers[0].dtype, device=pages.device)


class DeviceCopies:
    """The copies of one rank. They allocate `buffer_bytes` of device memory twice, for saves and for loads."""

    def __init__(self, pages: CachePages, calls: DeviceCalls, buffer_bytes: int = _BUFFER_BYTES) -> None:
        self._pages = pages
        self._calls = calls
        self._at_once = max(1, buffer_bytes // pages.block_bytes)
        self._saving = _Lane(calls, pages, self._at_once)
        self._loading = _Lane(calls, pages, self._at_once)
        self._saved: Event | None = None
        """Behind the last save that was begun."""
        self._base = 0
        self._pinned: list[int] = []
        self._memory: memoryview | None = None
        count = len(pages.layers)
        size = -(-count // _GROUPS)
        self.groups = tuple(range(first, min(first + size, count)) for first in range(0, count, size))

    def map_slots(self, memory: memoryview) -> None:
        self._memory = memory
        self._base = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        for offset, size_bytes in pinned_pieces(len(memory), self._pages.shape.slot_bytes):
            self._calls.pin(self._base + offset, size_bytes)
            self._pinned.append(self._base + offset)

    def begin_step(self, *, fence: bool) -> None:
        calls, engine = self._calls, self._calls.current_stream()
        if fence and self._saved is not None:
            calls.wait(engine, self._saved)
        before = calls.event()
        before.record(engine)
        calls.wait(self._loading.stream, before)

    def blank(self, blocks: Sequence[int]) -> None:
        self._pages.blank(blocks)

    def save(self, targets: Sequence[PageTarget], layers: range) -> DeviceCopying:
        calls, lane = self._calls, self._saving
        computed = calls.event()
        computed.record(calls.current_stream())
        calls.wait(lane.stream, computed)
        wanted = targets if self._pages.part.writes else ()
        copying = self._batches(lane, wanted, layers, saving=True)
        self._saved = copying.ended
        return copying

    def load(self, targets: Sequence[PageTarget]) -> DeviceCopying:
        return self._batches(self._loading, targets, range(len(self._pages.layers)), saving=False)

    def close(self) -> None:
        if self._memory is None:
            return
        for lane in (self._saving, self._loading):
            last = self._calls.event()
            last.record(lane.stream)
            last.synchronize()
        for address in self._pinned:
            self._calls.unpin(address)
        self._pinned, self._memory = [], None

    def _batches(self, lane: _Lane, targets: Sequence[PageTarget], layers: range, *, saving: bool) -> DeviceCopying:
        """Blocks that fit the buffer at a time, one batch behind the other on the lane's stream."""
        calls, kept = self._calls, list[torch.Tensor]()
        began, ended = calls.event(), calls.event()
        with calls.on(lane.stream):
            began.record(lane.stream)
            for start in range(0, len(targets), self._at_once):
                some = targets[start : start + self._at_once]
                blocks = calls.numbers([target.block for target in some])
                rows = lane.buffer[: len(some) * len(layers)].view(len(some), len(layers), *lane.buffer.shape[1:])
                there, here, sizes = self._addresses(rows, some, layers)
                if saving:
                    self._gather(rows, blocks, layers)
                    calls.copy(here, there, sizes, steady=False)
                else:
                    calls.copy(there, here, sizes, steady=True)
                    self._scatter(rows, blocks, layers)
                kept += [blocks, there, here, sizes]
            ended.record(lane.stream)
        share = self._pages.block_bytes * len(layers) // len(self._pages.layers)
        return DeviceCopying(len(targets) * share, began, ended, kept)

    def _gather(self, rows: torch.Tensor, blocks: torch.Tensor, layers: range) -> None:
        if self._pages.stacked is not None:
            rows.copy_(self._pages.stacked[layers.start : layers.stop].index_select(1, blocks).transpose(0, 1))
            return
        for at, layer in enumerate(layers):
            rows[:, at].copy_(self._pages.layers[layer].index_select(0, blocks))

    def _scatter(self, rows: torch.Tensor, blocks: torch.Tensor, layers: range) -> None:
        if self._pages.stacked is not None:
            self._pages.stacked[layers.start : layers.stop].index_copy_(1, blocks, rows.transpose(0, 1))
            return
        for at, layer in enumerate(layers):
            self._pages.layers[layer].index_copy_(0, blocks, rows[:, at])

    def _addresses(
        self, rows: torch.Tensor, targets: Sequence[PageTarget], layers: range
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Addresses in the slots, addresses in the buffer, and sizes of the pieces that are contiguous in both."""
        pages = self._pages
        shape, part = pages.shape, pages.part
        runs = pages.unit_runs
        whole = len(runs) == 1 and len(part.units) == shape.units
        pieces = [(0, 0, 0, len(layers) * len(part.units))] if whole else [
            (layer, here.start, there.start, there.stop - there.start)
            for layer in range(len(layers))
            for there, here in runs
        ]  # fmt: skip
        layer, at, unit, count = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
        slots = np.array([target.slot for target in targets], np.int64)[:, None] * shape.slot_bytes
        first = part.layer_first + layers.start
        there = self._base + slots + ((first + layer) * shape.units + unit) * shape.page_bytes
        row = np.arange(len(targets), dtype=np.int64)[:, None] * len(layers) * len(part.units)
        here = rows.data_ptr() + (row + layer * len(part.units) + at) * shape.page_bytes
        sizes = np.broadcast_to(count * shape.page_bytes, there.shape)
        return _flat(there), _flat(here), _flat(sizes)


def _flat(numbers: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers).reshape(-1).copy())
