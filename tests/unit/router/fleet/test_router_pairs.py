"""The book of pairs: which pairs there are, which canaries are due, and how many at one time."""

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.fleet.breaker import Outcome, State
from router.fleet.pairs import Key, PairRegistry, Partner
from router.settings import PairSettings

SETTINGS = PairSettings(canaries_max=2, partners_max=3, failures_max=2, backoff_first_s=0.5, backoff_max_s=2.0)


def prefill(name: str, group: object = "g") -> Partner:
    return Partner(name, True, str(group), ("shm", "tcp"))


def decode(name: str, group: object = "g") -> Partner:
    return Partner(name, False, str(group))


def test_pairs_are_made_of_both_kinds_within_a_group() -> None:
    book = PairRegistry(SETTINGS)
    for partner in (prefill("p0"), decode("d0"), decode("d1", "other"), prefill("p1")):
        book.add(partner, 0.0)
    assert set(book.views) == {("p0", "d0"), ("p1", "d0")}
    assert not any(view.usable for view in book.views.values())


def test_a_worker_is_paired_with_a_bounded_number_at_once_and_with_others_on_demand() -> None:
    book = PairRegistry(SETTINGS)
    for index in range(6):
        book.add(prefill(f"p{index}"), 0.0)
    book.add(decode("d0"), 0.0)
    book.add(decode("d1"), 0.0)
    assert len(book.of("d0")) == len(book.of("d1")) == 3
    assert all(len(book.of(f"p{index}")) == 1 for index in range(6)), "partners are shared out"
    (missing, *_) = [key for key in ((f"p{index}", "d0") for index in range(6)) if key not in book.views]
    assert book.want([missing], 1.0)
    assert not book.want([missing, ("p0", "nobody"), ("d0", "p0")], 1.0)
    assert missing in book.views


def auto(name: str) -> Partner:
    return Partner(name, False, "g", ("shm",), True)


def test_workers_of_role_auto_are_paired_in_both_directions() -> None:
    book = PairRegistry(SETTINGS)
    for partner in (auto("a0"), auto("a1")):
        book.add(partner, 0.0)
    assert set(book.views) == {("a0", "a1"), ("a1", "a0")}
    assert book.unproven() is None, "until they are proved each computes its prompts itself"
    book.add(prefill("p0"), 0.0)
    assert ("p0", "a0") in book.views
    assert not any(key[1] == "p0" for key in book.views)
    assert book.unproven() is not None
    book.remove("a0")
    assert set(book.views) == {("p0", "a1")}


def test_pairs_of_workers_of_role_auto_grow_with_the_fleet_not_with_its_square() -> None:
    book = PairRegistry(SETTINGS)
    for number in range(20):
        book.add(auto(f"a{number:02d}"), 0.0)
    assert len(book.views) <= 20 * SETTINGS.partners_max
    missing = next((one, other) for one in book._seats for other in book._seats
                   if one != other and (one, other) not in book.views)  # fmt: skip
    assert book.want([missing], 1.0)
    assert not book.want([("a01", "a01")], 1.0)


def test_canaries_are_begun_as_many_as_there_is_room_for() -> None:
    book = PairRegistry(SETTINGS)
    book.add(decode("d0"), 0.0)
    for index in range(3):
        book.add(prefill(f"p{index}"), 0.0)
    first = book.begin_due(0.0)
    assert len(first) == 2
    assert book.begin_due(0.0) == ()
    book.probed(first[0], Outcome("shm"), 0.1)
    assert book.counts() == {"unproven": 2, "closed": 1, "doubted": 0, "open": 0, "half_open": 0}
    assert len(book.begin_due(0.1)) == 1
    assert book.next_due is None


def test_a_worker_that_leaves_takes_its_pairs_and_its_canaries_with_it() -> None:
    book = PairRegistry(SETTINGS)
    book.add(prefill("p0"), 0.0)
    book.add(decode("d0"), 0.0)
    (key,) = book.begin_due(0.0)
    book.remove("p0")
    assert (book.under_way, dict(book.views), book.of("d0")) == (0, {}, ())
    book.probed(key, Outcome("shm"), 0.1)
    book.add(prefill("p0"), 0.2)
    assert book.breakers[key].state is State.UNPROVEN, "a new incarnation has proved nothing"


def test_nothing_is_awaited_once_a_pair_carries_or_all_have_been_tried() -> None:
    book = PairRegistry(SETTINGS)
    assert book.unproven() is None
    book.add(prefill("p0"), 0.0)
    book.add(prefill("p1"), 0.0)
    book.add(decode("d0"), 0.0)
    assert "none of 2 pairs" in (book.unproven() or "")
    one, other = book.begin_due(0.0)
    book.probed(one, Outcome("", "transfer_failed", "…"), 0.1)
    assert book.unproven() is not None
    book.probed(other, Outcome("", "transfer_failed", "…"), 0.1)
    assert book.unproven() is None


class Books(RuleBasedStateMachine):
    """Workers come and go, canaries and transfers end well and badly, time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.book = PairRegistry(SETTINGS)
        self.now = 0.0
        self.here: dict[str, None] = {}
        self.under_way: dict[Key, None] = {}

    @rule(name=st.sampled_from(["p0", "p1", "p2", "p3", "p4", "d0", "d1", "d2", "a0", "a1"]))
    def comes(self, name: str) -> None:
        self.goes(name)
        made = {"p": prefill, "d": decode, "a": auto}[name[0]]
        self.book.add(made(name), self.now)
        self.here[name] = None

    @rule(name=st.sampled_from(["p0", "p1", "p2", "d0", "d1", "a0"]))
    def goes(self, name: str) -> None:
        self.book.remove(name)
        self.here.pop(name, None)
        self.under_way = {key: None for key in self.under_way if name not in key}

    @rule(key=st.tuples(st.sampled_from(["p0", "p3", "a0", "p4"]), st.sampled_from(["d0", "a1", "d2", "p1"])))
    def is_wanted(self, key: Key) -> None:
        self.book.want([key], self.now)

    @rule(seconds=st.floats(0.0, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for key in self.book.begin_due(self.now):
            assert key not in self.under_way, "two canaries of one pair"
            self.under_way[key] = None

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 10), good=st.booleans())
    def a_canary_ends(self, which: int, good: bool) -> None:
        key = list(self.under_way)[which % len(self.under_way)]
        del self.under_way[key]
        self.book.probed(key, Outcome("shm") if good else Outcome("", "transfer_failed", "…"), self.now)

    @precondition(lambda self: self.book.views)
    @rule(which=st.integers(0, 20), outcome=st.sampled_from([Outcome("shm"), Outcome("tcp"),
                                                             Outcome("tcp", "kv_corrupt", "…")]))  # fmt: skip
    def a_transfer_ends(self, which: int, outcome: Outcome) -> None:
        keys = sorted(self.book.views)
        self.book.transferred(keys[which % len(keys)], outcome, self.now)

    @invariant()
    def nothing_grows_without_bound(self) -> None:
        assert self.book.under_way == len(self.under_way) <= SETTINGS.canaries_max
        assert all(name in self.here for key in self.book.views for name in key)
        assert len(self.book._due) <= 2 * len(self.book.breakers) + 16
        assert sum(self.book.counts().values()) == len(self.book.views)

    @invariant()
    def every_pair_that_does_not_carry_has_a_canary_under_way_or_due(self) -> None:
        for key, breaker in self.book.breakers.items():
            assert breaker.view.usable or key in self.under_way or breaker.due_at is not None
        due = [breaker.due_at for breaker in self.book.breakers.values() if breaker.due_at is not None]
        assert self.book.next_due == min(due, default=None)

    def teardown(self) -> None:
        """When everything has healed, every pair carries within the longest back-off."""
        for _ in range(200):
            for key in tuple(self.under_way):
                del self.under_way[key]
                self.book.probed(key, Outcome("shm"), self.now)
            self.time_passes(SETTINGS.backoff_max_s)
            if all(view.usable for view in self.book.views.values()):
                return
        raise AssertionError("a pair is stuck")


Books.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBooks = Books.TestCase
