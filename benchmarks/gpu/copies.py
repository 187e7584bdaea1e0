"""Step 2: the connector's `DeviceCopies` between vLLM's cache layouts and stage slots: right or not, how fast, how
blocking.

Tensors have the shapes and strides that vLLM 0.32 gives its caches. Its kernels are not needed: a batch is copied by
the call to CUDA that they make (`benchmarks.gpu.device_calls`).
"""

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch

from benchmarks.gpu.device_calls import device_calls
from benchmarks.gpu.results import Measurement
from benchmarks.gpu.target import Target
from tandem.engine.memory import HostMemory
from tandem.engine.vllm.canonical import RankPart, SlotShape
from tandem.engine.vllm.connector.cache_pages import CachePages
from tandem.engine.vllm.connector.device_copies import DeviceCopies
from tandem.engine.vllm.connector.orders import PageTarget

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


def measure(target: Target) -> Iterator[Measurement]:
    """Rates of saving and loading, how long beginning them takes, and what they do to computing beside them."""
    for model in _MODELS[:1] if target.tiny else _MODELS:
        for order in _ORDERS:
            yield from _one(target, model, order)


def _one(target: Target, model: _Model, order: str) -> Iterator[Measurement]:
    blocks = target.sized(max(32, min(256, (1 << 30) // (model.page_bytes * model.slots * model.layers))), 4)
    layers = model.layers if not target.tiny else 4
    shape = SlotShape(layers, model.slots * model.tensor, model.page_bytes)
    memory = HostMemory(shape.slot_bytes, blocks)
    cache = _cache(target, model, order, layers, blocks)
    calls, how = device_calls(target)
    copies = DeviceCopies(CachePages(cache, blocks, RankPart(0, layers, tuple(range(model.slots))), shape), calls)
    copies.map_slots(memory.buffer)
    targets = [PageTarget(index, slot, index) for index, slot in enumerate(reversed(range(blocks)))]
    size = blocks * layers * model.slots * model.page_bytes
    what = f"{model.name}, {order}, {how}"
    try:
        _check(target, copies, cache, targets, what)
        yield Measurement(f"{what}: save", size / target.seconds(lambda: _save(copies, targets)) / 1e9, "GB/s")
        yield Measurement(f"{what}: load", size / target.seconds(lambda: _load(copies, targets)) / 1e9, "GB/s")
        for name, begin in (("save", _save), ("load", _load)):
            yield Measurement(
                f"{what}: beginning a {name}", _begun_s(target, begin, copies, targets) * 1e3, "ms of the host"
            )
        if target.on_gpu:
            yield _stretch(target, copies, targets, what)
            yield Measurement(f"{what}: save and load, waits for the device", _syncs(copies, targets), "in all")
    finally:
        copies.close()
        memory.close()


def _save(copies: DeviceCopies, targets: list[PageTarget]) -> None:
    """As a step does: in groups of layers, behind what was computed."""
    copies.begin_step(fence=False)
    for group in copies.groups:
        copies.save(targets, group)


def _load(copies: DeviceCopies, targets: list[PageTarget]) -> None:
    copies.begin_step(fence=True)
    copies.load(targets)


def _begun_s(
    target: Target,
    begin: Callable[[DeviceCopies, list[PageTarget]], None],
    copies: DeviceCopies,
    targets: list[PageTarget],
) -> float:
    """For how long the engine's thread is kept by beginning copies, median."""
    taken = []
    for _ in range(5):
        target.wait()
        began = time.perf_counter()
        begin(copies, targets)
        taken.append(time.perf_counter() - began)
    target.wait()
    return median(taken)


def _cache(target: Target, model: _Model, order: str, layers: int, blocks: int) -> list[torch.Tensor]:
    """Random pages: per layer `[blocks, head slots, positions, content]` with the strides of a layout."""
    shape, axes = (layers, blocks, model.slots, _TOKENS, model.content), _ORDERS[order]
    whole = torch.randint(-30_000, 30_000, [shape[axis] for axis in axes], dtype=torch.int16, device=target.device)
    logical = whole.permute([axes.index(axis) for axis in range(5)])
    return [logical[layer] for layer in range(layers)]


def _check(
    target: Target, copies: DeviceCopies, cache: list[torch.Tensor], targets: list[PageTarget], what: str
) -> None:
    """Bytes that were saved come back into a cache that was overwritten meanwhile."""
    before = [layer.clone() for layer in cache]
    _save(copies, targets)
    target.wait()
    for layer in cache:
        layer.fill_(0x5A5A)
    _load(copies, targets)
    target.wait()
    wrong = sum(not torch.equal(one, other) for one, other in zip(before, cache, strict=True))
    if wrong:
        raise AssertionError(f"{what}: {wrong} of {len(cache)} layers came back with other bytes")


def _stretch(target: Target, copies: DeviceCopies, targets: list[PageTarget], what: str) -> Measurement:
    """How much longer products on the engine's stream take with a save beside them."""
    left = torch.randn(8192, 8192, device=target.device, dtype=torch.bfloat16)

    def products() -> None:
        for _ in range(12):
            left @ left

    def both() -> None:
        _save(copies, targets)
        products()

    alone = target.seconds(products)
    return Measurement(f"{what}: products beside a save", target.seconds(both) / alone, "times as long")


def _syncs(copies: DeviceCopies, targets: list[PageTarget]) -> float:
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _save(copies, targets)
            _load(copies, targets)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return float(len(caught))
