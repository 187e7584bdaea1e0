"""The block pool keeps every slot in one state, evicts the least recently used, and tells what names it has."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tandem.engine.protocol import KvChange
from tandem.engine.scheduler.blocks import BlockPool

DIGESTS = b"\0" * 8


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_a_slot_given_out_again_has_a_new_generation() -> None:
    pool = BlockPool(1)
    (slot,) = pool.allocate(1)
    before = pool.generation(slot)
    pool.release(slot)
    assert pool.allocate(1) == [slot]
    assert pool.generation(slot) == before + 1


def test_a_named_block_survives_its_last_user_until_the_slot_is_needed() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, name(1), DIGESTS)
    pool.publish(second, name(2), DIGESTS)
    pool.release(first)
    pool.release(second)
    assert (pool.available, pool.cached) == (2, 2)
    assert pool.match([name(1), name(2)]) == [first, second]
    pool.ref(first)
    assert pool.allocate(1) == [second]
    assert pool.find(name(2)) is None
    assert pool.digests(second) is None
    assert pool.digests(first) == DIGESTS


def test_the_least_recently_used_block_goes_first_and_a_prompts_end_before_its_beginning() -> None:
    pool = BlockPool(4)
    table = pool.allocate(3)
    for number, slot in enumerate(table):
        pool.publish(slot, name(number), DIGESTS)
    pool.release_table(table)
    pool.allocate(1)  # the one that was always free
    assert pool.allocate(1) == [table[2]]
    pool.ref(table[1])
    pool.release(table[1])
    assert pool.allocate(1) == [table[0]]


def test_a_match_ends_at_the_first_missing_name() -> None:
    pool = BlockPool(3)
    slots = pool.allocate(3)
    pool.publish(slots[0], name(0), DIGESTS)
    pool.publish(slots[2], name(2), DIGESTS)
    assert pool.match([name(0), name(1), name(2)]) == [slots[0]]


def test_a_second_copy_of_a_name_stays_private() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, name(1), DIGESTS)
    pool.publish(second, name(1), DIGESTS)
    assert pool.find(name(1)) == first
    assert pool.digests(second) == DIGESTS
    pool.release(second)
    assert pool.cached == 0
    pool.check({first: 1})


def test_events_tell_the_net_change_once() -> None:
    pool = BlockPool(1)
    (slot,) = pool.allocate(1)
    pool.publish(slot, name(1), DIGESTS)
    assert pool.take_changes() == KvChange(stored=(name(1),), makers=(0,))
    assert pool.take_changes() == KvChange()
    pool.release(slot)
    pool.allocate(1)
    pool.publish(slot, name(2), DIGESTS)
    assert pool.take_changes() == KvChange(stored=(name(2),), removed=(name(1),), makers=(0,))
    pool.release(slot)
    pool.allocate(1)
    pool.publish(slot, name(2), DIGESTS)
    assert pool.take_changes() == KvChange(), "removed and stored again between two reports"


def test_quarantined_slots_are_nobodys_until_released() -> None:
    pool = BlockPool(2)
    slots = pool.allocate(2)
    pool.quarantine(slots[0])
    assert (pool.available, pool.quarantined, pool.used) == (0, 1, 1)
    pool.unquarantine(slots[1])
    assert pool.used == 1, "a slot in use is not given away"
    pool.unquarantine(slots[0])
    pool.unquarantine(slots[0])
    assert (pool.available, pool.quarantined) == (1, 0)


def test_misuse_is_an_assertion() -> None:
    pool = BlockPool(1)
    with pytest.raises(AssertionError):
        pool.allocate(2)
    with pytest.raises(AssertionError):
        pool.release(0)
    with pytest.raises(AssertionError):
        pool.publish(0, name(1), DIGESTS)


def test_a_block_that_is_being_copied_keeps_its_slot_and_its_place_in_the_order() -> None:
    pool = BlockPool(16)
    slots = pool.allocate(3)
    for number, slot in enumerate(slots):
        pool.publish(slot, name(number), DIGESTS)
        pool.release(slot)
    pool.allocate(13)
    assert pool.hold(name(0)) == slots[0]
    assert pool.hold(name(0)) == slots[0]
    assert (pool.available, pool.held) == (2, 1)
    assert pool.allocate(1) == [slots[1]]
    pool.unhold(slots[0])
    assert pool.available == 1
    pool.unhold(slots[0])
    assert pool.allocate(1) == [slots[0]], "copying it was no use of it"
    assert pool.hold(name(0)) is None


def test_only_a_part_of_the_blocks_is_held_at_a_time() -> None:
    pool = BlockPool(16)
    for number, slot in enumerate(pool.allocate(16)):
        pool.publish(slot, name(number), DIGESTS)
    assert [pool.hold(name(number)) is not None for number in range(4)] == [True, True, False, False]
    assert pool.hold(name(1)) is not None


def test_a_damaged_block_that_is_being_copied_goes_to_nobody_before_the_copy_is_over() -> None:
    pool = BlockPool(2)
    slot, _ = pool.allocate(2)
    pool.publish(slot, name(0), DIGESTS)
    pool.release(slot)
    pool.hold(name(0))
    pool.invalidate(slot)
    assert (pool.available, pool.quarantined) == (0, 1)
    pool.unhold(slot)
    assert pool.allocate(1) == [slot]


class PoolMachine(RuleBasedStateMachine):
    """A pool beside a plain model of who holds what."""

    @initialize(blocks=st.integers(1, 8))
    def start(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.held: list[int] = []
        self.quarantined: list[int] = []
        self.copied: list[int] = []
        self.generations: dict[int, int] = {}
        self.known: dict[bytes, None] = {}

    @rule(count=st.integers(0, 3))
    def allocate(self, count: int) -> None:
        if count <= self.pool.available:
            for slot in self.pool.allocate(count):
                assert slot not in self.held
                assert slot not in self.quarantined
                assert slot not in self.copied
                assert self.pool.generation(slot) > self.generations.get(slot, 0)
                self.generations[slot] = self.pool.generation(slot)
                self.held.append(slot)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 99))
    def release(self, number: int) -> None:
        self.pool.release(self.held.pop(number % len(self.held)))

    @rule(number=st.integers(0, 9))
    def ref(self, number: int) -> None:
        slot = self.pool.find(name(number))
        if slot is not None:
            self.pool.ref(slot)
            self.held.append(slot)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 99), called=st.integers(0, 9))
    def publish(self, number: int, called: int) -> None:
        slot = self.held[number % len(self.held)]
        if slot not in [self.pool.find(known) for known in self.pool.snapshot()]:
            self.pool.publish(slot, name(called), DIGESTS)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 99))
    def quarantine(self, number: int) -> None:
        slot = self.held[number % len(self.held)]
        if self.held.count(slot) == 1 and slot not in [self.pool.find(known) for known in self.pool.snapshot()]:
            self.held.remove(slot)
            self.pool.quarantine(slot)
            self.quarantined.append(slot)

    @precondition(lambda self: self.quarantined)
    @rule()
    def unquarantine(self) -> None:
        self.pool.unquarantine(self.quarantined.pop())

    @rule(number=st.integers(0, 9))
    def hold(self, number: int) -> None:
        slot = self.pool.find(name(number))
        held = self.pool.hold(name(number))
        assert held == slot or (held is None and slot not in self.copied and self.copied)
        self.copied += () if held is None else (held,)

    @precondition(lambda self: self.copied)
    @rule(number=st.integers(0, 99))
    def unhold(self, number: int) -> None:
        self.pool.unhold(self.copied.pop(number % len(self.copied)))

    @rule(slot=st.integers(0, 7))
    def invalidate(self, slot: int) -> None:
        if slot < self.pool.blocks:
            self.pool.invalidate(slot)
            assert slot not in [self.pool.find(known) for known in self.pool.snapshot()]

    @rule()
    def events(self) -> None:
        change = self.pool.take_changes()
        for stored in change.stored:
            assert stored not in self.known
            self.known[stored] = None
        for removed in change.removed:
            del self.known[removed]
        assert sorted(self.known) == sorted(self.pool.snapshot())

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check({slot: self.held.count(slot) for slot in self.held})
            unreadable = {slot for slot in self.copied if slot not in self.held and not self._named(slot)}
            assert self.pool.quarantined == len(self.quarantined) + len(unreadable)
            assert self.pool.held == len(set(self.copied))

    def _named(self, slot: int) -> bool:
        return slot in [self.pool.find(known) for known in self.pool.snapshot()]


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=100, stateful_step_count=40)


def test_a_block_is_held_until_the_last_of_several_copies_is_over() -> None:
    """A tier and two peers read it: given away after the second, the third would send another prompt's bytes."""
    pool = BlockPool(8)
    (slot,) = pool.allocate(1)
    pool.publish(slot, name(1), DIGESTS)
    pool.release(slot)
    for _ in range(3):
        assert pool.hold(name(1)) == slot
    for _ in range(3):
        assert pool.available == 7
        pool.unhold(slot)
    assert pool.available == 8


def test_a_block_with_one_user_is_written_where_it_is() -> None:
    pool = BlockPool(2)
    (slot,) = pool.allocate(1)
    assert not pool.shared(slot)
    pool.ref(slot)
    assert pool.shared(slot)
