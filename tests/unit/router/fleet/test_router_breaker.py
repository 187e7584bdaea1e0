"""The circuit breaker of a pair: what opens it, what closes it, and what holds for every sequence of events."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from router.fleet.breaker import FAULTS, Breaker, Outcome, State
from router.settings import PairSettings
from tandem.core.errors import KINDS

SETTINGS = PairSettings(failures_max=3, window_s=10.0, backoff_first_s=0.5, backoff_max_s=4.0)
GOOD = Outcome("shm")
FALLBACK = Outcome("tcp")
BROKEN = Outcome("tcp", "transfer_failed", "no route")


def proved(now: float = 0.0) -> Breaker:
    breaker = Breaker(SETTINGS, ("shm", "tcp"), now)
    breaker.begin()
    breaker.probed(GOOD, now)
    return breaker


def fail(breaker: Breaker, now: float, outcome: Outcome = BROKEN, canary: Outcome = GOOD) -> None:
    """A transfer fails, and the canary that it asks for ends with `canary`."""
    breaker.transferred(outcome, now)
    if breaker.due_at == now:
        breaker.begin()
        breaker.probed(canary, now)


def opened(now: float = 1.0) -> Breaker:
    breaker = proved()
    fail(breaker, now, canary=BROKEN)
    assert breaker.state is State.OPEN
    return breaker


def test_no_traffic_before_the_first_canary_and_traffic_after_it() -> None:
    breaker = Breaker(SETTINGS, ("shm",), 5.0)
    assert (breaker.state, breaker.view.usable, breaker.due_at) == (State.UNPROVEN, False, 5.0)
    breaker.begin()
    assert breaker.due_at is None
    breaker.probed(GOOD, 5.2)
    assert (breaker.state, breaker.view.usable, breaker.view.path, breaker.due_at) == (
        State.CLOSED,
        True,
        "shm",
        None,
    )


def test_a_first_canary_that_fails_opens_the_pair_and_says_why() -> None:
    breaker = Breaker(SETTINGS, ("tcp",), 0.0)
    breaker.begin()
    breaker.probed(BROKEN, 1.0)
    assert (breaker.state, breaker.due_at) == (State.OPEN, 1.5)
    assert breaker.view.reason == "open after transfer_failed (no route)"
    assert breaker.tried


def test_a_failed_transfer_takes_the_pair_out_of_use_until_a_canary_has_spoken() -> None:
    breaker = proved()
    breaker.transferred(BROKEN, 1.0)
    assert (breaker.state, breaker.view.usable, breaker.due_at) == (State.DOUBTED, False, 1.0)
    assert breaker.view.reason == "in doubt after transfer_failed (no route)"
    breaker.begin()
    breaker.probed(GOOD, 1.01)
    assert (breaker.state, breaker.view.usable, len(breaker.failures)) == (State.CLOSED, True, 1)
    breaker.transferred(BROKEN, 2.0)
    breaker.begin()
    breaker.probed(BROKEN, 4.0)
    assert (breaker.state, breaker.due_at) == (State.OPEN, 4.5)


def test_a_path_that_carries_canaries_and_loses_transfers_is_opened_by_counting() -> None:
    breaker = proved()
    fail(breaker, 1.0)
    fail(breaker, 2.0)
    assert breaker.view.usable
    fail(breaker, 3.0)
    assert (breaker.state, breaker.view.usable, breaker.due_at) == (State.OPEN, False, 3.5)


def test_failures_that_come_together_count_all() -> None:
    breaker = proved()
    for _ in range(3):
        breaker.transferred(BROKEN, 1.0)
    breaker.begin()
    breaker.probed(GOOD, 1.1)
    assert breaker.state is State.OPEN


def test_failures_that_are_long_past_do_not_count() -> None:
    breaker = proved()
    for now in (1.0, 2.0, 11.5, 21.6):
        fail(breaker, now)
    assert breaker.state is State.CLOSED


def test_a_success_forgives_a_failure() -> None:
    breaker = proved()
    for _ in range(20):
        fail(breaker, 1.0)
        breaker.transferred(GOOD, 1.0)
    fail(breaker, 1.0)
    fail(breaker, 1.0)
    assert breaker.state is State.CLOSED


def test_a_transfer_over_the_path_that_carries_changes_nothing() -> None:
    breaker = proved()
    before = breaker.state, breaker.due_at, breaker.view, tuple(breaker.failures)
    assert breaker.carries("shm")
    breaker.transferred(GOOD, 5.0)
    assert (breaker.state, breaker.due_at, breaker.view, tuple(breaker.failures)) == before
    assert not breaker.carries("tcp")
    breaker.transferred(BROKEN, 6.0)
    assert not breaker.carries("shm"), "it is in doubt"


def test_only_what_speaks_against_the_path_counts() -> None:
    assert set(KINDS) >= FAULTS
    for code in KINDS:
        breaker = proved()
        breaker.transferred(Outcome("shm", code, "…"), 1.0)
        assert breaker.state is (State.DOUBTED if code in FAULTS else State.CLOSED), code


def test_a_half_open_pair_is_decided_by_its_canary_alone() -> None:
    breaker = opened()
    assert breaker.due_at == 1.5
    breaker.begin()
    assert (breaker.state, breaker.view.usable) == (State.HALF_OPEN, False)
    breaker.transferred(GOOD, 1.6)
    assert not breaker.view.usable, "a transfer that began before says nothing"
    breaker.probed(GOOD, 1.7)
    assert (breaker.state, breaker.view.usable) == (State.CLOSED, True)


def test_the_back_off_doubles_up_to_its_bound_and_begins_anew_after_a_good_while() -> None:
    breaker, now, waits = opened(), 1.0, []
    for _ in range(6):
        assert breaker.due_at is not None
        waits.append(breaker.due_at - now)
        now = breaker.due_at
        breaker.begin()
        breaker.probed(BROKEN, now)
    assert waits == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    breaker.begin()
    breaker.probed(GOOD, now)
    fail(breaker, now + 1.0, canary=BROKEN)
    assert breaker.due_at == now + 1.0 + 4.0, "it opened again soon after it had closed"
    breaker.begin()
    breaker.probed(GOOD, now + 5.0)
    fail(breaker, now + 30.0, canary=BROKEN)
    assert breaker.due_at == now + 30.5


def test_a_pair_that_lost_its_better_path_carries_on_and_looks_for_it() -> None:
    breaker = proved()
    breaker.transferred(FALLBACK, 1.0)
    assert (breaker.view.usable, breaker.view.path, breaker.due_at) == (True, "tcp", 1.5)
    breaker.begin()
    assert (breaker.state, breaker.view.usable) == (State.CLOSED, True)
    breaker.probed(FALLBACK, 1.6)
    assert breaker.due_at == 2.6
    breaker.begin()
    breaker.probed(GOOD, 2.7)
    assert breaker.view.path == "shm"
    assert breaker.due_at is None


def test_a_transfer_that_fails_while_a_better_path_is_looked_for_waits_for_that_canary() -> None:
    breaker = proved()
    breaker.transferred(FALLBACK, 1.0)
    breaker.begin()
    breaker.transferred(BROKEN, 1.6)
    assert (breaker.state, breaker.due_at) == (State.DOUBTED, None)
    breaker.probed(FALLBACK, 1.7)
    assert (breaker.state, breaker.view.usable, breaker.view.path) == (State.CLOSED, True, "tcp")


def test_a_path_that_never_carried_is_not_looked_for() -> None:
    breaker = Breaker(SETTINGS, ("shm", "tcp"), 0.0)
    breaker.begin()
    breaker.probed(FALLBACK, 0.1)
    assert (breaker.view.path, breaker.due_at) == ("tcp", None)


OUTCOMES = st.sampled_from([GOOD, FALLBACK, BROKEN, Outcome("shm", "kv_corrupt", "…"), Outcome("", "kv_gone", "…")])
EVENTS = st.lists(st.tuples(st.sampled_from(["pass", "canary", "transfer"]), st.floats(0.0, 5.0), OUTCOMES))


@given(EVENTS)
def test_whatever_happens_it_stays_bounded_and_is_never_stuck(events: list[tuple[str, float, Outcome]]) -> None:
    breaker, now = Breaker(SETTINGS, ("shm", "tcp"), 0.0), 0.0
    for kind, elapsed, outcome in events:
        now += elapsed
        if kind == "canary":
            if breaker.probing:
                breaker.probed(outcome, now)
            elif breaker.due_at is not None and breaker.due_at <= now:
                breaker.begin()
        elif kind == "transfer":
            breaker.transferred(outcome, now)
        check(breaker, now)
    heal(breaker, now, lambda: GOOD)
    assert breaker.state is State.CLOSED
    assert breaker.view.usable


def check(breaker: Breaker, now: float) -> None:
    assert len(breaker.failures) <= SETTINGS.failures_max
    assert breaker.view.usable == (breaker.state is State.CLOSED)
    assert not (breaker.probing and breaker.due_at is not None), "a second canary is due while one is under way"
    if breaker.state is State.HALF_OPEN:
        assert breaker.probing
    if not breaker.view.usable and not breaker.probing:
        assert breaker.due_at is not None, "no canary will ever close it"
    if breaker.due_at is not None:
        assert breaker.due_at <= now + SETTINGS.backoff_max_s


def heal(breaker: Breaker, now: float, outcome: Callable[[], Outcome]) -> None:
    """Do what is due until nothing is."""
    for _ in range(4):
        if breaker.due_at is not None:
            now = max(now, breaker.due_at)
            breaker.begin()
        if breaker.probing:
            breaker.probed(outcome(), now)
