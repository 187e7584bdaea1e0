"""Step 2: the connector's copies between vLLM's cache layouts and stage slots: right or not, how fast, how blocking.

Tensors have the shapes and strides that vLLM 0.32 gives its caches; vLLM itself is not needed.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.target import Target
from kv_transfer.connectors.cache_pages import CachePages
from kv_transfer.connectors.host_copies import HostCopies
from kv_transfer.connectors.orders import PageTarget
from tandem.engine.memory import HostMemory
from tandem.engine.torch.pool import pin
from tandem.engine.vllm.canonical import RankPart, SlotShape

TITLE = "The connector's copies"
_TOKENS = 16


@dataclass(frozen=True)
class _Model:
    """Of one rank. `content` is what one position of a head slot holds, in 16-bit numbers."""

    name: str
    layers: int
    slots: int
    content: int
    tensor: int = 1

    @property
    def page_bytes(self) -> int:
        return _TOKENS * self.content * 2


_MODELS = (
    _Model("8B, TP 1", 32, 8, 256),
    _Model("70B, TP 1", 80, 8, 256),
    _Model("70B, a rank of TP 4", 80, 2, 256, 4),
    _Model("MLA", 61, 1, 576),
)
_ORDERS = {"LBHNC": (0, 1, 2, 3, 4), "BLHNC": (1, 0, 2, 3, 4)}


def measure(target: Target) -> Iterator[Figure]:
    """Rates of saving and loading, pageable and pinned, and what they do to computing beside them."""
    for model in _MODELS[:1] if target.tiny else _MODELS:
        for order in _ORDERS:
            yield from _one(target, model, order)


def _one(target: Target, model: _Model, order: str) -> Iterator[Figure]:
    blocks = target.sized(max(32, min(256, (1 << 30) // (model.page_bytes * model.slots * model.layers))), 4)
    layers = model.layers if not target.tiny else 4
    units = model.slots * model.tensor
    shape = SlotShape(layers, units, model.page_bytes)
    memory = HostMemory(shape.slot_bytes, blocks)
    cache = _cache(target, model, order, layers, blocks)
    copier = HostCopies(CachePages(cache, blocks, RankPart(0, layers, tuple(range(model.slots))), shape))
    copier.map_slots(memory.buffer)
    targets = [PageTarget(index, slot, index) for index, slot in enumerate(reversed(range(blocks)))]
    size = blocks * layers * model.slots * model.page_bytes
    what = f"{model.name}, {order}"
    _check(target, copier, cache, targets, what)
    for kind in ("pageable", "pinned"):
        if kind == "pinned":
            if not target.on_gpu:
                continue
            pin(torch.frombuffer(memory.buffer, dtype=torch.uint8))
        yield Figure(
            f"{what}: save, {kind}",
            size / target.seconds(lambda: copier.save(targets, copier.groups[0])) / 1e9,
            "GB/s",
        )
        yield Figure(f"{what}: load, {kind}", size / target.seconds(lambda: copier.load(targets)) / 1e9, "GB/s")
    if target.on_gpu:
        yield _stretch(target, copier, targets, what)
        yield Figure(f"{what}: save, waits for the device", _syncs(copier, targets), "per call")


def _cache(target: Target, model: _Model, order: str, layers: int, blocks: int) -> list[torch.Tensor]:
    """Random pages: per layer `[blocks, head slots, positions, content]` with the strides of a layout."""
    shape, axes = (layers, blocks, model.slots, _TOKENS, model.content), _ORDERS[order]
    whole = torch.randint(-30_000, 30_000, [shape[axis] for axis in axes], dtype=torch.int16, device=target.device)
    logical = whole.permute([axes.index(axis) for axis in range(5)])
    return [logical[layer] for layer in range(layers)]


def _check(
    target: Target, copier: HostCopies, cache: list[torch.Tensor], targets: list[PageTarget], what: str
) -> None:
    """Bytes that were saved come back into a cache that was overwritten meanwhile."""
    before = [layer.clone() for layer in cache]
    copier.save(targets, copier.groups[0])
    target.wait()
    for layer in cache:
        layer.fill_(0x5A5A)
    copier.load(targets)
    target.wait()
    wrong = sum(not torch.equal(one, other) for one, other in zip(before, cache, strict=True))
    if wrong:
        raise AssertionError(f"{what}: {wrong} of {len(cache)} layers came back with other bytes")


def _stretch(target: Target, copier: HostCopies, targets: list[PageTarget], what: str) -> Figure:
    """How much longer products on the main stream take with a save beside them on another one."""
    left = torch.randn(8192, 8192, device=target.device, dtype=torch.bfloat16)

    def products() -> None:
        for _ in range(12):
            left @ left

    def both() -> None:
        products()
        with target.side_stream():
            copier.save(targets, copier.groups[0])

    alone = target.seconds(products)
    return Figure(f"{what}: products beside a save", target.seconds(both) / alone, "times as long")


def _syncs(copier: HostCopies, targets: list[PageTarget]) -> float:
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            copier.save(targets, copier.groups[0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return float(len(caught))
