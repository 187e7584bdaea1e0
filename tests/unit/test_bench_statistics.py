"""Percentiles, objectives, reports and the capacity search say what they should of known figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.bench.capacity import CapacitySearch, Trial
from tandem.bench.distribution import distribution, percentile
from tandem.bench.outcome import Outcome
from tandem.bench.plot import tokens_per_second
from tandem.bench.report import summarize
from tandem.bench.slo import Slo, parse_slo
from tandem.core.errors import TandemError


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


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (Slo(), True),
        (Slo(ttft=0.2), True),
        (Slo(ttft=0.19), False),
        (Slo(itl=0.11), True),
        (Slo(itl=0.09), False),
        (Slo(tpot=0.09), False),
        (Slo(ttft=1, e2e=0.3), False),
    ],
)
def test_objectives(slo: Slo, met: bool) -> None:
    assert slo.met_by(good()) is met


def test_itl_objective_sees_a_stall_that_the_mean_hides() -> None:
    stalled = good(gaps_s=(*[0.01] * 20, 2.0))
    assert Slo(tpot=0.2).met_by(stalled)
    assert not Slo(itl=0.2).met_by(stalled)


def test_a_failed_request_meets_nothing() -> None:
    assert not Slo().met_by(Outcome(0, 0, 1, error="timeout"))


def test_slo_text() -> None:
    assert parse_slo("ttft=2, itl=0.1") == Slo(ttft=2.0, itl=0.1)
    for text in ("", "ttft", "ttft=0", "ttft=x", "speed=1"):
        with pytest.raises(TandemError, match="--slo"):
            parse_slo(text)


def test_a_report_counts_everything_once() -> None:
    outcomes = [good(), good(1.0, 1.9), Outcome(2.0, 2.0, 4.0, error="http_503:queue_full")]
    report = summarize("w", "url", "demo", outcomes, Slo(ttft=0.5))
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
    for attained, said in ((1.0, "at least"), (0.0, "no rate met")):
        search = CapacitySearch(1.0, trials_max=5)
        while (rate := search.next_rate()) is not None:
            search.record(Trial(rate, attained, rate))
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
    for rate, attained in ((4.0, 0.1), (2.0, 1.0), (3.0, 1.0), (8.0, 1.0)):
        search.record(Trial(rate, attained, rate))
    assert (search.passed, search.failed) == (3.0, 4.0)
