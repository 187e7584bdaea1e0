"""Canonical order: where a rank's KV pages lie inside a stage slot, whatever its tensor and pipeline parallelism.

A slot holds one block as `[layers][units][page]`. A *page* is what one layer keeps of one block for one unit, opaque
here. A *unit* is a KV head (keys and values of its positions together), or half of one where an engine keeps keys and
values in separate head slots: then unit 2 h is the keys and unit 2 h + 1 the values of head h. A latent cache has one
unit. Every rank owns a rectangle of layers x units, so a slot is the same bytes for every way of sharding, and ranks
of differently sharded engines exchange blocks without anything in between that knows about it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tandem.core.errors import TandemError
from tandem.core.kv import Layout
from tandem.engine.digest import DIGEST


class RankPart(msgspec.Struct, frozen=True):
    """The part of every block that one rank holds. `units[i]` is the canonical unit of the rank's i-th head slot.

    Of ranks that hold the same units only one has `writes` set: its copy is the one that is kept.
    """

    layer_first: int
    layer_count: int
    units: tuple[int, ...]
    writes: bool = True


class PageFormat(msgspec.Struct, frozen=True):
    """The format of a block's pages, the same on all ranks. `units` and `layers` count the whole model's."""

    engine: str
    packing: str
    isa: str
    dtype: str
    item_bytes: int
    block_tokens: int
    layers: int
    units: int
    units_per_head: int
    page_bytes: int


@dataclass(frozen=True)
class SlotShape:
    """A slot as `[layers][units][page_bytes]`."""

    layers: int
    units: int
    page_bytes: int

    @property
    def slot_bytes(self) -> int:
        return self.layers * self.units * self.page_bytes

    def offset(self, layer: int, unit: int) -> int:
        """The offset of a page inside a slot, in bytes."""
        return (layer * self.units + unit) * self.page_bytes


def head_units(
    heads: int, tensor_parallel: int, rank: int, *, units_per_head: int = 1
) -> tuple[tuple[int, ...], bool]:
    """The units a tensor-parallel rank holds, in the order of its head slots, and whether it writes them.

    With more ranks than KV heads each head is held by several neighbours, of which the first writes. With two units
    per head a rank's slots are all its keys and then all its values. Raises `bad_setting` when heads cannot be dealt
    out evenly.
    """
    assert 0 <= rank < tensor_parallel
    if heads % tensor_parallel and tensor_parallel % heads:
        raise TandemError(
            "bad_setting", f"{heads} KV heads cannot be dealt out to {tensor_parallel} ranks", param="tensor"
        )
    if tensor_parallel > heads:
        share = tensor_parallel // heads
        own, writes = range(rank // share, rank // share + 1), rank % share == 0
    else:
        share = heads // tensor_parallel
        own, writes = range(rank * share, (rank + 1) * share), True
    return tuple(units_per_head * head + kind for kind in range(units_per_head) for head in own), writes


def slot_shape(pages: PageFormat) -> SlotShape:
    return SlotShape(pages.layers, pages.units, pages.page_bytes)


def layout_of(pages: PageFormat) -> Layout:
    """The layout of canonical slots.

    `tensor_parallel` and `pipeline_parallel` stay 1 whatever the engine uses: slots are the same for all, so workers
    that shard differently pair. `head_dim` is what makes the layout's size that of the slot; for a latent cache it is
    half the latent's width. Raises `bad_model` when no whole number is.
    """
    heads = pages.units // pages.units_per_head
    row_bytes = 2 * pages.block_tokens * pages.item_bytes
    head_bytes = pages.page_bytes * pages.units_per_head
    if head_bytes % row_bytes:
        raise TandemError(
            "bad_model",
            f"a KV page of {pages.page_bytes} bytes is no whole number of {pages.item_bytes}-byte values for each of "
            f"{pages.block_tokens} positions: such a cache cannot be exchanged",
        )
    return Layout(
        engine=pages.engine,
        packing=pages.packing,
        dtype=pages.dtype,
        item_bytes=pages.item_bytes,
        layers=pages.layers,
        block_tokens=pages.block_tokens,
        kv_heads=heads,
        head_dim=head_bytes // row_bytes,
        isa=pages.isa,
        digest=DIGEST,
    )


def refuse_gaps(pages: PageFormat, parts: Sequence[RankPart]) -> None:
    """Raise `engine_failed` unless every page of a block is written by exactly one rank."""
    writers = [0] * (pages.layers * pages.units)
    for part in parts:
        if part.writes:
            for layer in range(part.layer_first, part.layer_first + part.layer_count):
                for unit in part.units:
                    writers[layer * pages.units + unit] += 1
    for at, count in enumerate(writers):
        if count != 1:
            layer, unit = divmod(at, pages.units)
            raise TandemError("engine_failed", f"{count} ranks write unit {unit} of layer {layer}, one has to")
