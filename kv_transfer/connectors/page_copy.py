"""Copies a rank's pages between the engine's KV tensors and canonical slots (`tandem.engine.vllm.canonical`).

vLLM shows every layer's cache as `[blocks, head slots, states, content]`, with whatever strides its layout has (NHD
and HND differ in nothing else). A page is `[states, content]` of one block and head slot. Its content is opaque: keys
and values next to each other per position on CUDA, the packing of one instruction set on a CPU.
"""

from collections.abc import Sequence

import torch

from kv_transfer.connectors.orders import PageTarget
from tandem.core.errors import TandemError
from tandem.engine.vllm.canonical import RankPart, SlotShape


class PageCopier:
    """Moves whole blocks of one rank. `layers` are its cache tensors in the order of the model's layers."""

    def __init__(self, layers: Sequence[torch.Tensor], blocks: int, part: RankPart, shape: SlotShape) -> None:
        assert len(layers) == part.layer_count, f"{len(layers)} tensors for {part.layer_count} layers"
        self._cache = [_by_block(_as_words(layer), blocks) for layer in layers]
        self._stacked = _stacked(self._cache)
        self._part = part
        self._shape = shape
        self._units = _run(part.units)
        self._unit_list = list(part.units)

    def map_slots(self, memory: memoryview) -> None:
        """Use this memory as slots."""
        shape, part, cache = self._shape, self._part, self._cache[0]
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        whole = flat.view(-1, shape.layers, shape.units, shape.page_bytes)
        own = whole[:, part.layer_first : part.layer_first + part.layer_count].view(cache.dtype)
        # [slots, layers, units, kernel blocks, states, content]
        self._own = own.view(*own.shape[:3], *cache.shape[2:])

    def save(self, targets: Sequence[PageTarget]) -> None:
        """Copy this rank's part of the engine's blocks to their slots; nothing for a rank that does not write."""
        if not self._part.writes:
            return
        for target in targets:
            slot = self._own[target.slot]
            if self._stacked is not None:
                self._put(slot, self._stacked[:, target.block])
                continue
            for layer, cache in enumerate(self._cache):
                self._put(slot[layer : layer + 1], cache[target.block].unsqueeze(0))

    def load(self, targets: Sequence[PageTarget]) -> None:
        """Copy this rank's part of slots to the engine's blocks."""
        for target in targets:
            slot = self._own[target.slot]
            if self._stacked is not None:
                self._stacked[:, target.block].copy_(self._get(slot))
                continue
            for layer, cache in enumerate(self._cache):
                cache[target.block].copy_(self._get(slot[layer : layer + 1])[0])

    def blank(self, blocks: Sequence[int]) -> None:
        """Zero all pages of the engine's blocks."""
        for block in blocks:
            for cache in self._cache:
                cache[block].zero_()

    def _put(self, slot: torch.Tensor, pages: torch.Tensor) -> None:
        if self._units is not None:
            slot[:, self._units].copy_(pages)
        else:
            slot[:, self._unit_list] = pages.to(slot.device)

    def _get(self, slot: torch.Tensor) -> torch.Tensor:
        return slot[:, self._units] if self._units is not None else slot[:, self._unit_list]


def _as_words(layer: torch.Tensor) -> torch.Tensor:
    """The same bytes as integers, the largest that fit: values mean nothing here, and few large ones copy faster."""
    if layer.stride(-1) != 1:
        return layer
    lengths = (layer.shape[-1], layer.storage_offset(), *layer.stride()[:-1])
    for words in (torch.int64, torch.int32, torch.int16):
        if all(length * layer.element_size() % words.itemsize == 0 for length in lengths):
            return layer.view(words)
    return layer


def _by_block(layer: torch.Tensor, blocks: int) -> torch.Tensor:
    """The cache as `[blocks, head slots, kernel blocks, states, content]`: kernels may see a block as several."""
    if layer.dim() != 4 or layer.shape[0] % blocks:
        raise TandemError(
            "engine_failed",
            f"a KV cache of shape {tuple(layer.shape)} for {blocks} blocks is none this connector knows: "
            "[blocks, heads, states, content] is expected",
        )
    kernel_blocks, stride = layer.shape[0] // blocks, layer.stride()
    split = layer.as_strided((blocks, kernel_blocks, *layer.shape[1:]), (kernel_blocks * stride[0], *stride))
    return split.transpose(1, 2)


def _stacked(layers: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """All layers as one tensor, where they are views of one allocation with the same distance between neighbours."""
    first = layers[0]
    offsets = [layer.storage_offset() for layer in layers]
    step = offsets[1] - offsets[0] if len(layers) > 1 else 0
    regular = all(
        layer.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and layer.stride() == first.stride()
        and layer.shape == first.shape
        and layer.dtype == first.dtype
        and offset == offsets[0] + at * step
        for at, (layer, offset) in enumerate(zip(layers, offsets, strict=True))
    )
    if not regular or step < 0 or (len(layers) > 1 and step == 0):
        return None
    return torch.as_strided(first, (len(layers), *first.shape), (step, *first.stride()), offsets[0])


def _run(units: tuple[int, ...]) -> slice | None:
    """The units as a slice, where they are neighbours in order."""
    return slice(units[0], units[-1] + 1) if units == tuple(range(units[0], units[-1] + 1)) else None
