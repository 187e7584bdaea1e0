"""What Redis must say of a holder: everything, but where others have taken all the places that a name has."""

from collections import Counter

from kv_transfer.redis_scripts import ENTRIES_MAX
from tandem.sim.agreement import expected, places
from tandem.sim.redis_scripts import Told

NAME = b"a name"


def holding(*tiers: str) -> Told:
    return {tier: {NAME: None} if tier in tiers else {} for tier in ("hbm", "dram", "nvme")}


def test_a_name_with_a_place_left_is_expected() -> None:
    taken = places([holding("hbm")] * (ENTRIES_MAX - 1))
    assert expected([NAME], holding(), taken) == {NAME}


def test_a_name_without_a_place_left_is_not() -> None:
    taken = places([holding("hbm")] * ENTRIES_MAX)
    assert expected([NAME], holding(), taken) == frozenset()


def test_a_holder_takes_one_place_in_however_many_tiers() -> None:
    assert places([holding("hbm", "dram"), holding("dram", "nvme")]) == Counter({NAME: 2})


def test_who_has_a_place_tells_all_its_tiers_there() -> None:
    taken = places([holding("hbm")] * ENTRIES_MAX)
    assert expected([NAME], holding("hbm"), taken) == {NAME}, "in dram too: the entry has room for that"
