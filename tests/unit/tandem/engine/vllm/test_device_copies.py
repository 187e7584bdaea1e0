"""Copies on a device, on a stub of the few calls they make: what comes behind what, what is pinned, who waits."""

import pytest
import torch

from tandem.engine.memory import HostMemory
from tandem.engine.vllm.canonical import RankPart, SlotShape
from tandem.engine.vllm.connector.cache_pages import CachePages
from tandem.engine.vllm.connector.device_calls import pinned_pieces
from tandem.engine.vllm.connector.device_copies import DeviceCopies
from tandem.engine.vllm.connector.load_pace import LoadPace
from tandem.engine.vllm.connector.orders import PageTarget
from tests.worlds.stub_device import StubDevice

LAYERS, BLOCKS, UNITS, TOKENS, CONTENT = 8, 10, 2, 4, 4
PAGE = TOKENS * CONTENT * 4
BLOCK = LAYERS * UNITS * PAGE


def device_copies(blocks_at_once: int = 10) -> tuple[DeviceCopies, StubDevice, HostMemory]:
    device = StubDevice()
    whole = torch.rand(LAYERS, BLOCKS, UNITS, TOKENS, CONTENT)
    shape = SlotShape(LAYERS, UNITS, PAGE)
    pages = CachePages(list(whole), BLOCKS, RankPart(0, LAYERS, tuple(range(UNITS))), shape)
    copies = DeviceCopies(pages, device, blocks_at_once * BLOCK)
    memory = HostMemory(shape.slot_bytes, BLOCKS)
    copies.map_slots(memory.buffer)
    return copies, device, memory


def targets(count: int) -> list[PageTarget]:
    return [PageTarget(index, BLOCKS - 1 - index, index) for index in range(count)]


def test_all_slots_are_pinned_and_let_go() -> None:
    copies, device, memory = device_copies()
    assert sum(device.pinned.values()) == len(memory.buffer)
    copies.close()
    copies.close()
    assert device.pinned == {}
    assert device.syncs == 2, "each side stream is waited for once, at the end"


@pytest.mark.parametrize(("at_once", "calls"), [(10, 1), (3, 3)])
def test_a_group_of_layers_is_one_call_for_as_many_blocks_as_the_buffer_takes(at_once: int, calls: int) -> None:
    copies, device, _ = device_copies(at_once)
    for group in copies.groups:
        assert copies.save(targets(7), group).bytes == 7 * BLOCK // len(copies.groups)
    assert [what for _, what, _ in device.launches] == ["save"] * calls * len(copies.groups)
    copies.load(targets(7))
    assert [what for _, what, _ in device.launches].count("load") == calls
    assert device.syncs == 0


def test_a_save_comes_behind_what_was_computed_and_the_engine_behind_a_save_only_after_a_fence() -> None:
    copies, device, _ = device_copies()
    copies.begin_step(fence=False)
    computed = device.launch("compute", device.engine)
    copies.save(targets(2), copies.groups[0])
    saved = len(device.launches) - 1
    assert computed in device.launches[saved][2]
    copies.begin_step(fence=False)
    beside = device.launch("compute", device.engine)
    assert saved not in device.launches[beside][2], "computing goes on beside the copies"
    copies.begin_step(fence=True)
    behind = device.launch("compute", device.engine)
    assert saved in device.launches[behind][2]


def test_a_load_comes_behind_earlier_steps_and_the_fence_but_not_behind_its_own_step() -> None:
    copies, device, _ = device_copies()
    copies.begin_step(fence=False)
    earlier = device.launch("compute", device.engine)
    copies.save(targets(2), copies.groups[0])
    saved = len(device.launches) - 1
    copies.begin_step(fence=True)
    own = device.launch("compute", device.engine)
    copies.load(targets(2))
    _, what, after = device.launches[-1]
    assert what == "load"
    assert {earlier, saved} <= after, "its blocks may have been somebody else's"
    assert own not in after
    assert device.syncs == 0


@pytest.mark.parametrize("slot_bytes", [512, 4096, 5 << 20, 3000])
def test_pieces_begin_on_pages_and_no_slot_lies_in_two(slot_bytes: int) -> None:
    size = slot_bytes * 4096 * 3
    pieces = pinned_pieces(size, slot_bytes, limit=max(4096, slot_bytes) * 1000)
    assert sum(length for _, length in pieces) == size
    at = 0
    for offset, length in pieces:
        assert offset == at
        assert offset % 4096 == 0
        assert offset % slot_bytes == 0
        at += length
    assert len(pieces) > 1


def test_loads_take_a_share_of_the_time_between_tokens_and_all_of_it_when_nobody_generates() -> None:
    pace = LoadPace(itl_s=0.04, share=0.25, bytes_per_s=1e9)
    assert pace.blocks(1 << 20, decoding=True) == 9, "10 ms at 1 GB/s"
    assert pace.blocks(1 << 30, decoding=True) == 1, "a block at a time at least"
    assert pace.blocks(1 << 20, decoding=False) is None
    for _ in range(40):
        pace.measured(1 << 30, (1 << 30) / 4e9)
    assert pace.blocks(1 << 20, decoding=True) == 38
    pace.measured(0, 1.0)
    pace.measured(1, 0.0)
    assert pace.bytes_per_s == pytest.approx(4e9, rel=1e-3)
