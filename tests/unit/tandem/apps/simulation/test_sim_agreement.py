"""What Redis must say of a holder: everything, but what it had to give up to others and has not told of again."""

import struct

import pytest

from kv_transfer.index.redis_scripts import CHANGE, ENTRIES_MAX, REGISTER
from tandem.apps.simulation.agreement import expected
from tandem.apps.simulation.redis_data import RedisData
from tandem.apps.simulation.redis_scripts import SCRIPTS, reported_by

PREFIX = b"t:"
NAME, OTHER = b"a" * 16, b"b" * 16


@pytest.mark.parametrize(
    ("told", "displaced", "wanted"),
    [
        pytest.param({}, {}, {NAME, OTHER}, id="never given up"),
        pytest.param({}, {NAME}, {OTHER}, id="given up"),
        pytest.param({NAME}, {NAME}, {NAME, OTHER}, id="told again"),
    ],
)
def test_expected(told: set[bytes], displaced: set[bytes], wanted: set[bytes]) -> None:
    assert expected([NAME, OTHER], told, displaced) == wanted


class Holders:
    """Holders that tell of one name, a second after each other."""

    def __init__(self) -> None:
        self.data, self.now = RedisData(), 0

    def register(self, record: bytes) -> object:
        return SCRIPTS[REGISTER](self.data, self.now, [PREFIX, record, b"60000", record, b"1"])

    def tell(self, record: bytes, tier: bytes, storing: bytes = b"1") -> None:
        self.now += 1000
        number = next(key for key, (value, _) in self.data.records.items() if value == record and b"h" in key)
        most = b"%d" % ENTRIES_MAX
        arguments = [PREFIX, number.removeprefix(PREFIX + b"h"), tier, b"600", NAME, storing, most, record]
        assert SCRIPTS[CHANGE](self.data, self.now, arguments) == 1

    def told(self) -> set[bytes]:
        told = reported_by(self.data, PREFIX, self.now)
        return {record for record, tiers in told.items() if any(tiers.values())}


def test_the_holder_told_of_longest_ago_gives_way_to_one_more() -> None:
    holders = Holders()
    records = [struct.pack(">B", 65 + at) for at in range(ENTRIES_MAX + 1)]
    for record in records:
        holders.register(record)
    for record in records[:-1]:
        holders.tell(record, b"0")
        holders.tell(record, b"1")
    assert holders.data.displaced == {}, "one that keeps it in two tiers takes one place"

    holders.tell(records[-1], b"0")

    assert holders.data.displaced == {records[0]: {NAME}}
    assert holders.told() == set(records[1:])


def test_a_holder_that_is_gone_gives_way_first() -> None:
    holders = Holders()
    records = [struct.pack(">B", 65 + at) for at in range(ENTRIES_MAX + 1)]
    for record in records:
        holders.register(record)
    for record in records[:-1]:
        holders.tell(record, b"0")
    holders.register(records[1])

    holders.tell(records[-1], b"0")

    assert holders.data.displaced == {}
    assert holders.told() == {records[0], *records[2:]}
