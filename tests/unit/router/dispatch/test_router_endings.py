"""What a client is told when its request ends in an error: the code, why, and when to try again."""

import pytest

from router.dispatch import errors as endings
from router.dispatch.admission import Admission
from router.placement import Unplaced
from router.settings import AdmissionSettings


@pytest.mark.parametrize(("late_s", "retry_after_s"), [(-5.0, 1.0), (0.5, 1.0), (12.0, 12.0), (31.0, 30.0)])
def test_who_cannot_be_answered_in_time_comes_back_when_that_may_be_over_and_within_half_a_minute(
    late_s: float, retry_after_s: float
) -> None:
    error = endings.not_in_time("its turn is far", late_s)
    assert (error.code, error.retry_after_s) == ("queue_full", retry_after_s)
    assert "its turn is far" in error.message


@pytest.mark.parametrize(("waiting", "retry_after_s"), [(0, 1.0), (20, 1.0), (100, 5.0), (599, 29.95), (700, 30.0)])
def test_before_a_pace_is_seen_a_line_is_taken_to_move_twenty_times_a_second(
    waiting: int, retry_after_s: float
) -> None:
    admission = Admission(AdmissionSettings(requests_max=2000, queued_max=2000))
    for key in range(waiting):
        admission.arrive(key, "m", 0, False)
    assert admission.retry_after_s("m") == pytest.approx(retry_after_s)


def test_the_pace_of_a_line_follows_its_ends_by_a_tenth() -> None:
    """Nine ends a second apart, then one after eleven seconds: the pace goes from 1 s to 2 s."""
    admission = Admission(AdmissionSettings())
    for key in range(40):
        admission.arrive(key, "m", 0, key < 20)
    for key in range(11):
        admission.ended(key, 100.0 + key)
    assert admission.wait("m", 1, 0.0, 110.0).mean_s == pytest.approx(1.0)
    admission.ended(11, 121.0)
    assert admission.wait("m", 1, 0.0, 121.0).mean_s == pytest.approx(2.0)


def test_the_line_of_another_model_is_none_of_its_business() -> None:
    admission = Admission(AdmissionSettings(requests_max=2000, queued_max=2000))
    for key in range(500):
        admission.arrive(key, "m", 0, False)
    assert admission.retry_after_s("other") == 1.0
    assert (admission.queued("m"), admission.queued("other")) == (500, 0)
    assert admission.models_waiting() == ("m",)


def test_who_waited_in_vain_is_told_for_how_long_and_what_was_in_the_way() -> None:
    obstacle = Unplaced("no_workers", ("d1 drains", "d2 is full"))
    error = endings.no_worker_came(10.04, obstacle, 3.0)
    assert (error.code, error.retry_after_s) == ("no_workers", 3.0)
    assert error.message == "no worker could take the request within 10.0 s: d1 drains; d2 is full"
    assert endings.no_worker_came(10.0, None, 3.0).code == "queue_full"
    assert endings.never_fits(obstacle).code == "context_length_exceeded"


def test_who_is_given_up_is_told_the_last_failure_and_how_often_it_was_tried() -> None:
    error = endings.gave_up("engine_failed", 4, "out of luck")
    assert (error.code, error.message) == ("engine_failed", "gave up after 4 attempts; the last one: out of luck")
    assert endings.too_many_retries("engine_failed", "out of luck").code == "engine_failed"
    assert endings.too_late(600.0, 12).message.endswith("within 600 s; 12 tokens had been generated")
