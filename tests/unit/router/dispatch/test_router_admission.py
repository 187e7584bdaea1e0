"""Admission decisions: who goes, who waits, who is refused and why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.admission import Admission, Admitted, FirstToken, Queued, QueueWait, Refused, refusal
from router.dispatch.retry_budget import RetryBudget, backoff_s
from router.dispatch.retry_state import RetryState
from router.settings import AdmissionSettings, RetrySettings


def test_with_room_and_nobody_waiting_a_request_goes_at_once() -> None:
    admission = Admission(AdmissionSettings())
    assert admission.arrive(1, "m", 0, True) == Admitted()
    assert admission.held == 1
    admission.ended(1, 0.0)
    assert admission.held == 0


def test_without_room_requests_wait_in_order_of_priority_then_arrival() -> None:
    admission = Admission(AdmissionSettings())
    assert admission.arrive(1, "m", 0, False) == Queued(0)
    assert admission.arrive(2, "m", 0, False) == Queued(1)
    assert admission.arrive(3, "m", 5, False) == Queued(0)
    order = []
    while (key := admission.next("m")) is not None:
        admission.leave_line(key)
        order.append(key)
    assert order == [3, 1, 2]
    assert admission.held == 3


def test_a_newcomer_never_overtakes_its_own_priority_but_may_overtake_lower_ones() -> None:
    admission = Admission(AdmissionSettings())
    admission.arrive(1, "m", 1, False)
    assert isinstance(admission.arrive(2, "m", 1, True), Queued)
    assert isinstance(admission.arrive(3, "m", 2, True), Admitted)
    assert isinstance(admission.arrive(4, "other", 0, True), Admitted)


def test_an_admitted_request_that_found_no_worker_waits_at_the_front_of_its_priority() -> None:
    admission = Admission(AdmissionSettings())
    admission.arrive(1, "m", 0, True)
    admission.arrive(2, "m", 0, False)
    admission.wait_again(1, 0)
    assert admission.next("m") == 1


@pytest.mark.parametrize("priority", [-1, 0, 1])
def test_who_waits_again_does_so_after_those_of_higher_priority_and_before_all_others(priority: int) -> None:
    admission, order = Admission(AdmissionSettings()), []
    admission.arrive(1, "m", priority, True)
    for later, other in ((2, priority - 1), (3, priority), (4, priority + 1)):
        admission.arrive(later, "m", other, False)
    admission.wait_again(1, priority)
    while (key := admission.next("m")) is not None:
        admission.leave_line(key)
        order.append(key)
    assert order == [4, 1, 3, 2]


def test_a_line_that_is_longer_than_its_bound_is_found() -> None:
    """Simulations ask after every step: what this does not find they do not."""
    admission = Admission(AdmissionSettings(queued_max=2))
    for key in range(2):
        admission.arrive(key, "m", 0, False)
    admission.check()
    admission._settings = AdmissionSettings(queued_max=1)
    with pytest.raises(AssertionError, match="2 requests for m are queued"):
        admission.check()


def test_who_waits_again_was_admitted_before_and_passes_no_bound_of_the_line() -> None:
    admission = Admission(AdmissionSettings(queued_max=1))
    admission.arrive(1, "m", 0, True)
    admission.arrive(2, "m", 0, False)
    admission.wait_again(1, 0)
    admission.check()


def test_bounds_and_draining_refuse_with_reason_and_retry_after() -> None:
    admission = Admission(AdmissionSettings(requests_max=3, queued_max=2))
    for key in (1, 2):
        admission.arrive(key, "m", 0, False)
    full = admission.arrive(3, "m", 0, True)
    assert isinstance(full, Refused)
    assert full.code == "queue_full"
    assert "2 requests for m wait" in full.reason
    assert 1.0 <= full.retry_after_s <= 30.0
    assert isinstance(admission.arrive(4, "n", 0, True), Admitted)
    over = admission.arrive(5, "n", 0, True)
    assert isinstance(over, Refused)
    assert "holds 3 requests" in over.reason
    admission.drain()
    drained = admission.arrive(6, "n", 0, True)
    assert isinstance(drained, Refused)
    assert drained.code == "draining"


@given(st.lists(st.tuples(st.sampled_from(["arrive", "serve", "leave"]), st.integers(0, 3)), max_size=80))
def test_nobody_is_lost_or_served_twice_and_lines_are_in_order(steps: list[tuple[str, int]]) -> None:
    admission = Admission(AdmissionSettings())
    waiting: dict[int, int] = {}
    running: list[int] = []
    for key, (step, number) in enumerate(steps):
        if step == "arrive":
            decision = admission.arrive(key, "m", number, False)
            assert decision == Queued(sum(other >= number for other in waiting.values()))
            waiting[key] = number
        elif step == "serve":
            served = admission.next("m")
            best = min(waiting, key=lambda each: (-waiting[each], each), default=None)
            assert served == best
            if served is not None:
                admission.leave_line(served)
                del waiting[served]
                running.append(served)
        elif waiting and number % 2:
            gone = list(waiting)[number % len(waiting)]
            del waiting[gone]
            admission.ended(gone, float(key))
        elif running:
            admission.ended(running.pop(), float(key))
        assert admission.held == len(waiting) + len(running)
        assert admission.queued("m") == len(waiting)
        assert admission.waiting == bool(waiting)


def test_retries_are_a_share_of_traffic_with_a_burst() -> None:
    budget = RetryBudget(RetrySettings(share=0.25, burst=2))
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    for _ in range(4):
        budget.earn()
    assert [budget.spend() for _ in range(2)] == [True, False]


def test_the_first_retry_is_immediate_and_later_ones_back_off() -> None:
    settings = RetrySettings(backoff_first_s=0.1, backoff_max_s=0.3)
    assert [backoff_s(settings, fruitless) for fruitless in range(5)] == [0.0, 0.0, 0.1, 0.2, 0.3]


def test_a_calm_hour_does_not_save_up_retries_beyond_the_burst() -> None:
    """Else the first outage after it may be answered by as many retries as there was traffic."""
    budget = RetryBudget(RetrySettings(share=0.25, burst=2))
    for _ in range(4000):
        budget.earn()
    assert [budget.spend() for _ in range(3)] == [True, True, False]


def test_a_part_of_a_retry_is_none() -> None:
    budget = RetryBudget(RetrySettings(share=0.25, burst=1))
    assert budget.spend()
    for _ in range(3):
        budget.earn()
        assert not budget.spend()
    budget.earn()
    assert budget.spend()


def test_a_request_that_fails_everywhere_is_tried_as_often_as_the_settings_say() -> None:
    settings = RetrySettings(attempts_max=3, fruitless_attempts_max=100)
    trials, ends = RetryState(settings), []
    for _ in range(3):
        trials.begin()
        ends.append(trials.ended("engine_failed", "it broke", fruitful=True))
    assert ends[:2] == [None, None]
    assert ends[2] is not None
    trials.check()


def test_only_attempts_in_a_row_without_a_token_give_a_request_up() -> None:
    """A long answer that loses its worker now and then, and gets on each time, is not given up."""
    trials = RetryState(RetrySettings(attempts_max=100, fruitless_attempts_max=2))
    for fruitful in (False, True) * 5:
        trials.begin()
        assert trials.ended("engine_failed", "it broke", fruitful=fruitful) is None
    assert trials.backoff_s() == 0.0
    trials.begin()
    assert trials.ended("engine_failed", "it broke", fruitful=False) is None
    trials.begin()
    assert trials.ended("engine_failed", "it broke", fruitful=False) is not None


def test_retry_after_grows_with_the_line() -> None:
    """Clients that come back after a second each, however long the line, make it longer."""
    admission = Admission(AdmissionSettings(requests_max=100, queued_max=20))
    for key in range(60):
        admission.arrive(key, "m", 0, True)
    assert admission.retry_after_s("m") == 1.0
    for key in range(100, 120):
        admission.arrive(key, "m", 0, False)
    for key in range(60):
        admission.ended(key, 1000.0 + 0.5 * key)
    refused = admission.arrive(120, "m", 0, False)
    assert isinstance(refused, Refused)
    assert 9.0 <= refused.retry_after_s <= 11.0, "twenty wait, and two end every second"


def lined(ends: int, every_s: float, ahead: int = 10) -> Admission:
    """`ahead` stand in line for m, and so many others have ended since."""
    admission = Admission(AdmissionSettings())
    for key in range(100):
        admission.arrive(key, "m", 0, True)
    for key in range(100, 100 + ahead):
        admission.arrive(key, "m", 0, False)
    for key in range(ends):
        admission.ended(key, 50.0 + every_s * key)
    return admission


def test_a_turn_is_guessed_until_a_pace_was_seen() -> None:
    assert lined(8, 2.0).wait("m", 10, 0.3, 64.0).mean_s == pytest.approx(3.0)
    assert lined(9, 2.0).wait("m", 10, 0.3, 66.0).mean_s == pytest.approx(20.0)
    assert lined(9, 2.0).wait("other", 10, 0.3, 66.0).mean_s == pytest.approx(3.0)


def test_a_line_of_which_no_pace_was_seen_begins_to_move_when_there_is_memory() -> None:
    assert lined(8, 2.0).wait("m", 10, 0.3, 64.0, 1.5).mean_s == pytest.approx(4.5)
    assert lined(9, 2.0).wait("m", 10, 0.3, 66.0, 1.5).mean_s == pytest.approx(20.0), "a pace has seen that"
    assert lined(9, 2.0).wait("other", 10, 0.3, 66.0, 1.5).mean_s == pytest.approx(4.5)


def test_what_is_expected_of_first_tokens_follows_the_latest_in_mean_and_spread() -> None:
    first = FirstToken(1.0)
    assert first.after(1.0) == first
    first = first.after(2.0)
    assert first == (pytest.approx(1.1), pytest.approx(0.1))
    first = first.after(0.1)
    assert first == (pytest.approx(1.0), pytest.approx(0.19))
    for _ in range(200):
        first = first.after(3.0)
    assert first == (pytest.approx(3.0), pytest.approx(0.0, abs=1e-6)), "what was once is forgotten"


def test_spreads_of_the_line_and_of_first_tokens_are_those_of_independent_waits() -> None:
    # Deviations of 0.3 and 0.4 s make one of 0.5 s.
    assert FirstToken(1.0, 0.16).latest_s(QueueWait(0.6, 4)) == pytest.approx(0.6 + 1.0 + 2 * 0.5)
    assert FirstToken(1.0).latest_s(QueueWait(0.6, 4)) == pytest.approx(0.6 + 1.0 + 2 * 0.3)


def emptied() -> Admission:
    """A line that moved every 2 s until second 88, was empty from then on, and has one request again."""
    admission = lined(20, 2.0, ahead=1)
    admission.leave_line(100)
    admission.ended(30, 89.0)
    admission.arrive(200, "m", 0, False)
    return admission


def test_the_pace_of_a_line_holds_for_the_next_one_for_half_a_minute() -> None:
    assert emptied().wait("m", 1, 0.3, 118.0).mean_s == pytest.approx(2.0)
    assert emptied().wait("m", 1, 0.3, 118.1).mean_s == pytest.approx(0.3)


def test_the_pace_of_a_line_that_stands_still_holds() -> None:
    assert lined(20, 2.0, ahead=1).wait("m", 1, 0.3, 1000.0).mean_s == pytest.approx(2.0)


@pytest.mark.parametrize(("first_at", "mean_s"), [(118.0, 2.0 - 0.1), (118.1, 1.0)])
def test_ends_of_the_next_line_count_beside_a_recent_pace_and_instead_of_an_old_one(
    first_at: float, mean_s: float
) -> None:
    admission, old = emptied(), first_at > 118.0
    for key in range(31, 40 if old else 33):
        admission.ended(key, first_at + key - 31)
    assert admission.wait("m", 1, 0.3, first_at + 10).mean_s == pytest.approx(mean_s)


def test_an_old_pace_is_forgotten_by_the_first_end_of_the_next_line() -> None:
    admission = emptied()
    for key in range(31, 39):
        admission.ended(key, 118.1 + key - 31)
    assert admission.wait("m", 1, 0.3, 127.0).mean_s == pytest.approx(0.3), "seven ends are no pace"


@pytest.mark.parametrize(
    ("wait", "first", "first_within_s", "why"),
    [
        (QueueWait(0.0, 0), FirstToken(100.0), 1.0, None),
        (QueueWait(4.9, 4), FirstToken(0.0), None, None),
        (QueueWait(5.1, 4), FirstToken(0.0), None, "its turn"),
        # The more are before it, the surer is their mean.
        (QueueWait(8.0, 100), FirstToken(0.0), None, None),
        (QueueWait(8.5, 100), FirstToken(0.0), None, "its turn"),
        (QueueWait(0.4, 4), FirstToken(1.1), 2.0, None),
        (QueueWait(0.4, 4), FirstToken(1.3), 2.0, "its first token"),
        # First tokens that take 0.9 s in the mean, but 0.2 or 0.4 s more or less.
        (QueueWait(0.4, 4), FirstToken(0.9, 0.04), 2.0, None),
        (QueueWait(0.4, 4), FirstToken(0.9, 0.16), 2.0, "its first token"),
    ],
)
def test_who_is_not_almost_sure_to_be_in_time_is_refused(
    wait: QueueWait, first: FirstToken, first_within_s: float | None, why: str | None
) -> None:
    refused = refusal(wait, 10.0, first, first_within_s)
    if why is None:
        assert refused is None
    else:
        assert refused is not None
        assert refused.code == "queue_full"
        assert why in refused.reason
        assert 1.0 <= refused.retry_after_s <= 30.0


def test_who_is_refused_is_told_by_how_much_it_is_too_late() -> None:
    refused = refusal(QueueWait(20.0, 100), 10.0, FirstToken(0.0), None)
    assert refused is not None
    assert refused.retry_after_s == pytest.approx(14.0)
