"""Schedules, trends, speeds and metrics that the scaling decision is made of."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.autoscale import PoolLoad, PoolScaling, ServiceLoad
from control_plane.autoscale.assignment import Share, assign_workers
from control_plane.autoscale.coupling import RolePool, rate_in_all
from control_plane.autoscale.cron import parse
from control_plane.autoscale.history import Recommended, stabilised
from control_plane.autoscale.learning import WARM_UP_S, Measured, WorkerSample
from control_plane.autoscale.required_replicas import required_for_kv
from control_plane.autoscale.roles import Scalable
from control_plane.autoscale.traffic import Mean, Traffic, Trend
from tandem.core.errors import TandemError
from tests.worlds.autoscale_cases import SPEEDS, scaled

# ---- schedules ----

ANY: Final = range(100)
CRONS: Final = {
    # Minutes, hours, days, months, weekdays of which 0 is Sunday, and whether day or weekday suffices.
    "*/15 * * * *": (range(0, 60, 15), ANY, ANY, ANY, ANY, False),
    "0 8 * * 1-5": ((0,), (8,), ANY, ANY, range(1, 6), False),
    "30 6,18 * * *": ((30,), (6, 18), ANY, ANY, ANY, False),
    "0 0 1 * *": ((0,), (0,), (1,), ANY, ANY, False),
    "5 4 13 * 5": ((5,), (4,), (13,), ANY, (5,), True),
    "5 4 */2 * 5": ((5,), (4,), range(1, 32, 2), ANY, (5,), False),
    "0 9 * jan-mar mon": ((0,), (9,), ANY, range(1, 4), (1,), False),
    "10-20/5 3 * * 7": ((10, 15, 20), (3,), ANY, ANY, (0,), False),
    "10/20 3 * * SUN,sat": ((10, 30, 50), (3,), ANY, ANY, (0, 6), False),
}


def starts_at(text: str, at: datetime) -> bool:
    """Plainly by the fields, as a second opinion."""
    minutes, hours, days, months, weekdays, either = CRONS[text]
    in_month, in_week = at.day in days, at.isoweekday() % 7 in weekdays
    fits = in_month or in_week if either else in_month and in_week
    return at.minute in minutes and at.hour in hours and at.month in months and fits


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(CRONS)), st.integers(1_700_000_000, 1_800_000_000), st.integers(1, 3000))
def test_the_last_start_is_the_one_found_by_looking_at_every_minute(text: str, now: int, minutes: int) -> None:
    found = parse(text).last_start(now, minutes * 60)
    at = datetime.fromtimestamp(now - now % 60, UTC)
    expected = None
    while at.timestamp() > now - minutes * 60:
        if starts_at(text, at):
            expected = at.timestamp()
            break
        at -= timedelta(minutes=1)
    assert found == expected


def utc(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> float:
    return datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("early_s", "found"), [(0.0, True), (-0.25, False), (0.25, True), (59.75, True), (60.0, False)]
)
def test_a_window_is_open_from_its_start_until_just_before_its_end(early_s: float, found: bool) -> None:
    start = utc(2026, 11, 27, 8)
    assert parse("0 8 * * *").last_start(start + early_s, 60.0) == (start if found else None)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("0 0 L * *", utc(2026, 10, 31)),
        ("0 0 LW * *", utc(2026, 10, 30)),
        ("0 0 * * 5L", utc(2026, 10, 30)),
        ("0 0 * * MON#2", utc(2026, 11, 9)),
        ("0 0 29 2 *", utc(2024, 2, 29)),
        ("0 0 29 2 */7", utc(2004, 2, 29)),
    ],
)
def test_last_days_and_numbered_weekdays_are_found_however_long_ago(text: str, start: float) -> None:
    now = utc(2026, 11, 26)
    assert parse(text).last_start(now, now) == start
    assert parse(text).last_start(now, now - start) is None


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 2,4,jun *", "0 0 */31 * MON#5"])
def test_a_schedule_that_never_starts_is_refused(text: str) -> None:
    """By the calendar, not by a search without end for the day."""
    with pytest.raises(TandemError, match="there is no day on which it starts") as raised:
        parse(text)
    assert raised.value.code == "bad_setting"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("60 * * * *", "the minute '60'"),
        ("* 24 * * *", "the hour '24'"),
        ("* * 0 * *", "the day '0'"),
        ("* * * 13 *", "the month '13'"),
        ("* * * * mo", "the weekday 'mo'"),
        ("5-1 * * * *", "the minute '5-1'"),
        ("*/0 * * * *", "the minute '*/0'"),
        ("1- * * * *", "the minute '1-'"),
        ("* * * *", "has 4 fields"),
        ("0 * * * * *", "has 6 fields"),
        ("+5 * * * *", "the minute '+5'"),
        ("60 24 * * *", "the minute '60'"),
    ],
)
def test_a_bad_field_is_named(text: str, sentence: str) -> None:
    with pytest.raises(TandemError, match=re.escape(sentence)) as raised:
        parse(text)
    assert raised.value.code == "bad_setting"


# ---- traffic ----


def test_a_steady_rate_is_learned_and_a_rising_one_foreseen() -> None:
    trend = Trend()
    for _ in range(200):
        trend = trend.observe(1000.0, 5.0)
    assert trend.level == pytest.approx(1000)
    assert trend.ahead(240) == pytest.approx(1000)
    for look in range(120):
        trend = trend.observe(1000 + 10 * look, 5.0)
    assert trend.level == pytest.approx(2190, rel=0.03)
    assert trend.ahead(100) == pytest.approx(2390, rel=0.05)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.1, 600)), max_size=30), st.floats(0, 3600))
def test_a_forecast_is_bounded(looks: list[tuple[float, float]], seconds: float) -> None:
    trend = Trend()
    for rate, since_s in looks:
        trend = trend.observe(rate, since_s)
    level = trend.level or 0.0
    assert 0 <= level <= trend.ahead(seconds) <= 2 * level
    most = max((rate for rate, _ in looks), default=0.0)
    assert level <= 3 * most + 1e-6


def test_looks_without_all_routers_are_made_up_for_by_the_next_whole_one() -> None:
    def load(requests: int, *, complete: bool = True) -> ServiceLoad:
        return ServiceLoad(arrived_requests=requests, arrived_prompt_tokens=100 * requests, complete=complete)

    traffic = Traffic().observe(load(0), 0.0).observe(load(10), 10.0)
    assert traffic.tokens_per_s == pytest.approx(100)
    missing = traffic.observe(load(12, complete=False), 15.0)
    assert missing == traffic
    assert missing.observe(load(20), 20.0).tokens_per_s == pytest.approx(100)
    assert missing.observe(load(20), 20.0).prompt == pytest.approx(100)


# ---- speeds ----


def warm(running: int, step_s: float, tokens_per_s: float = 6000.0) -> WorkerSample:
    return WorkerSample("pool", 300.0, running, step_s, tokens_per_s)


def test_cold_workers_teach_nothing() -> None:
    measured = Measured()
    for look in range(20):
        measured = measured.learn([warm(10 + look, 0.014 + 0.0005 * (10 + look))], 5.0 * look)
    before = measured.speed
    cold = [WorkerSample("pool", age, 30, 0.5, 100.0) for age in (0.0, 10.0, 59.0)]
    for look in range(20, 40):
        measured = measured.learn(cold, 5.0 * look)
    after = measured.speed
    assert before.decode is not None
    assert after.decode is not None
    assert after.prefill_token_s == before.prefill_token_s == pytest.approx(1 / 6000)
    assert after.decode.sequences_within(0.04) == pytest.approx(before.decode.sequences_within(0.04))
    assert after.decode.sequences_within(0.04) == pytest.approx(52, rel=0.01)


def test_without_spread_all_of_a_step_is_taken_to_be_its_sequences() -> None:
    measured = Measured()
    for look in range(10):
        measured = measured.learn([warm(10, 0.02)], 5.0 * look)
    fit = measured.speed.decode
    assert fit is not None
    assert (fit.base_s, fit.seen) == (0.0, 10)
    assert fit.sequence_s == pytest.approx(0.002)


@given(st.lists(st.tuples(st.integers(1, 200), st.floats(0.001, 1)), min_size=1, max_size=60), st.floats(0.005, 1))
def test_whatever_was_measured_a_worker_takes_a_bounded_number(steps: list[tuple[int, float]], tpot_s: float) -> None:
    measured = Measured()
    for look, (running, step_s) in enumerate(steps):
        measured = measured.learn([warm(running, step_s)], 5.0 * look)
    fit = measured.speed.decode
    if fit is None:
        assert len(steps) < 6
        return
    assert 1 <= fit.sequences_within(tpot_s) <= 4 * max(running for running, _ in steps) + 16
    assert fit.sequences_within(tpot_s) <= fit.sequences_within(2 * tpot_s)


def test_short_steps_do_not_make_prefill_look_slow() -> None:
    measured = Measured().learn([warm(0, 0.0, 8000.0)], 0.0)
    for look in range(1, 13):
        measured = measured.learn([warm(0, 0.0, 500.0)], 5.0 * look)
    slow = measured.speed.prefill_token_s
    assert slow is not None
    assert 1 / slow > 4000
    fitted = WorkerSample("pool", 300.0, prefill_token_s=1e-4, prefill_position_s=1e-8)
    speed = measured.learn([fitted], 100.0).speed
    assert speed.prompt_s(10_000) == pytest.approx(1.0 + 0.5)


def test_of_cold_starts_the_second_slowest_counts() -> None:
    measured = Measured()
    for seconds in (80.0, 90.0, 700.0, 85.0, 86_400.0):
        measured = measured.started(seconds)
    assert measured.speed.cold_start_s == 90.0


# ---- numbers ----


@given(st.lists(st.tuples(st.floats(0.5, 100), st.integers(0, 30)), min_size=1, max_size=40))
def test_the_most_of_the_window_is_what_a_plain_list_says(steps: list[tuple[float, int]]) -> None:
    past: Recommended = ()
    now, told = 0.0, list[tuple[float, int]]()
    for since_s, replicas in steps:
        now += since_s
        told.append((now, replicas))
        most, past = stabilised(past, replicas, 60.0, now)
        assert most == max(count for at, count in told if at > now - 60 or at == now)
        assert len(past) <= len({count for _, count in past})


@given(st.integers(0, 40), st.floats(0, 60), st.integers(0, 40))
def test_the_metric_never_asks_for_anything_else(replicas: int, load: float, wanted: int) -> None:
    value = PoolScaling(replicas, load, 0, ()).metric(wanted)
    assert replicas - 1 < value <= replicas or value == replicas == 0


@given(st.floats(0, 200), st.lists(st.tuples(st.floats(0.2, 4), st.integers(0, 5), st.integers(5, 20)), min_size=2))
def test_pools_of_a_role_share_what_it_needs(need: float, sizes: list[tuple[float, int, int]]) -> None:
    shares = [Share(str(number), worth, least, most) for number, (worth, least, most) in enumerate(sizes)]
    allotted = assign_workers(need, shares)
    carried = sum(allotted[share.name] * share.worth for share in shares)
    room = sum(share.most * share.worth for share in shares)
    assert all(share.least <= allotted[share.name] <= share.most for share in shares)
    assert carried >= min(need, room) - 1e-6


def test_who_starts_for_too_long_is_not_counted_on() -> None:
    load = PoolLoad(wanted=5, ready=1, starting_s=(10.0, 100.0, 900.0))
    role = RolePool(load, decided=6, cold_start_s=120.0, rate=2.0)
    # Ready is one; within half a minute the one that has started for 100 s; within two all but the one that is stuck,
    # and then also the one that has no pod yet and the one that is asked for now.
    assert role.within(0) == 2
    assert role.within(30) == 4
    assert role.within(120) == 10


def test_kv_memory_is_to_be_three_quarters_full() -> None:
    """Brim-full pools make sequences wait, and preempt them."""
    assert required_for_kv(3.0, 1.0) == pytest.approx(4.0)
    assert required_for_kv(3.0, 1.5) == pytest.approx(6.0)


def test_a_role_carries_what_its_workers_do_without_the_spares() -> None:
    pools = [
        RolePool(PoolLoad(), decided=6, cold_start_s=120.0, rate=2.0, spare=2),
        RolePool(PoolLoad(), decided=1, cold_start_s=120.0, rate=5.0, spare=3),
    ]
    assert rate_in_all(pools) == 8.0


def test_a_pools_spares_carry_nothing_and_are_within_its_limits() -> None:
    pool = Scalable(scaled("a", "decode", 3, 8, spare=2), PoolLoad(wanted=5, ready=5), SPEEDS["decode"], floor=3)
    assert (pool.carrying, pool.most) == (3, 8)
    assert [pool.replicas(load) for load in (0.0, 0.5, 1.0, 1.1, 4.0, 6.5)] == [3, 3, 3, 4, 6, 8]
    share = pool.share(1.0)
    assert (share.least, share.most) == (1, 8)
    none = Scalable(scaled("a", "decode", 1, 8, spare=2), PoolLoad(wanted=1), SPEEDS["decode"], floor=1)
    assert (none.carrying, none.share(1.0).least) == (0, 0)


def test_a_line_that_would_make_no_sequences_cost_less_than_nothing_goes_through_zero() -> None:
    measured = Measured()
    for look in range(20):
        running = 10 + look
        measured = measured.learn([warm(running, 0.002 * running - 0.015)], 5.0 * look)
    fit = measured.speed.decode
    assert fit is not None
    assert fit.base_s == 0.0
    assert fit.sequence_s > 0


def test_a_worker_is_warm_from_a_moment_on() -> None:
    for ready_for_s, learned in ((WARM_UP_S - 0.1, False), (WARM_UP_S, True)):
        sample = WorkerSample("pool", ready_for_s, prefill_tokens_per_s=1000.0)
        assert (Measured().learn([sample], 0.0).speed.prefill_token_s is not None) == learned


def test_of_what_requests_were_like_an_hour_ago_little_is_left() -> None:
    mean = Mean().observe(100_000, 10, 5.0).observe(1000, 10, 7200.0)
    assert mean.value == pytest.approx(100.0, rel=0.01)
    assert Mean().value is None


def test_without_traffic_nothing_is_made_up() -> None:
    """Answers of one token, or workers for tokens that nobody sent, would come of it."""
    idle = ServiceLoad()
    traffic = Traffic().observe(idle, 0.0).observe(idle, 5.0).observe(idle, 10.0)
    assert (traffic.tokens_per_s, traffic.prompt, traffic.answer) == (0.0, None, None)
    assert Traffic().tokens_per_s == 0.0
    assert traffic.observe(replace(idle, finished_requests=3), 15.0).answer is None, "they said nothing"
    generating = traffic.observe(replace(idle, output_tokens=400), 15.0)
    assert generating.answer is None, "none has ended"
    finished = generating.observe(replace(idle, output_tokens=400, finished_requests=1), 20.0)
    assert finished.answer == pytest.approx(400.0, rel=0.05)


def test_a_pool_that_nobody_tells_of_has_nothing() -> None:
    assert PoolLoad() == PoolLoad(wanted=0, ready=0)
