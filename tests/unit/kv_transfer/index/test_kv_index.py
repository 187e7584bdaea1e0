"""The compact index where it is easiest to get wrong: names that meet in one bucket, growth, memory given back."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_transfer.index.compact_hash import Mixer
from kv_transfer.index.compact_index import CompactIndex
from kv_transfer.index.compact_table import NameTable, packed_words
from kv_transfer.index.protocol import Held


class Colliding(Mixer):
    """All names meet in few buckets, with few tags."""

    def __init__(self, kinds: int) -> None:
        super().__init__(1)
        self._kinds = kinds

    def many(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return low % np.uint64(self._kinds)

    def one(self, low: int, high: int) -> int:
        return low % self._kinds


def names(count: int, seed: int = 0) -> list[bytes]:
    draw = random.Random(seed)
    return [draw.randbytes(16) for _ in range(count)]


@pytest.mark.parametrize("kinds", [1, 2, 300])
def test_names_that_meet_in_one_bucket_are_all_found(kinds: int) -> None:
    index = CompactIndex(0)
    index._table = NameTable(Colliding(kinds), 3)
    some = names(3000)
    index.stored("w", some[:2000])
    for one in some[2000:2030]:
        index.stored("w", [one])
        assert index.longest([one]) == {"w": Held(1, 1)}
    index.stored("v", some[1000:3000])
    assert index.longest(some) == {"w": Held(2030, 2030)}
    assert index.longest(some[1000:]) == {"w": Held(1030, 1030), "v": Held(2000, 2000)}
    index.removed("w", some[:1000])
    assert index.longest(some[:1]) == {}
    index.drop("w")
    index.drop("v")
    while index.tend():
        pass
    assert len(index) == 0


def test_a_name_that_lies_elsewhere_now_is_not_taken_from_its_old_row() -> None:
    index, some, others = CompactIndex(3), names(300), names(5, seed=1)
    index.stored("w", others)
    index.stored("w", some)
    for at, other in zip((100, 101, 150, 299, 3), others, strict=True):
        index.removed("w", [some[at]])
        assert index.longest(some) == {"w": Held(at, at)}
        index.removed("w", [other])
        # It gets the row of the other name, and its own is free with its name in it.
        index.stored("w", [some[at]])
        assert index.longest(some) == {"w": Held(300, 300)}


def test_it_grows_and_shrinks_by_name() -> None:
    index = CompactIndex(99)
    some = names(60_000)
    for start in range(0, len(some), 700):
        index.stored(f"w{start % 3}", some[start : start + 700])
    assert len(index) == len(set(some))
    for at in range(0, len(some), 700):
        assert index.longest(some[at : at + 2]) == {f"w{at % 3}": Held(2, 2)}
    for start in range(0, len(some), 700):
        index.removed(f"w{start % 3}", some[start : start + 700])
    assert len(index) == 0


def test_one_name_and_many_find_the_same_slots() -> None:
    table = NameTable(Mixer(12345), 3)
    some = names(20_000)
    words = packed_words(b"".join(some))
    table.put(words[:15_000])
    for one in some[15_000:]:
        table.put_one(one)
    assert table.find(words).tolist() == [table.find_one(one) for one in some]
    assert len(set(table.find(words).tolist())) == len(some)


def test_a_worker_dropped_amid_growth_leaves_nothing() -> None:
    index = CompactIndex(7)
    some = names(40_000)
    index.stored("kept", some[::2])
    for start in range(0, len(some), 2000):
        index.stored("lost", some[start : start + 2000])
        index.tend()
        if start % 6000 == 0:
            index.drop("lost")
    index.drop("lost")
    while index.tend():
        pass
    assert len(index) == 20_000
    assert index.longest(some[:1]) == {"kept": Held(1, 1)}
    assert index.longest(some[1:2]) == {}


@given(pieces=st.lists(st.integers(1, 400), min_size=1, max_size=12), gap=st.integers(0, 20), draw=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_a_conversation_is_found_however_its_blocks_came(pieces: list[int], gap: int, draw: int) -> None:
    """In pieces that lie in order, with others' blocks between them, and some of it removed and stored again."""
    index, some, others = CompactIndex(5), names(sum(pieces)), names(20 * 12, seed=1)
    start = 0
    for number, piece in enumerate(pieces):
        index.stored("w", some[start : start + piece])
        index.stored("v", others[20 * number : 20 * number + gap])
        start += piece
    at = draw % len(some)
    assert index.longest([*some, *others[:1]])["w"] == Held(len(some), len(some))
    index.removed("w", [some[at]])
    assert index.longest(some).get("w", Held(0, 0)) == Held(at, at)
    index.stored("w", [some[at]], "dram")
    assert index.longest(some)["w"] == Held(len(some), at, 1)
