"""Views of a rank's KV tensors, and of its part of canonical slots (`tandem.engine.vllm.canonical`), that match.

vLLM shows every layer's cache as `[blocks, head slots, states, content]`, with whatever strides its layout has (NHD
and HND differ in nothing else). A page is `[states, content]` of one block and head slot. Its content is opaque: keys
and values next to each other per position on CUDA, the packing of one instruction set on a CPU.
"""

from collections.abc import Sequence
from functools import cached_property

import torch

from tandem.core.errors import TandemError
from tandem.engine.vllm.canonical import RankPart, SlotShape


class CachePages:
    """The KV cache pages of one rank. `layers` are its cache tensors in the order of the model's layers."""

    def __init__(self, layers: Sequence[torch.Tensor], blocks: int, part: RankPart, shape: SlotShape) -> None:
        assert len(layers) == part.layer_count, f"{len(layers)} tensors for {part.layer_count} layers"
        self.part = part
        self.shape = shape
        self.layers = [_by_block(_as_words(layer), blocks) for layer in layers]
        """The cache tensors by layer, each `[blocks, head slots, kernel blocks, states, content]`."""
        self.stacked = _stacked(self.layers)
        """The layers as one tensor with the layer in front, where they lie evenly in one allocation; else None."""

    @property
    def device(self) -> torch.device:
        return self.layers[0].device

    @property
    def block_bytes(self) -> int:
        """Bytes of one block that this rank holds."""
        return self.part.layer_count * len(self.part.units) * self.shape.page_bytes

    @cached_property
    def unit_runs(self) -> list[tuple[slice, slice]]:
        """The rank's head slots in runs that are neighbours on both sides: in a slot, and in the cache."""
        runs = list[tuple[slice, slice]]()
        for at, unit in enumerate(self.part.units):
            if runs and unit == runs[-1][0].stop:
                there, here = runs[-1]
                runs[-1] = slice(there.start, unit + 1), slice(here.start, at + 1)
            else:
                runs.append((slice(unit, unit + 1), slice(at, at + 1)))
        return runs

    def slots(self, memory: memoryview) -> torch.Tensor:
        """This rank's layers in all slots: `[slots, layers, units, kernel blocks, states, content]`."""
        shape, part, cache = self.shape, self.part, self.layers[0]
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        whole = flat[: len(flat) - len(flat) % shape.slot_bytes].view(-1, shape.layers, shape.units, shape.page_bytes)
        own = whole[:, part.layer_first : part.layer_first + part.layer_count].view(cache.dtype)
        return own.view(*own.shape[:3], *cache.shape[2:])

    def blank(self, blocks: Sequence[int]) -> None:
        """Zero all pages of the engine's blocks."""
        for block in blocks:
            if self.stacked is not None:
                self.stacked[:, block].zero_()
                continue
            for cache in self.layers:
                cache[block].zero_()


def _as_words(layer: torch.Tensor) -> torch.Tensor:
    """The bytes of a layer as integers, the largest that fit: values mean nothing here, and few large ones copy
    faster."""
    item_bytes = layer.element_size()
    lengths = (layer.shape[-1], layer.storage_offset(), *layer.stride()[:-1])
    for words in (torch.int64, torch.int32, torch.int16, torch.uint8):
        even = layer.stride(-1) == 1 and all(length * item_bytes % words.itemsize == 0 for length in lengths)
        if words.itemsize == item_bytes or (words.itemsize > item_bytes and even):
            return layer.view(words)
    raise AssertionError(f"elements of {item_bytes} bytes")


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
