"""What is known of holders that leave pulls unanswered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.unanswered import UnansweredPulls


def test_pulls_that_are_called_off_add_up_until_the_next_one_finds_out() -> None:
    unanswered = UnansweredPulls()
    unanswered.called_off("tcp://a", 0.0, 1.4)
    assert unanswered.bound_s("tcp://a", 2.0) == pytest.approx(0.6)
    assert unanswered.bound_s("tcp://b", 2.0) == 2.0


def test_what_several_pulls_waited_at_once_counts_once() -> None:
    unanswered = UnansweredPulls()
    unanswered.called_off("tcp://a", 0.0, 0.4)
    unanswered.called_off("tcp://a", 0.1, 0.5)
    assert unanswered.bound_s("tcp://a", 2.0) == pytest.approx(1.5)


def test_whoever_failed_is_spared_for_a_while_and_then_asked_briefly() -> None:
    unanswered = UnansweredPulls()
    unanswered.failed("tcp://a", 2.0, 10.0)
    assert unanswered.spared("tcp://a", 11.0) == "tcp://a did not answer 1.0 s ago"
    assert unanswered.spared("tcp://a", 15.0) is None
    assert unanswered.spared("tcp://b", 11.0) is None
    assert unanswered.bound_s("tcp://a", 2.0) == pytest.approx(0.5)


def test_whoever_answers_is_trusted_again() -> None:
    unanswered = UnansweredPulls()
    unanswered.failed("tcp://a", 2.0, 10.0)
    unanswered.answered("tcp://a")
    assert unanswered.spared("tcp://a", 10.1) is None
    assert unanswered.bound_s("tcp://a", 2.0) == 2.0


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 3)), max_size=20), st.floats(0.1, 30))
def test_a_pull_always_has_a_quarter_of_its_bound_and_never_more_than_all(
    pulls: list[tuple[float, float]], bound_s: float
) -> None:
    unanswered = UnansweredPulls()
    for began, seconds in sorted(pulls, key=sum):
        unanswered.called_off("tcp://a", began, began + seconds)
    assert bound_s / 4 <= unanswered.bound_s("tcp://a", bound_s) <= bound_s


def test_addresses_that_never_answer_again_are_forgotten_in_the_end() -> None:
    unanswered = UnansweredPulls()
    for number in range(3000):
        unanswered.failed(f"tcp://{number}", 2.0, 0.0)
    assert unanswered.spared("tcp://0", 0.1) is None
    assert unanswered.spared("tcp://2999", 0.1) is not None
