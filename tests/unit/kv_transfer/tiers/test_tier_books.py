"""The books of a tier against a plain model: capacity, quotas, order of use, pins, readers."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kv_transfer.tiers.backoff import Backoff
from kv_transfer.tiers.index import Copy, TierIndex
from kv_transfer.tiers.pins import PinTable
from kv_transfer.tiers.protocol import Pinning
from kv_transfer.tiers.quotas import Quotas
from kv_transfer.tiers.speed import Speed

NAMES = st.integers(0, 30).map(lambda number: bytes([number]) * 16)
TENANTS = st.sampled_from(["a", "b", "c"])


def tenant_of(name: bytes) -> str:
    return "abc"[name[0] % 3]


def filled(count: int, blocks: int | None = None, quota: int | None = None) -> TierIndex:
    book = TierIndex(blocks or count, Quotas(quota or blocks or count), lambda name: False)
    for number in range(count):
        book.reserve(bytes([number]) * 16, "")
        book.settle(bytes([number]) * 16, number)
    return book


def test_the_least_recently_used_goes_first() -> None:
    book = filled(4)
    book.touch(bytes([0]) * 16)
    gone = [book.reserve(bytes([100 + number]) * 16, "").evicted[0].name[0] for number in range(3)]
    assert gone == [1, 2, 3]


def test_what_is_borrowed_together_was_wanted_in_that_order() -> None:
    book, names = filled(3, blocks=4), [bytes([number]) * 16 for number in (1, 0, 9, 8)]
    book.reserve(names[3], "")
    found = book.borrow(names)
    assert [copy and (copy.name, copy.readers, copy.used) for copy in found] == [
        (names[0], 1, True),
        (names[1], 1, True),
        None,
        None,
    ]
    for copy in found:
        assert copy is None or not book.release(copy)
    gone = [book.reserve(bytes([100 + number]) * 16, "").evicted[0].name[0] for number in range(3)]
    assert gone == [2, 1, 0]


def test_a_reservation_is_neither_found_nor_evicted() -> None:
    book = filled(1, blocks=2)
    book.reserve(b"new" * 6, "")
    assert b"new" * 6 not in book
    assert book.reserve(b"x" * 16, "").evicted[0].name == bytes(16)
    assert book.reserve(b"y" * 16, "other").refusal == "pinned"
    assert book.settle(b"x" * 16, 7)
    assert b"x" * 16 in book


def test_a_quota_evicts_the_tenants_own_only() -> None:
    book = TierIndex(10, Quotas(3), lambda name: False)
    for number in range(4):
        book.reserve(b"b%015d" % number, "b")
        book.settle(b"b%015d" % number, number)
    room = book.reserve(b"b%015d" % 9, "b")
    assert [copy.name for copy in room.evicted] == [b"b%015d" % 1]
    assert book.reserve(b"a" * 16, "a").evicted == ()
    book.quotas.tell("c", 0)
    assert book.reserve(b"c" * 16, "c").refusal == "quota"


def test_removed_while_read_keeps_its_room_until_the_last_reader_is_done() -> None:
    book = filled(2)
    name = bytes(16)
    one, two = book.acquire(name), book.acquire(name)
    assert book.remove(name) is None
    assert name not in book
    assert len(book) == 2
    assert not book.release(one)
    assert book.release(two)
    assert len(book) == 1


def test_what_several_readers_borrowed_keeps_its_place_until_the_last_is_done() -> None:
    """Another block would else be written where somebody still reads."""
    book = filled(1, blocks=1)
    name = bytes(16)
    readers = [*book.borrow([name, name]), *book.borrow([name])]
    assert book.remove(name) is None
    assert [copy is not None and book.release(copy) for copy in readers] == [False, False, True]


def test_found_blocks_are_colder_than_what_is_here_and_evict_nothing() -> None:
    book = filled(1, blocks=3)
    assert book.adopt(b"old" * 6, "", 8)
    assert book.adopt(b"older" * 4, "", 9)
    assert not book.adopt(b"oldest" * 3, "", 10)
    assert book.names() == (b"older" * 4, b"old" * 6, bytes(16))


def test_a_book_at_its_bounds_is_right_and_one_above_them_is_not() -> None:
    """Drills and simulations ask the book itself: it must not blame a tenant for what it may have, nor miss more."""
    book = filled(3, blocks=4, quota=3)
    book.check()
    book.quotas.tell("", 2)
    with pytest.raises(AssertionError, match="above their quota"):
        book.check()
    book.trim("")
    book.check()


@dataclass
class Model:
    """What the book should hold, the coldest first."""

    order: list[bytes] = field(default_factory=list)
    readable: dict[bytes, int] = field(default_factory=dict)
    readers: dict[bytes, list[Copy]] = field(default_factory=dict)


class Books(RuleBasedStateMachine):
    """Reservations, uses, readers, removals and pins in any order; quotas that change."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pins = PinTable(Quotas(3), 6)
        self.book = TierIndex(10, Quotas(6), lambda name: self.pins.pinned(name, self.now))
        self.model = Model()
        self.places = 0
        self.doomed: list[Copy] = []
        self.grown: set[bytes] = set()
        """Blocks that can go only since the book last made room for their tenant; they may be too many."""

    def forget_grown(self, tenant: str) -> None:
        self.grown = {name for name in self.grown if tenant_of(name) != tenant}

    def free_to_go(self, name: bytes) -> bool:
        model = self.model
        return name in model.readable and not model.readers.get(name) and not self.pins.pinned(name, self.now)

    @rule(name=NAMES)
    def reserve(self, name: bytes) -> None:
        tenant, before = tenant_of(name), list(self.model.order)
        room = self.book.reserve(name, tenant)
        if name in before:
            assert room.refusal == "held"
            return
        self.forget_grown(tenant)
        for copy in room.evicted:
            assert self.free_to_go(copy.name), "a block went that had to stay"
            self.model.order.remove(copy.name)
            del self.model.readable[copy.name]
        candidates = [each for each in before if self.free_to_go(each)]
        if room.evicted and not self.pins_in_the_way(before):
            own = [each for each in candidates if tenant_of(each) == tenant]
            assert room.evicted[0].name in (candidates[:1] + own[:1])
        if room.refusal is None:
            self.model.order.append(name)

    def pins_in_the_way(self, before: list[bytes]) -> bool:
        """Whether the order of use may have been stirred by blocks that could not go."""
        self.model.order = [name for name in self.book._copies if name in before]
        return any(not self.free_to_go(name) for name in before)

    @rule(name=NAMES)
    def settle(self, name: bytes) -> None:
        self.places += 1
        if self.book.settle(name, self.places):
            self.model.readable[name] = self.places
            self.grown.add(name)

    @rule(name=NAMES)
    def touch(self, name: bytes) -> None:
        self.book.touch(name)
        if name in self.model.order:
            self.model.order.remove(name)
            self.model.order.append(name)

    @rule(name=NAMES)
    def acquire(self, name: bytes) -> None:
        if name in self.book:
            self.model.readers.setdefault(name, []).append(self.book.acquire(name))

    @rule(name=NAMES)
    def release(self, name: bytes) -> None:
        if self.model.readers.get(name):
            assert not self.book.release(self.model.readers[name].pop())
            self.grown.add(name)

    @precondition(lambda self: self.doomed)
    @rule()
    def release_doomed(self) -> None:
        copy = self.doomed.pop()
        assert self.book.release(copy) is (copy not in self.doomed)

    @rule(name=NAMES)
    def remove(self, name: bytes) -> None:
        readers = self.model.readers.pop(name, [])
        copy = self.book.remove(name)
        assert (copy is None) is (name not in self.model.order or bool(readers))
        self.doomed += readers
        if name in self.model.order:
            self.model.order.remove(name)
            self.model.readable.pop(name, None)

    @rule(name=NAMES, priority=st.integers(0, 3), ttl_s=st.floats(0, 50))
    def pin(self, name: bytes, priority: int, ttl_s: float) -> None:
        self.pins.pin((name,), Pinning(priority, ttl_s, tenant_of(name)), self.now)

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.grown.update(self.model.order)  # pins have ended

    @rule(tenant=TENANTS, blocks=st.none() | st.integers(0, 8))
    def limit(self, tenant: str, blocks: int | None) -> None:
        self.book.quotas.tell(tenant, blocks)
        self.forget_grown(tenant)
        for copy in self.book.trim(tenant):
            assert self.free_to_go(copy.name)
            self.model.order.remove(copy.name)
            del self.model.readable[copy.name]

    @invariant()
    def holds(self) -> None:
        self.pins.check()
        assert len(self.book) <= 10
        for tenant in "abc":
            over = self.book.held_by(tenant) - self.book.quotas.of(tenant)
            held = [name for name in self.model.order if tenant_of(name) == tenant]
            stuck = [name for name in held if name in self.grown or not self.free_to_go(name)]
            assert over <= len(stuck), "above its quota with blocks that could go"
        assert sorted(self.book.names()) == sorted(self.model.readable)
        assert len(self.book) == len(self.model.order) + len({id(copy) for copy in self.doomed})


Books.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBooks = Books.TestCase


# ---- pins ----


def test_pins_end_by_themselves() -> None:
    pins = PinTable(Quotas(4), 4)
    assert pins.pin((b"a" * 16,), Pinning(0, 10.0), 0.0) == 1
    assert pins.pinned(b"a" * 16, 9.9)
    assert not pins.pinned(b"a" * 16, 10.0)
    assert pins.pin((), Pinning(0, 1.0), 11.0) == 0
    assert len(pins) == 0


def test_a_higher_priority_displaces_the_tenants_own_lowest() -> None:
    pins = PinTable(Quotas(2), 4)
    pins.pin((b"x" * 16,), Pinning(0, 10.0, "other"), 0.0)
    pins.pin((b"a" * 16,), Pinning(1, 50.0, "t"), 0.0)
    pins.pin((b"b" * 16,), Pinning(1, 20.0, "t"), 0.0)
    assert pins.pin((b"c" * 16,), Pinning(1, 99.0, "t"), 0.0) == 0
    assert pins.pin((b"c" * 16, b"d" * 16, b"e" * 16), Pinning(2, 99.0, "t"), 0.0) == 2
    assert [pins.pinned(name * 16, 1.0) for name in (b"a", b"b", b"c", b"d", b"x")] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_a_pin_is_only_strengthened() -> None:
    pins = PinTable(Quotas(2), 2)
    pins.pin((b"a" * 16,), Pinning(2, 50.0), 0.0)
    pins.pin((b"a" * 16,), Pinning(1, 10.0), 0.0)
    assert pins.pinned(b"a" * 16, 49.0)
    assert pins.count("") == 1


def renewed(pins: PinTable, name: bytes, priority: int, ttl_s: float) -> None:
    """Pin once, and renew as often as a prompt does that many requests begin with."""
    for _ in range(200):
        assert pins.pin((name,), Pinning(priority, ttl_s), 0.0) == 1
        ttl_s += 1.0


def test_beside_a_pin_that_is_renewed_over_and_over_others_still_end() -> None:
    """Else what has ended counts against the quota, and new pins are refused for it."""
    pins = PinTable(Quotas(3), 3)
    pins.pin((b"a" * 16,), Pinning(0, 1000.0), 0.0)
    pins.pin((b"b" * 16,), Pinning(0, 10.0), 0.0)
    renewed(pins, b"a" * 16, 0, 1000.0)
    assert pins.pin((b"c" * 16, b"d" * 16), Pinning(0, 10.0), 11.0) == 2
    assert [pins.pinned(name * 16, 12.0) for name in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    pins.check()


def test_beside_a_pin_that_is_renewed_over_and_over_the_least_important_goes_first() -> None:
    """Else a prefix of low priority stays where one of higher priority is refused."""
    pins = PinTable(Quotas(3), 3)
    pins.pin((b"a" * 16,), Pinning(2, 10.0), 0.0)
    pins.pin((b"b" * 16,), Pinning(1, 5000.0), 0.0)
    renewed(pins, b"c" * 16, 2, 1000.0)
    assert pins.pin((b"d" * 16,), Pinning(2, 10.0), 0.0) == 1
    assert [pins.pinned(name * 16, 1.0) for name in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    pins.check()


@given(st.lists(st.tuples(st.integers(0, 9), TENANTS, st.integers(0, 3), st.floats(0.1, 9)), max_size=60))
@settings(max_examples=100, deadline=None)
def test_pins_never_exceed_their_bounds(asked: list[tuple[int, str, int, float]]) -> None:
    pins = PinTable(Quotas(3), 5)
    for step, (number, tenant, priority, ttl_s) in enumerate(asked):
        names = tuple(f"{tenant}{number + i}".encode().ljust(16) for i in range(3))
        accepted = pins.pin(names, Pinning(priority, ttl_s, tenant), float(step))
        assert 0 <= accepted <= 3
        pins.check()
        if step % 7 == 6:
            pins.quotas.tell(tenant, number % 4)
            pins.trim(tenant)
            pins.check()


# ---- speed and back-off ----


def test_speed_learns_latency_and_rate() -> None:
    speed = Speed(1e9, 1e-3, 1 << 20)
    for number in range(400):
        size = (1 + number % 16) << 20
        speed.observe(size, 0.005 + size / 2e9)
    latency_s, rate = speed.line
    assert latency_s == pytest.approx(0.005, rel=0.05)
    assert rate == pytest.approx(2e9, rel=0.05)


def test_what_was_guessed_first_counts_as_much_as_four_reads() -> None:
    """One slow read at the start does not make a tier look slow, and a few do."""
    speed = Speed(1e9, 1e-3, 1 << 20)
    guessed = [speed.expected_s(size) for size in (1 << 20, 16 << 20)]
    for _ in range(2):
        for size, seconds in zip((1 << 20, 16 << 20), guessed, strict=True):
            speed.observe(size, 3 * seconds)
    for size, seconds in zip((1 << 20, 16 << 20), guessed, strict=True):
        assert speed.expected_s(size) == pytest.approx(2 * seconds, rel=0.05)


def test_a_rate_is_learned_beside_a_latency_that_is_most_of_every_read() -> None:
    speed = Speed(2e9, 5e-4, 1 << 20)
    for number in range(200):
        size = (1 + number % 12) << 16
        speed.observe(size, 0.010 + size / 2e9)
    assert speed.expected_s(32 << 10) == pytest.approx(0.010, rel=0.03)
    assert speed.expected_s(8 << 20) == pytest.approx(0.010 + (8 << 20) / 2e9, rel=0.05)


def test_the_rate_that_was_guessed_counts_while_all_reads_are_alike() -> None:
    speed = Speed(1e9, 1e-3, 1 << 20)
    for _ in range(400):
        speed.observe(1 << 20, 0.030)
    assert speed.expected_s(1 << 20) == pytest.approx(0.030, rel=0.01)
    assert speed.expected_s(16 << 20) == pytest.approx(0.030 + (15 << 20) / 1e9, rel=0.02)


@pytest.mark.parametrize(("size", "seconds"), [(1 << 20, 0.0), (1 << 20, -1.0), (0, 0.5), (-4096, 0.5)])
def test_a_read_that_a_clock_or_a_count_makes_impossible_says_nothing(size: int, seconds: float) -> None:
    """A clock that stood still would have a tier believed to be without cost, and every block brought from it."""
    speed = Speed(1e9, 1e-3, 1 << 20)
    before = speed.line
    for _ in range(100):
        speed.observe(size, seconds)
    assert speed.line == before
    speed.observe(1 << 20, 0.5)
    assert speed.line != before, "possible ones count"


@given(st.lists(st.tuples(st.integers(1, 1 << 30), st.floats(1e-6, 10.0)), max_size=50))
@settings(deadline=None)
def test_expected_times_are_finite_and_grow_with_size(reads: list[tuple[int, float]]) -> None:
    speed = Speed(1e9, 1e-4, 4096)
    for size, seconds in reads:
        speed.observe(size, seconds)
    assert 0 < speed.expected_s(4096) <= speed.expected_s(1 << 20) <= speed.expected_s(1 << 30) < 1e12


def test_each_failure_in_a_row_waits_longer() -> None:
    backoff = Backoff(1.0, 3.0)
    waits, now = [], 0.0
    for _ in range(4):
        waits.append(backoff.failed(now))
        assert backoff.waiting(now)
        now += waits[-1]
        assert not backoff.waiting(now)
    assert waits == [1.0, 2.0, 3.0, 3.0]
    backoff.worked()
    assert backoff.failed(now) == 1.0
