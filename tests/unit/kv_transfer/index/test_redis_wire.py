"""The answer to a look-up in Redis, read: golden answers, byte by byte."""

import struct

import pytest

from kv_transfer.index.protocol import Held
from kv_transfer.index.redis_wire import encoded, read_answer
from tests.worlds.redis_stage import hello

NOW = 1_000
HBM, DRAM, NVME = 1, 2, 4


def entry(number: int, tiers: int, expires: int = NOW + 1) -> bytes:
    return struct.pack(">IBI", number, tiers, expires)


def row(*entries: bytes) -> bytes:
    """The entries of one name."""
    return bytes((len(entries),)) + b"".join(entries)


def answer(*rows: bytes, holders: dict[int, bytes] | None = None, now: int = NOW) -> list[bytes]:
    """The answer of a node where holders one, two and three have the numbers 11, 12 and 13."""
    known = {11: ONE, 12: TWO, 13: THREE} if holders is None else holders
    told = [part for number, record in known.items() for part in (struct.pack(">I", number), record)]
    return [struct.pack(">I", now) + b"".join(rows), *told]


ONE, TWO, THREE = (encoded(hello(name)) for name in ("one", "two", "three"))


def held(parts: list[bytes], names: int) -> dict[str, Held]:
    """What is read of an answer, without how it is known."""
    found = read_answer(parts, names)
    assert all(each.held.known_by == "redis" and each.hello.worker_id == holder for holder, each in found.items())
    return {holder: each.held._replace(known_by="events") for holder, each in found.items()}


def test_each_holder_gets_as_far_as_its_own_entries() -> None:
    """Three holders of different lengths, in different tiers: a block that is said to lie in DRAM is fetched from
    there."""
    rows = (
        row(entry(11, HBM), entry(12, DRAM), entry(13, NVME)),
        row(entry(11, HBM | DRAM), entry(12, NVME), entry(13, NVME | DRAM)),
        row(entry(12, HBM), entry(11, HBM)),
        row(entry(11, DRAM)),
    )
    assert held(answer(*rows), 4) == {"one": Held(4, 3, 1), "two": Held(3, 0, 1, 1), "three": Held(2, 0, 1, 1)}


@pytest.mark.parametrize(("tiers", "where"), [(HBM, Held(1, 1)), (DRAM, Held(1, 0, 1)), (NVME, Held(1, 0, 0, 1))])
def test_the_bit_of_a_tier_is_that_tier(tiers: int, where: Held) -> None:
    assert held(answer(row(entry(12, tiers))), 1) == {"two": where}


@pytest.mark.parametrize("tiers", [0, 8, 16])
def test_a_bit_that_stands_for_no_tier_is_no_block(tiers: int) -> None:
    assert held(answer(row(entry(12, tiers))), 1) == {}


@pytest.mark.parametrize(("expires", "found"), [(NOW - 1, {}), (NOW, {}), (NOW + 1, {"two": Held(1, 1)})])
def test_an_entry_that_has_expired_is_no_block(expires: int, found: dict[str, Held]) -> None:
    """Nobody has refreshed it: the worker that had the block may have dropped it long ago."""
    assert held(answer(row(entry(12, HBM, expires))), 1) == found


def test_entries_of_a_holder_that_is_gone_are_nobodys() -> None:
    """The stale entry would otherwise send the request to whichever holder comes first in the answer."""
    assert held(answer(row(entry(99, HBM), entry(12, HBM)), row(entry(99, HBM)), holders={12: TWO}), 2) == {
        "two": Held(1, 1)
    }


def test_neighbours_with_equal_and_with_other_entries_are_told_apart() -> None:
    same, other = row(entry(11, HBM)), row(entry(11, DRAM))
    assert held(answer(same, same, other, other, same), 5) == {"one": Held(5, 2, 2)}


@pytest.mark.parametrize("first", [11, 12])
def test_of_one_holder_under_two_numbers_the_longer_prefix_counts(first: int) -> None:
    second = 23 - first
    parts = answer(
        row(entry(first, HBM), entry(second, HBM)),
        row(entry(second, HBM)),
        holders={11: ONE, 12: encoded(hello("one", 2))},
    )
    found = read_answer(parts, 2)
    assert found["one"].held.total == 2
    assert found["one"].hello.epoch == (1 if second == 11 else 2)


def test_a_name_without_entries_ends_the_prefix() -> None:
    assert held(answer(row(entry(11, HBM)), row(), row(entry(11, HBM))), 3) == {"one": Held(1, 1)}


def test_nobody_has_anything_in_an_empty_answer() -> None:
    assert held([struct.pack(">I", NOW)], 1) == {}


@pytest.mark.parametrize(
    "torn",
    [
        [],
        [b"\0\0\1"],
        [*answer(), struct.pack(">I", 14)],
        [answer(row(entry(11, HBM)))[0][:-1]],
        [answer()[0] + b"\1"],
    ],
    ids=["empty", "short time", "a holder without a record", "entries cut off", "no entries"],
)
def test_a_torn_answer_is_refused(torn: list[bytes]) -> None:
    with pytest.raises((ValueError, IndexError)):
        read_answer(torn, 1)


def test_more_names_than_were_asked_for_are_refused() -> None:
    rows = (row(entry(11, HBM)),) * 3
    assert held(answer(*rows), 3) == {"one": Held(3, 3)}
    with pytest.raises(ValueError, match="2 names were asked for and 3 answered"):
        read_answer(answer(*rows), 2)
