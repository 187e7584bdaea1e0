"""Percentiles, objectives, reports and the capacity search say what they should of known figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.apps.bench.capacity import CapacitySearch, Trial
from tandem.apps.bench.distribution import distribution, percentile
from tandem.apps.bench.outcome import UNFINISHED, Outcome
from tandem.apps.bench.plot import tokens_per_second
from tandem.apps.bench.report import summarize
from tandem.apps.bench.slo import attainment, latency, parse_slo
from tandem.core.errors import TandemError
from tandem.core.slo import End, Latency, Slo, attained


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.floats(0, 100))
def test_percentiles_agree_with_numpy(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), rel=1e-9, abs=1e-9)


def test_no_values_have_no_distribution() -> None:
    assert distribution([]) is None


def test_mean_and_ranks() -> None:
    found = distribution([4.0, 1.0, 2.0, 3.0])
    assert found is not None
    assert (found.count, found.mean, found.p50, found.max) == (4, 2.5, 2.5, 4.0)


def good(scheduled_s: float = 0.0, first_s: float = 0.2, gaps_s: tuple[float, ...] = (0.1, 0.1)) -> Outcome:
    end_s = first_s + sum(gaps_s)
    return Outcome(scheduled_s, scheduled_s + 0.01, end_s, first_s, gaps_s, 100, 40, len(gaps_s) + 1)


def test_times_count_from_when_a_request_was_due() -> None:
    outcome = good(scheduled_s=1.0, first_s=1.5)
    assert outcome.ttft_s == pytest.approx(0.5)
    assert outcome.e2e_s == pytest.approx(0.7)
    assert outcome.tpot_s == pytest.approx(0.1)


def test_one_token_has_no_time_per_further_token() -> None:
    assert good(gaps_s=()).tpot_s is None


def measured(outcome: Outcome) -> Latency:
    found = latency(outcome)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (Slo(), True),
        (Slo(ttft_s=0.2), True),
        (Slo(ttft_s=0.19), False),
        (Slo(itl_s=0.11), True),
        (Slo(itl_s=0.09), False),
        (Slo(tpot_s=0.09), False),
        (Slo(ttft_s=1, e2e_s=0.3), False),
    ],
)
def test_objectives(slo: Slo, met: bool) -> None:
    assert slo.met_by(measured(good())) is met


def test_itl_objective_sees_a_stall_that_the_mean_hides() -> None:
    stalled = measured(good(gaps_s=(*[0.01] * 20, 2.0)))
    assert Slo(tpot_s=0.2).met_by(stalled)
    assert Slo(itl_s=0.2, tpot_s=0.2).missed(stalled) == {"itl"}


def test_an_answer_of_one_token_misses_no_bound_on_gaps() -> None:
    assert Slo(tpot_s=0.001, itl_s=0.001).met_by(measured(good(gaps_s=())))


@pytest.mark.parametrize(
    ("error", "end"),
    [
        ("refused", End.REFUSED),
        ("http_503:queue_full", End.REFUSED),
        ("http_429:over_quota", End.REFUSED),
        ("timeout", End.DEADLINE),
        ("http_504:deadline_exceeded", End.DEADLINE),
        ("stream:deadline_exceeded", End.DEADLINE),
        ("http_499:cancelled", End.FAILED),
        ("stream:cancelled", End.FAILED),
        ("http_400:invalid_request", End.FAILED),
        ("stream:worker_lost", End.FAILED),
        ("connection:ConnectionResetError", End.FAILED),
        ("no_finish", End.FAILED),
        (UNFINISHED, End.UNFINISHED),
    ],
)
def test_a_request_without_its_whole_answer_meets_nothing(error: str, end: End) -> None:
    outcome = Outcome(0, 0, 1, first_s=0.1, error=error)
    assert outcome.end is end
    found = attainment(Slo(ttft_s=5), [good(), outcome])
    assert (found.offered, found.met, found.within) == (2, 1, {"ttft": 1})
    assert (found.share, found.shares) == (0.5, {"ttft": 0.5})


def test_nothing_offered_attains_nothing() -> None:
    found = attained(Slo(ttft_s=1), [(End.CANCELLED, None)])
    assert (found.offered, found.share, found.shares) == (0, 0.0, {"ttft": 0.0})


@given(st.lists(st.tuples(st.sampled_from(End), st.floats(0, 4), st.none() | st.floats(0, 0.4)), max_size=40))
def test_goodput_lies_within_what_each_bound_attains(drawn: list[tuple[End, float, float | None]]) -> None:
    requests = [(end, Latency(ttft, ttft, tpot)) for end, ttft, tpot in drawn]
    found = attained(Slo(ttft_s=2, tpot_s=0.1), requests)
    assert found.offered == sum(end is not End.CANCELLED for end, _ in requests)
    assert sum(found.within.values()) - found.offered <= found.met <= min(found.within.values())
    assert max(found.within.values()) <= sum(end is End.DONE for end, _ in requests)
    looser = attained(Slo(ttft_s=2), requests)
    assert looser.met == looser.within["ttft"] == found.within["ttft"]


def test_slo_text() -> None:
    assert parse_slo("ttft=2, itl=0.1") == Slo(ttft_s=2.0, itl_s=0.1)
    for text in ("", "ttft", "ttft=0", "ttft=x", "ttft=nan", "ttft_s=1", "speed=1"):
        with pytest.raises(TandemError, match="--slo"):
            parse_slo(text)


def test_a_report_counts_everything_once() -> None:
    outcomes = [good(), good(1.0, 1.9), Outcome(2.0, 2.0, 4.0, error="http_503:queue_full")]
    report = summarize("w", "url", "demo", outcomes, Slo(ttft_s=0.5))
    assert report.slo == {"ttft": 0.5}
    assert (report.offered, report.ended) == (3, {"done": 2, "refused": 1})
    assert (report.attainment, report.interrupted) == ({"ttft": pytest.approx(1 / 3)}, False)
    assert (report.requests, report.succeeded, report.errors) == (3, 2, {"http_503:queue_full": 1})
    assert report.duration_s == 4.0
    assert (report.prompt_tokens, report.cached_tokens, report.output_tokens) == (200, 80, 6)
    assert report.output_tokens_per_s == pytest.approx(1.5)
    assert (report.goodput_requests, report.goodput_share) == (1, pytest.approx(1 / 3))
    assert report.ttft_s is not None
    assert report.ttft_s.count == 2
    assert report.itl_s is not None
    assert report.itl_s.count == 4


def test_an_empty_report_has_no_distributions() -> None:
    report = summarize("w", "url", "demo", [], Slo())
    assert (report.requests, report.ttft_s, report.goodput_share) == (0, None, 0.0)


def test_tokens_over_time_add_up() -> None:
    assert sum(tokens_per_second([good(), good(3.0, 3.5)])) == pytest.approx(6)


@given(knee=st.floats(0.05, 400), first=st.floats(0.1, 50))
def test_the_search_ends_near_the_knee(knee: float, first: float) -> None:
    search = CapacitySearch(first, tolerance=0.1, trials_max=30)
    while (rate := search.next_rate()) is not None:
        search.record(Trial(rate, 1.0 if rate <= knee else 0.2, rate))
    assert len(search.trials) <= 30
    assert search.passed is not None
    assert search.failed is not None
    assert search.passed <= knee < search.failed <= search.passed * 1.11
    assert "requests/s" in search.verdict()


def test_the_search_is_bounded_when_nothing_ever_fails_or_passes() -> None:
    for share, said in ((1.0, "at least"), (0.0, "no rate met")):
        search = CapacitySearch(1.0, trials_max=5)
        while (rate := search.next_rate()) is not None:
            search.record(Trial(rate, share, rate))
        assert len(search.trials) == 5
        assert said in search.verdict()


@pytest.mark.parametrize("first", [1.0, 50.0])
def test_the_search_tries_no_rate_at_which_the_workload_fills_no_trial(first: float) -> None:
    search = CapacitySearch(first, rate_max=10.0)
    while (rate := search.next_rate()) is not None:
        search.record(Trial(rate, 1.0, rate))
    assert max(trial.rate for trial in search.trials) == 10.0
    assert "at least 10 requests/s; the workload is too short" in search.verdict()


def test_a_lucky_pass_above_a_failure_does_not_count() -> None:
    search = CapacitySearch(4.0)
    for rate, share in ((4.0, 0.1), (2.0, 1.0), (3.0, 1.0), (8.0, 1.0)):
        search.record(Trial(rate, share, rate))
    assert (search.passed, search.failed) == (3.0, 4.0)
