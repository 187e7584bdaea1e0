"""Canonical order on tensors of every layout vLLM has: what one sharding saves, any other one loads."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.errors import TandemError
from tandem.engine.memory import HostMemory
from tandem.engine.vllm.canonical import (
    PageFormat,
    RankPart,
    head_units,
    layout_of,
    refuse_gaps,
    slot_shape,
)
from tandem.engine.vllm.connector.cache_pages import CachePages
from tandem.engine.vllm.connector.copies import Copies
from tandem.engine.vllm.connector.device_copies import DeviceCopies
from tandem.engine.vllm.connector.host_copies import HostCopies
from tandem.engine.vllm.connector.orders import PageTarget
from tests.worlds.stub_device import StubDevice

BLOCKS, LAYERS, TOKENS, DIM = 6, 4, 8, 4
ORDERS = {
    "LBHNC": (0, 1, 2, 3, 4),
    "LBNHC": (0, 1, 3, 2, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}


def pages(heads: int = 4, *, apart: bool = False, content: int = 2 * DIM, layers: int = LAYERS) -> PageFormat:
    each = 2 if apart else 1
    return PageFormat(
        engine="vllm-0", packing="p", isa="", dtype="float32", item_bytes=4, block_tokens=TOKENS, layers=layers,
        units=heads * each, units_per_head=each, page_bytes=TOKENS * (content // each) * 4,
    )  # fmt: skip


def allocated(order: str, layers: int, slots: int, content: int, kernel_blocks: int = 1) -> list[torch.Tensor]:
    """Per layer `[blocks, head slots, states, content]` with the strides of a layout, all in one allocation."""
    shape = (layers, BLOCKS * kernel_blocks, slots, TOKENS // kernel_blocks, content)
    axes = ORDERS[order]
    whole = torch.zeros([shape[axis] for axis in axes])
    logical = whole.permute([axes.index(axis) for axis in range(5)])
    return [logical[layer] for layer in range(layers)]


class Rank:
    """One rank's cache and copier. `truth` is the cache of the whole model in head order."""

    def __init__(
        self, order: str, form: PageFormat, part: RankPart, memory: HostMemory, kernel_blocks: int = 1
    ) -> None:
        content = form.page_bytes // (TOKENS * 4)
        self.part = part
        self.layers = allocated(order, part.layer_count, len(part.units), content, kernel_blocks)
        self.form = form
        self.memory = memory

    @property
    def host(self) -> Copies:
        return self._mapped(HostCopies(self._pages()))

    @property
    def device(self) -> Copies:
        """A block and a half fit its buffer: a copy of two takes two batches."""
        pages = self._pages()
        return self._mapped(DeviceCopies(pages, StubDevice(), pages.block_bytes * 3 // 2))

    def _pages(self) -> CachePages:
        return CachePages(self.layers, BLOCKS, self.part, slot_shape(self.form))

    def _mapped(self, copies: Copies) -> Copies:
        copies.map_slots(self.memory.buffer)
        return copies

    def fill(self, truth: torch.Tensor) -> None:
        """`truth` [layers, blocks, units, tokens, content]."""
        for at, layer in enumerate(self.layers):
            mine = truth[self.part.layer_first + at][:, list(self.part.units)]
            layer.copy_(_split(mine, layer.shape[0] // BLOCKS))

    def matches(self, truth: torch.Tensor, block: int, source: int) -> bool:
        """Whether the cache's block `block` is the truth's block `source`."""
        for at, layer in enumerate(self.layers):
            kernel = layer.shape[0] // BLOCKS
            mine = truth[self.part.layer_first + at][:, list(self.part.units)]
            wanted = _split(mine, kernel)[source * kernel : (source + 1) * kernel]
            if not torch.equal(layer[block * kernel : (block + 1) * kernel], wanted):
                return False
        return True


def _split(blocks: torch.Tensor, kernel_blocks: int) -> torch.Tensor:
    """`[blocks, slots, tokens, content]` as kernels see it."""
    count, slots, tokens, content = blocks.shape
    cut = blocks.reshape(count, slots, kernel_blocks, tokens // kernel_blocks, content).transpose(1, 2)
    return cut.reshape(count * kernel_blocks, slots, tokens // kernel_blocks, content)


def parts(form: PageFormat, tensor: int, pipeline: int = 1) -> list[RankPart]:
    heads, each = form.units // form.units_per_head, form.layers // pipeline
    return [
        RankPart(stage * each, each, *head_units(heads, tensor, rank, units_per_head=form.units_per_head))
        for stage in range(pipeline)
        for rank in range(tensor)
    ]


def exchange(form: PageFormat, source: Sequence[Rank], target: Sequence[Rank], truth: torch.Tensor) -> None:
    """Save blocks 1 and 4 of the source through slots 2 and 0, load them as blocks 5 and 3 of the target; by every
    kind of copies on both sides."""
    for saver, loader in (("host", "host"), ("device", "host"), ("host", "device")):
        for rank in target:
            for layer in rank.layers:
                layer.zero_()
        for rank in source:
            rank.fill(truth)
            copies: Copies = getattr(rank, saver)
            for group in copies.groups:
                assert copies.save((PageTarget(0, 2, 1), PageTarget(1, 0, 4)), group).over
        for rank in target:
            assert getattr(rank, loader).load((PageTarget(0, 2, 5), PageTarget(1, 0, 3))).over
            assert rank.matches(truth, 5, 1)
            assert rank.matches(truth, 3, 4)
            assert all(not layer[: layer.shape[0] // BLOCKS].any() for layer in rank.layers), "others are untouched"
        first = bytes(target[0].memory.block(2))
        target[0].memory.buffer[:] = bytes(len(target[0].memory.buffer))
    target[0].memory.block(2)[:] = first


@pytest.mark.parametrize("source_order", sorted(ORDERS))
@pytest.mark.parametrize("target_order", ["LBHNC", "LBNHC", "BLNHC"])
@pytest.mark.parametrize(
    ("prefill", "decode"), [((1, 1), (1, 1)), ((2, 1), (1, 2)), ((1, 4), (8, 1)), ((8, 2), (4, 1))]
)
def test_any_sharding_loads_what_any_other_has_saved(
    source_order: str, target_order: str, prefill: tuple[int, int], decode: tuple[int, int]
) -> None:
    form = pages()
    memory = HostMemory(slot_shape(form).slot_bytes, 3)
    truth = torch.rand(LAYERS, BLOCKS, form.units, TOKENS, 2 * DIM)
    source = [Rank(source_order, form, part, memory) for part in parts(form, *prefill)]
    target = [Rank(target_order, form, part, memory) for part in parts(form, *decode)]
    refuse_gaps(form, [rank.part for rank in source])
    exchange(form, source, target, truth)
    first = torch.frombuffer(memory.block(2), dtype=torch.float32).view(LAYERS, form.units, TOKENS, 2 * DIM)
    assert torch.equal(first, truth[:, 1]), "a slot is the same bytes whoever wrote it"


@pytest.mark.parametrize(("prefill", "decode"), [(1, 2), (2, 1), (4, 2), (2, 8)])
def test_keys_and_values_in_head_slots_of_their_own_are_dealt_out_by_head(prefill: int, decode: int) -> None:
    form = pages(apart=True)
    memory = HostMemory(slot_shape(form).slot_bytes, 3)
    truth = torch.rand(LAYERS, BLOCKS, form.units, TOKENS, DIM)
    source = [Rank("LBHNC", form, part, memory) for part in parts(form, prefill)]
    target = [Rank("BLHNC", form, part, memory) for part in parts(form, decode)]
    exchange(form, source, target, truth)


@pytest.mark.parametrize(("prefill", "decode"), [(1, 4), (4, 1), (2, 2)])
def test_a_latent_cache_is_written_by_one_rank_and_read_by_all(prefill: int, decode: int) -> None:
    form = pages(1, content=18)
    memory = HostMemory(slot_shape(form).slot_bytes, 3)
    truth = torch.rand(LAYERS, BLOCKS, 1, TOKENS, 18)
    source = [Rank("LBNHC", form, part, memory) for part in parts(form, prefill)]
    assert [rank.part.writes for rank in source] == [True] + [False] * (prefill - 1)
    target = [Rank("LBNHC", form, part, memory) for part in parts(form, decode)]
    exchange(form, source, target, truth)
    assert layout_of(form).head_dim == 9


@pytest.mark.parametrize("kernel_blocks", [1, 2, 4])
def test_blocks_that_kernels_see_as_several_are_the_same_slots(kernel_blocks: int) -> None:
    form = pages()
    memory = HostMemory(slot_shape(form).slot_bytes, 3)
    truth = torch.rand(LAYERS, BLOCKS, form.units, TOKENS, 2 * DIM)
    source = [Rank("LBNHC", form, part, memory, kernel_blocks) for part in parts(form, 2)]
    target = [Rank("LBHNC", form, part, memory) for part in parts(form, 1)]
    exchange(form, source, target, truth)


def test_layers_in_allocations_of_their_own_are_copied_too() -> None:
    form = pages()
    memory = HostMemory(slot_shape(form).slot_bytes, 3)
    truth = torch.rand(LAYERS, BLOCKS, form.units, TOKENS, 2 * DIM)
    (part,) = parts(form, 1)
    one = Rank("LBHNC", form, part, memory)
    one.layers = [layer.clone() for layer in one.layers]
    exchange(form, [one], [Rank("LBHNC", form, part, memory)], truth)
    one.host.blank([1, 2])
    assert all(not layer[1:3].any() and layer[3].any() for layer in one.layers)


def test_a_cache_of_another_shape_is_refused() -> None:
    with pytest.raises(TandemError) as error:
        CachePages([torch.zeros(2, BLOCKS, TOKENS, 4, DIM)], BLOCKS, RankPart(0, 1, (0,)), slot_shape(pages()))
    assert "is none this connector knows" in error.value.message


@given(st.integers(0, 4), st.integers(0, 4), st.booleans())
def test_every_unit_is_written_once_and_held_by_all_that_share_it(
    heads_log: int, tensor_log: int, apart: bool
) -> None:
    heads, tensor, each = 1 << heads_log, 1 << tensor_log, 2 if apart else 1
    dealt = [head_units(heads, tensor, rank, units_per_head=each) for rank in range(tensor)]
    written = [unit for units, writes in dealt if writes for unit in units]
    assert sorted(written) == list(range(heads * each))
    held = [unit for units, _ in dealt for unit in units]
    assert all(held.count(unit) == max(1, tensor // heads) for unit in range(heads * each))
    if apart:
        for units, _ in dealt:
            half = len(units) // 2
            assert all(
                key % 2 == 0 and value == key + 1 for key, value in zip(units[:half], units[half:], strict=True)
            )


def test_heads_that_cannot_be_dealt_out_and_gaps_are_refused() -> None:
    with pytest.raises(TandemError):
        head_units(4, 3, 0)
    form = pages()
    with pytest.raises(TandemError) as none:
        refuse_gaps(form, parts(form, 2)[:1])
    assert none.value.message == "0 ranks write unit 2 of layer 0, one has to"
    with pytest.raises(TandemError):
        refuse_gaps(form, [*parts(form, 2), parts(form, 2)[0]])


def test_layouts_of_slots_say_why_they_cannot_be_paired_and_sharding_is_no_reason() -> None:
    form = pages()
    ours = layout_of(form)
    assert ours.block_bytes == slot_shape(form).slot_bytes
    assert (ours.kv_heads, ours.head_dim, ours.tensor_parallel) == (4, DIM, 1)
    for field, value in (
        ("engine", "vllm-1"), ("packing", "cpu"), ("isa", "amx"), ("dtype", "bfloat16"), ("block_tokens", 16),
    ):  # fmt: skip
        changed = {**{name: getattr(form, name) for name in form.__struct_fields__}, field: value}
        if field == "block_tokens":
            changed["page_bytes"] = 2 * form.page_bytes
        reason = ours.incompatibility(layout_of(PageFormat(**changed)))
        assert reason is not None
        assert reason.startswith(f"{field} differs")


def test_a_page_of_no_whole_number_of_values_is_refused() -> None:
    form = pages(1, content=9)
    with pytest.raises(TandemError) as error:
        layout_of(form)
    assert error.value.code == "bad_model"
