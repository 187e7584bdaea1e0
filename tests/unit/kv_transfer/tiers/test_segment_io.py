"""Records of a segment as threads read and write them: what lies on disk was meant to, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kv_transfer.tiers.backend import BlockRead, BlockReadFailed, Item, Wanted
from kv_transfer.tiers.disk import SystemDisk
from kv_transfer.tiers.mac import Seals
from kv_transfer.tiers.record import ALIGN, SegmentHead, shape_of
from kv_transfer.tiers.segment_io import Segment, SegmentIo
from kv_transfer.tiers.slot_writer import SlotWriter
from tandem.engine.digest import Digester
from tandem.engine.memory import HostMemory
from tests.contract.block_space import block_layout, content
from tests.worlds.tier_stage import BLOCK, KEYRING, ROOT, SEGMENT, STRIDE, named

LAYOUT = block_layout(BLOCK)
MINE, OTHER = named(0, "mine"), named(0, "other")


class Place:
    """A segment file of eight records, and memory with as many blocks."""

    def __init__(self, disk: SystemDisk, path: Path) -> None:
        self.path = path
        self.io = SegmentIo(shape_of(LAYOUT, ROOT), Digester(LAYOUT), 8 * BLOCK, 1, 1)
        head = SegmentHead(b"s" * 16, 7, 8, Seals(KEYRING).current)
        self.segment = Segment(head, disk.create("a.kv", SEGMENT), "a.kv")
        self.memory = HostMemory(BLOCK, 8)

    def item(self, name: bytes, slot: int) -> Item:
        block = content(name, BLOCK)
        self.memory.block(slot)[:] = block
        return Item(name, "", slot, Digester(LAYOUT).content_words(block))

    def read(self, name: bytes, index: int = 0, slot: int = 4) -> BlockRead | BlockReadFailed:
        (outcome,) = self.io.read(self.segment, index, [Wanted(0, name, index, slot)], self.memory, SlotWriter())
        return outcome


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    disk = SystemDisk(tmp_path)
    disk.claim()
    made = Place(disk, tmp_path / "a.kv")
    yield made
    made.segment.file.close()
    disk.release()


def test_another_prompts_block_is_not_restored_under_this_name(place: Place) -> None:
    """It is genuine, and lies where this one is thought to be: only its name tells."""
    assert place.io.write(place.segment, 0, [place.item(OTHER, 0)], place.memory) == []
    place.memory.block(4)[:] = bytes(BLOCK)
    assert place.read(MINE) == BlockReadFailed(0, "swapped")
    assert bytes(place.memory.block(4)) == bytes(BLOCK), "nothing has landed"
    assert isinstance(place.read(OTHER), BlockRead)
    assert bytes(place.memory.block(4)) == content(OTHER, BLOCK)


@pytest.mark.parametrize("slots", [(0,), (0, 2), (0, 1)], ids=["one", "apart", "side by side"])
def test_a_block_that_was_damaged_in_memory_is_not_sealed(place: Place, slots: tuple[int, ...]) -> None:
    items = [place.item(named(number), slot) for number, slot in enumerate(slots)]
    place.memory.block(slots[-1])[9] ^= 4
    assert place.io.write(place.segment, 0, items, place.memory) == [len(slots) - 1]
    outcomes = [place.read(item.name, number) for number, item in enumerate(items)]
    assert isinstance(outcomes[-1], BlockReadFailed)
    assert all(isinstance(outcome, BlockRead) for outcome in outcomes[:-1])


@pytest.mark.parametrize("slots", [(0,), (0, 1)], ids=["one", "side by side"])
def test_what_was_in_the_buffer_before_does_not_land_behind_a_block(place: Place, slots: tuple[int, ...]) -> None:
    """Blocks are no whole number of pages: what is left of the last must not be of another prompt."""
    with place.path.open("r+b") as file:
        file.seek(ALIGN)
        file.write(b"\xaa" * (8 * STRIDE))
    wanted = [Wanted(number, MINE, number, 4) for number in range(8)]
    assert len(place.io.read(place.segment, 0, wanted, place.memory, SlotWriter())) == 8
    place.io.write(place.segment, 0, [place.item(named(slot), slot) for slot in slots], place.memory)
    data = place.path.read_bytes()
    for number in range(len(slots)):
        end = ALIGN + (number + 1) * STRIDE
        assert data[end - (STRIDE - ALIGN - BLOCK) : end] == bytes(STRIDE - ALIGN - BLOCK)
