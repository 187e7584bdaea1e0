"""`Copies` for tensors in host memory: everything is over when the call returns.

Neighbours that lie side by side in the cache and in the stage are copied as one piece, which torch does with all
threads that it has. Where pieces are so small that the calls would take longer than the bytes, many scattered blocks
of a layer go together, by their numbers.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from tandem.engine.vllm.connector.cache_pages import CachePages
from tandem.engine.vllm.connector.orders import PageTarget

_PIECE_BYTES: Final = 256 << 10
"""Less than this is not copied in a call of its own: torch takes one thread for it, and some microseconds beside."""
_TOGETHER_BYTES: Final = 1 << 20
"""Blocks that go together pass through a copy of this size, which stays in the core's cache."""

Pair = tuple[torch.Tensor, torch.Tensor]
"""Pages of the same layers and head slots: of all slots, and of all blocks of the cache."""


@dataclass(frozen=True)
class Copied:
    """Copies that are over."""

    bytes: int
    seconds: float
    over: bool = True


class HostCopies:
    """The copies of one rank between cache tensors in host memory and slots."""

    def __init__(self, pages: CachePages) -> None:
        self._pages = pages
        self._slots: torch.Tensor | None = None
        self.groups = (range(len(pages.layers)),)

    @property
    def slots(self) -> torch.Tensor:
        assert self._slots is not None, "map_slots() comes first"
        return self._slots

    def map_slots(self, memory: memoryview) -> None:
        self._slots = self._pages.slots(memory)

    def begin_step(self, *, fence: bool) -> None:
        """Nothing is under way."""

    def blank(self, blocks: Sequence[int]) -> None:
        self._pages.blank(blocks)

    def save(self, targets: Sequence[PageTarget], layers: range) -> Copied:
        if not self._pages.part.writes:
            return Copied(0, 0.0)
        return self._copy(targets, layers, saving=True)

    def load(self, targets: Sequence[PageTarget]) -> Copied:
        return self._copy(targets, range(len(self._pages.layers)), saving=False)

    def close(self) -> None:
        self._slots = None

    def _copy(self, targets: Sequence[PageTarget], layers: range, *, saving: bool) -> Copied:
        began, pages = time.perf_counter(), self._pages
        share = pages.block_bytes * len(layers) // len(pages.layers)
        pairs = self._stacked(layers) if pages.stacked is not None else self._by_layer(layers)
        scattered = list[PageTarget]()
        for start, end in _runs(targets):
            if share * (end - start) < len(pairs) * _PIECE_BYTES:
                scattered += targets[start:end]
                continue
            slot, block, count = targets[start].slot, targets[start].block, end - start
            for own, cached in pairs:
                # A number leaves torch one dimension less to go through than a piece of one has.
                if count == 1:
                    _move(own[slot], cached[block], saving=saving)
                else:
                    _move(own[slot : slot + count], cached[block : block + count], saving=saving)
        if scattered:
            self._copy_scattered(scattered, layers, saving=saving)
        return Copied(len(targets) * share, time.perf_counter() - began)

    def _copy_scattered(self, targets: Sequence[PageTarget], layers: range, *, saving: bool) -> None:
        slots = np.array([target.slot for target in targets])
        blocks = np.array([target.block for target in targets])
        step = max(1, _TOGETHER_BYTES * len(self._pages.layers) // self._pages.block_bytes)
        for own_pages, cached_pages in self._by_layer(layers):
            own: Any = own_pages.numpy()
            cached: Any = cached_pages.numpy()
            for start in range(0, len(targets), step):
                mine, theirs = slots[start : start + step], blocks[start : start + step]
                if saving:
                    own[mine] = cached[theirs]
                else:
                    cached[theirs] = own[mine]

    def _stacked(self, layers: range) -> list[Pair]:
        stacked = self._pages.stacked
        assert stacked is not None
        some = slice(layers.start, layers.stop)
        return [
            (self.slots[:, some, there], stacked[some, :, here].transpose(0, 1))
            for there, here in self._pages.unit_runs
        ]

    def _by_layer(self, layers: range) -> list[Pair]:
        pages = self._pages
        return [
            (self.slots[:, layer, there], pages.layers[layer][:, here])
            for layer in layers
            for there, here in pages.unit_runs
        ]


def _move(own: torch.Tensor, cached: torch.Tensor, *, saving: bool) -> None:
    if saving:
        own.copy_(cached)
    else:
        cached.copy_(own)


def _runs(targets: Sequence[PageTarget]) -> Iterator[tuple[int, int]]:
    """The start and end indexes of runs of targets whose slots and blocks are both consecutive."""
    start = 0
    for end in range(1, len(targets) + 1):
        last = targets[end - 1]
        if end < len(targets):
            after = targets[end]
            if (after.slot, after.block) == (last.slot + 1, last.block + 1):
                continue
        yield start, end
        start = end
