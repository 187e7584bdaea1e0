"""`Copies` for tensors in host memory: everything is over when the call returns."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from kv_transfer.connectors.cache_pages import CachePages
from kv_transfer.connectors.orders import PageTarget


@dataclass(frozen=True)
class Copied:
    """Copies that are over."""

    bytes: int
    seconds: float
    over: bool = True


class HostCopies:
    """Neighbours that lie side by side in the cache and in the stage are copied as one piece."""

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
        began, pages = time.perf_counter(), self._pages
        if not pages.part.writes:
            return Copied(0, 0.0)
        whole = len(layers) == len(pages.layers)
        for slots, blocks in _runs(targets):
            own = self.slots[slots]
            if pages.stacked is not None and whole:
                self._put(own, pages.stacked[:, blocks].transpose(0, 1))
                continue
            for layer in layers:
                self._put(own[:, layer : layer + 1], pages.layers[layer][blocks].unsqueeze(1))
        share = pages.block_bytes * len(layers) // len(pages.layers)
        return Copied(len(targets) * share, time.perf_counter() - began)

    def load(self, targets: Sequence[PageTarget]) -> Copied:
        began, pages = time.perf_counter(), self._pages
        for slots, blocks in _runs(targets):
            own = self.slots[slots]
            if pages.stacked is not None:
                pages.stacked[:, blocks].copy_(own[:, :, pages.units].transpose(0, 1))
                continue
            for layer, cache in enumerate(pages.layers):
                cache[blocks].copy_(own[:, layer, pages.units])
        return Copied(len(targets) * pages.block_bytes, time.perf_counter() - began)

    def close(self) -> None:
        self._slots = None

    def _put(self, own: torch.Tensor, pages: torch.Tensor) -> None:
        units = self._pages.units
        if isinstance(units, slice):
            own[:, :, units].copy_(pages)
        else:
            own[:, :, units] = pages


def _runs(targets: Sequence[PageTarget]) -> Iterator[tuple[slice, slice]]:
    """Slots and blocks that follow one another on both sides."""
    start = 0
    for end in range(1, len(targets) + 1):
        first, last = targets[start], targets[end - 1]
        if end < len(targets):
            after = targets[end]
            if (after.slot, after.block) == (last.slot + 1, last.block + 1):
                continue
        yield slice(first.slot, last.slot + 1), slice(first.block, last.block + 1)
        start = end
