"""Copies in host memory: the pages that were asked for, in every layout and order, and nothing beside them."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.engine.memory import HostMemory
from tandem.engine.vllm.canonical import RankPart, SlotShape
from tandem.engine.vllm.connector import host_copies
from tandem.engine.vllm.connector.cache_pages import CachePages
from tandem.engine.vllm.connector.host_copies import HostCopies
from tandem.engine.vllm.connector.orders import PageTarget

LAYERS, BLOCKS, TOKENS = 3, 12, 4
UNITS = ((0, 1), (1,), (2, 3), (0, 2), (3, 0), (0, 1, 2, 3))
ORDERS = ((0, 1, 2, 3, 4), (1, 0, 2, 3, 4), (0, 1, 3, 2, 4))


def cache_of(
    order: Sequence[int], slots: int, content: int, *, apart: bool, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Random pages `[blocks, head slots, positions, content]` by layer, in an allocation of each layer's own or one
    that has them in the given order."""
    shape = (LAYERS, BLOCKS, slots, TOKENS, content)
    whole = torch.randint(
        0, 256, [shape[axis] for axis in order[:-1]] + [content * dtype.itemsize], dtype=torch.uint8
    )
    pages = whole.view(dtype).permute([order.index(axis) for axis in range(5)])
    return [
        pages[layer].clone(memory_format=torch.preserve_format) if apart else pages[layer] for layer in range(LAYERS)
    ]


def bits(pages: torch.Tensor) -> torch.Tensor:
    return pages.contiguous().view(torch.uint8)


@settings(max_examples=150, deadline=None)
@given(
    units=st.sampled_from(UNITS),
    order=st.sampled_from(ORDERS),
    apart=st.booleans(),
    content=st.sampled_from((3, 4, 16)),
    dtype=st.sampled_from((torch.bfloat16, torch.float32, torch.uint8)),
    pairs=st.lists(st.tuples(st.integers(0, BLOCKS - 1), st.integers(0, BLOCKS - 1)), max_size=BLOCKS),
    first=st.integers(0, 1),
    piece=st.sampled_from((0, 200, 1 << 20)),
    together=st.sampled_from((1, 500)),
)
def test_what_is_asked_for_is_copied_and_nothing_else(
    units: tuple[int, ...],
    order: tuple[int, ...],
    apart: bool,
    content: int,
    dtype: torch.dtype,
    pairs: list[tuple[int, int]],
    first: int,
    piece: int,
    together: int,
) -> None:
    cache = cache_of(order, len(units), content, apart=apart, dtype=dtype)
    page = TOKENS * content * dtype.itemsize
    shape = SlotShape(LAYERS + 1, 4, page)
    copies = HostCopies(CachePages(cache, BLOCKS, RankPart(first, LAYERS, units), shape))
    memory = HostMemory(shape.slot_bytes, BLOCKS)
    copies.map_slots(memory.buffer)
    slots = dict(pairs)
    wanted = {slot: block for slot, block in slots.items() if [*slots.values()].count(block) == 1}
    targets = [PageTarget(index, slot, block) for index, (slot, block) in enumerate(wanted.items())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_copies, "_PIECE_BYTES", piece)
        patch.setattr(host_copies, "_TOGETHER_BYTES", together)
        saved = copies.save(targets, copies.groups[0])
        assert saved.bytes == len(targets) * LAYERS * len(units) * page
        for slot in range(BLOCKS):
            for layer in range(LAYERS):
                for unit in range(4):
                    at = shape.offset(first + layer, unit)
                    found = bytes(memory.block(slot)[at : at + page])
                    right = bytes(page)
                    if slot in wanted and unit in units:
                        right = bits(cache[layer][wanted[slot], units.index(unit)]).numpy().tobytes()
                    assert found == right
        before = [bits(layer).clone() for layer in cache]
        for layer in cache:
            layer.zero_()
        assert copies.load(targets).bytes == saved.bytes
    for layer, pages in zip(cache, before, strict=True):
        pages[[block for block in range(BLOCKS) if block not in wanted.values()]] = 0
        assert torch.equal(bits(layer), pages)
    copies.close()
