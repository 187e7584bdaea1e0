"""What a policy makes of the placements before: how fast prompts come, what is reused, what usually runs beside them,
and how much each cache has taken up."""

from math import e

import pytest

from router.placement import Breakdown, Candidate, Placement
from router.placement.policies.traffic import Traffic

SEEN_S = 200.0
"""Ten of the windows that a rate is taken over."""


def sent(worker: str = "w1", computed: int = 400, cached: int = 100, **more: float) -> Placement:
    return Placement("local", worker, None, computed, cached, (), (), new_tokens=computed, **more)  # type: ignore[arg-type]


def expected(queue_ms: float, fetch_ms: float, prefill_ms: float) -> Placement:
    """One of these times until its first token."""
    cost = Breakdown(queue_ms, prefill_ms, 0.0, 500.0, 0.0, fetch_ms)
    return Placement("local", "w1", None, 500, 0, ((Candidate("w1"), cost),), ())


def test_prompts_are_counted_per_second_and_forgotten_when_they_cease() -> None:
    """A rate that is thought too high keeps prompts from workers for those that never come."""
    traffic = Traffic()
    assert traffic.trend(5.0).arrivals_per_ms == 0.0
    for number in range(round(20 * SEEN_S)):
        traffic.placed(sent(), 50.0 + number / 20)
    now = 50.0 + SEEN_S
    assert traffic.trend(now).arrivals_per_ms == pytest.approx(0.02, rel=0.01)
    assert traffic.trend(now + 20.0).arrivals_per_ms == pytest.approx(0.02 / e, rel=0.01)


def test_the_first_prompts_of_a_router_already_tell_how_fast_they_come() -> None:
    traffic = Traffic()
    for number in range(100):
        traffic.placed(sent(), 7.0 + number / 20)
    assert traffic.trend(12.0).arrivals_per_ms == pytest.approx(0.02, rel=0.05)


def test_the_very_first_prompt_is_no_flood() -> None:
    """It is taken for the only one of two seconds, at whatever moment of these it is looked at."""
    traffic = Traffic()
    traffic.placed(sent(), 7.0)
    assert traffic.trend(7.0).arrivals_per_ms == pytest.approx(5e-4)
    assert traffic.trend(8.0).arrivals_per_ms == pytest.approx(5e-4, rel=0.1)


def test_what_is_reused_is_a_share_of_all_prompt_tokens_of_late() -> None:
    traffic = Traffic()
    traffic.placed(sent(computed=300, cached=100), 0.0)
    assert traffic.trend(0.0).reuse == pytest.approx(0.01 * 0.25)
    for number in range(1_000):
        traffic.placed(sent(computed=300, cached=100), float(number))
    assert traffic.trend(1e3).reuse == pytest.approx(0.25, rel=0.01)


@pytest.mark.parametrize(
    ("queue_ms", "fetch_ms", "prefill_ms", "slowdown"),
    [(3_000.0, 500.0, 1_500.0, 2.5), (1_990.0, 0.0, 10.0, 2.0), (0.0, 0.0, 10.0, 0.01)],
)
def test_first_tokens_are_slow_by_what_they_would_take_alone_or_a_second(
    queue_ms: float, fetch_ms: float, prefill_ms: float, slowdown: float
) -> None:
    traffic = Traffic()
    traffic.placed(expected(queue_ms, fetch_ms, prefill_ms), 0.0)
    assert traffic.trend(0.0).slowdown == pytest.approx(0.01 * slowdown)
    for number in range(1_000):
        traffic.placed(expected(queue_ms, fetch_ms, prefill_ms), float(number))
    assert traffic.trend(1e3).slowdown == pytest.approx(slowdown, rel=0.01)


def test_the_first_prompts_after_a_start_tell_what_usually_runs_beside_them() -> None:
    """While that is thought too little, blocks that others would use again are pushed out as if it cost no stream."""
    traffic = Traffic()
    traffic.placed(sent(turned=0.01, beside=40.0), 0.0)
    assert traffic.trend(0.0).beside == pytest.approx(40.0)
    traffic.placed(sent(turned=0.01, beside=20.0), 0.0)
    assert traffic.trend(0.0).beside == pytest.approx(30.0)
    traffic.placed(sent(turned=0.02, beside=10.0), 0.0)
    assert traffic.trend(0.0).beside == pytest.approx(20.0), "by what each adds to the caches"


def test_what_ran_beside_prompts_is_forgotten_as_the_caches_are_turned_over() -> None:
    traffic = Traffic()
    for _ in range(300):
        traffic.placed(sent(turned=0.01, beside=40.0), 0.0)
    for _ in range(100):
        traffic.placed(sent(turned=0.01, beside=0.0), 0.0)
    assert traffic.trend(0.0).beside == pytest.approx(40.0 / e, rel=0.02)


def test_what_is_in_the_caches_already_says_nothing_of_what_runs_beside() -> None:
    traffic = Traffic()
    traffic.placed(sent(turned=0.0, beside=40.0), 0.0)
    assert traffic.trend(0.0).beside == 0.0


def test_caches_are_compared_by_what_they_have_taken_up_of_late() -> None:
    traffic = Traffic()
    assert traffic.trend(0.0).mean_fill == 0.0
    traffic.placed(sent("w1", 1_000), 0.0)
    traffic.placed(sent("w2", 1_000), 0.0)
    # Every worker has had 256 more on average: what was there counts e times less.
    for number in range(512):
        traffic.placed(sent("w1" if number % 2 else "w2", 0), 0.0)
    traffic.placed(sent("w2", 1_000), 0.0)
    trend = traffic.trend(0.0)
    assert trend.fills["w2"] / trend.fills["w1"] == pytest.approx(1.0 + e, rel=0.02)
    assert trend.mean_fill == pytest.approx((trend.fills["w1"] + trend.fills["w2"]) / 2)


def test_the_successor_of_a_worker_begins_with_an_empty_cache() -> None:
    traffic = Traffic()
    for worker in ("w1", "w2", "w1"):
        traffic.placed(sent(worker), 0.0)
    traffic.forget("w1")
    traffic.forget("never seen")
    trend = traffic.trend(0.0)
    assert list(trend.fills) == ["w2"]
    assert trend.mean_fill == pytest.approx(trend.fills["w2"])


def test_very_many_placements_leave_caches_comparable() -> None:
    """Some days of a busy router."""
    traffic = Traffic()
    for number in range(24_000):
        traffic.placed(sent("w1" if number % 4 else "w2"), 0.0)
    trend = traffic.trend(0.0)
    assert trend.fills["w1"] / trend.fills["w2"] == pytest.approx(3.0, rel=0.02)
    assert trend.mean_fill == pytest.approx((trend.fills["w1"] + trend.fills["w2"]) / 2)
    assert trend.mean_fill < 1e15
