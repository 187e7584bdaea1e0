"""Every `BlockIndex` against the obvious model: for each worker and tier a set of names."""

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_transfer.index.compact_index import CompactIndex
from kv_transfer.index.memory_index import MemoryIndex
from kv_transfer.index.protocol import TIERS, BlockIndex, Held

INDEXES: Final[dict[str, Callable[[], BlockIndex]]] = {
    "compact": lambda: CompactIndex(0x1234567),
    "memory": MemoryIndex,
}
WORKERS = tuple(f"w{number}" for number in range(70))
# Names that agree in their low bits, and in their high ones.
NAMES = tuple(bytes([number]) * 16 for number in range(8)) + tuple(
    bytes(15) + bytes([number]) for number in range(1, 7)
)

every_index = pytest.mark.parametrize("kind", sorted(INDEXES))
names = st.lists(st.sampled_from(NAMES), max_size=10)
few_workers = st.sampled_from(WORKERS[:4]) | st.sampled_from(WORKERS)
steps = st.lists(
    st.tuples(
        st.sampled_from(("stored", "stored", "removed", "change", "replace", "drop", "tend")),
        few_workers,
        names,
        names,
        st.sampled_from(TIERS),
    ),
    max_size=60,
)

Model = dict[str, dict[str, set[bytes]]]


def apply(index: BlockIndex, model: Model, step: tuple[str, str, list[bytes], list[bytes], str]) -> None:
    action, worker, first, second, tier = step
    own = model.setdefault(worker, {each: set() for each in TIERS})
    match action:
        case "stored":
            index.stored(worker, first, tier)
            own[tier].update(first)
        case "removed":
            index.removed(worker, first, tier)
            own[tier].difference_update(first)
        case "change":
            index.change(worker, b"".join(first), b"".join(second), tier)
            own[tier].update(first)
            own[tier].difference_update(second)
        case "replace":
            index.replace(worker, first)
            model[worker] = {"hbm": set(first), "dram": set(), "nvme": set()}
        case "drop":
            index.drop(worker)
            del model[worker]
        case _:
            index.tend()


def held(own: dict[str, set[bytes]], wanted: list[bytes]) -> Held:
    total = 0
    while total < len(wanted) and any(wanted[total] in own[tier] for tier in TIERS):
        total += 1
    hbm = 0
    while hbm < total and wanted[hbm] in own["hbm"]:
        hbm += 1
    below = [name for name in wanted[:total] if name not in own["hbm"]]
    dram = sum(name in own["dram"] for name in below)
    return Held(total, hbm, dram, len(below) - dram)


def expected(model: Model, wanted: list[bytes]) -> dict[str, Held]:
    found = {worker: held(own, wanted) for worker, own in model.items()}
    return {worker: each for worker, each in found.items() if each.total}


@every_index
@given(steps=steps, wanted=st.lists(names, min_size=1, max_size=3), settle=st.booleans())
@settings(max_examples=150, deadline=None)
def test_it_agrees_with_sets_of_names(
    kind: str, steps: list[tuple[str, str, list[bytes], list[bytes], str]], wanted: list[list[bytes]], settle: bool
) -> None:
    index, model = INDEXES[kind](), Model()
    for step in steps:
        apply(index, model, step)
        if settle:
            for each in wanted:
                assert index.longest(each) == expected(model, each)
    for each in wanted:
        assert index.longest(each) == expected(model, each)


def name(number: int) -> bytes:
    return number.to_bytes(8, "big") + bytes(8)


long_steps = st.lists(
    st.tuples(
        st.sampled_from(("stored", "stored", "stored", "removed", "change", "drop", "tend")),
        st.sampled_from(WORKERS[60:]) | st.sampled_from(WORKERS),
        st.tuples(st.integers(0, 3000), st.integers(1, 3000)),
        st.tuples(st.integers(0, 3000), st.integers(0, 100)),
        st.sampled_from(TIERS),
    ),
    max_size=25,
)


@every_index
@given(steps=long_steps, start=st.integers(0, 500), many_workers=st.booleans())
@settings(max_examples=15, deadline=None)
def test_long_prompts_and_large_changes_agree_too(
    kind: str,
    steps: list[tuple[str, str, tuple[int, int], tuple[int, int], str]],
    start: int,
    many_workers: bool,
) -> None:
    index, model = INDEXES[kind](), Model()
    if many_workers:
        for worker in WORKERS:
            apply(index, model, ("stored", worker, [name(number) for number in range(200)], [], "dram"))
    for action, worker, first, second, tier in steps:
        some, more = ([name(at) for at in range(begin, begin + count)] for begin, count in (first, second))
        apply(index, model, (action, worker, some, more, tier))
        wanted = [name(number) for number in range(start, 3500)]
        assert index.longest(wanted) == expected(model, wanted)
        assert index.longest(wanted[:70]) == expected(model, wanted[:70])


@every_index
def test_a_dropped_worker_is_unknown_at_once_and_its_room_is_used_again(kind: str) -> None:
    index = INDEXES[kind]()
    many = tuple(name(number) for number in range(5000))
    index.stored("lost", many)
    index.stored("kept", many[:10])
    index.drop("lost")
    assert index.longest(many) == {"kept": Held(10, 10)}
    for round_number in range(200):
        index.replace("flapping", many[round_number : round_number + 50])
    assert index.longest(many) == {"kept": Held(10, 10)}
    assert index.longest(many[199:]) == {"flapping": Held(50, 50)}


@every_index
def test_a_worker_that_comes_back_starts_empty(kind: str) -> None:
    index = INDEXES[kind]()
    index.stored("w", NAMES, "dram")
    index.drop("w")
    index.stored("w", NAMES[:1])
    assert index.longest(NAMES) == {"w": Held(1, 1)}
    assert index.longest(()) == {}


@every_index
def test_blocks_behind_a_gap_of_the_pool_are_neither_leading_nor_to_be_read(kind: str) -> None:
    index = INDEXES[kind]()
    index.stored("w", [NAMES[0], NAMES[3]])
    index.stored("w", NAMES[:3], "dram")
    index.stored("w", NAMES[2:5], "nvme")
    assert index.longest(NAMES[:6]) == {"w": Held(5, 1, 2, 1)}


@every_index
def test_another_tier_is_not_indexed(kind: str) -> None:
    index = INDEXES[kind]()
    index.stored("w", NAMES, "tape")
    index.removed("w", NAMES, "tape")
    assert index.longest(NAMES) == {}


@every_index
def test_what_is_put_off_comes_to_an_end(kind: str) -> None:
    index = INDEXES[kind]()
    for worker in WORKERS:
        index.stored(worker, [name(number) for number in range(300)])
        index.drop(worker)
    turns = 0
    while index.tend():
        turns += 1
        assert turns < 1000, "it never ends"
    assert not index.tend()
