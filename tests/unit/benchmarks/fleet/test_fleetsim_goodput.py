"""Goodput counts what was offered; a knee and a recovery are read off curves that are known."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fleet.fleet import Fleet, FleetSettings, roles
from benchmarks.fleet.goodput import Bucket, Judged, Window, end_of, judge, knee, recovery_s
from benchmarks.fleet.peers.catalogue import peer
from benchmarks.fleet.router import Decider, Knowledge
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request, Stage, Workload
from tandem.core.errors import TandemError
from tandem.core.slo import End, Latency, Slo

SLO = Slo(ttft_s=2.0, tpot_s=0.05)
ALL = Window(0.0, 1e9)


def request(at_s: float, ttft_s: float | None, tpot_s: float = 0.01, tokens: int = 11) -> Request:
    """One that ended; or that never did, without a `ttft_s`."""
    made = Request(0, at_s, (1,), 64, 64, tokens, tokens)
    if ttft_s is not None:
        made.first_s = at_s + ttft_s
        made.end_s = made.first_s + tpot_s * (tokens - 1)
        made.emitted = tokens
    return made


def test_an_objective_may_be_reached_and_bounds_what_it_names() -> None:
    assert SLO.met_by(Latency(2.0, 9.0, 0.05, 9.0))
    assert SLO.missed(Latency(2.01, 9.0, 0.051)) == {"ttft", "tpot"}
    assert not replace(SLO, itl_s=0.1).met_by(Latency(1.0, 9.0, 0.05, 0.11))
    assert replace(SLO, itl_s=0.1).met_by(Latency(1.0, 1.0)), "an answer of one token has no gaps"


def test_slow_refused_and_unfinished_requests_are_misses() -> None:
    started = request(4.0, None)
    started.first_s, started.emitted = 4.1, 5
    judged = judge(
        [
            request(0.0, 1.0),
            request(1.0, 3.0),
            request(2.0, 1.0, tpot_s=0.06),
            request(3.0, None),
            started,
            request(10.0, 0.5, tokens=1),
        ],
        SLO,
        Window(0.0, 10.0),
    )
    assert (judged.offered, judged.ended, judged.met) == (6, 4, 2)
    assert judged.attainment == pytest.approx(2 / 6)
    assert judged.goodput_per_s == pytest.approx(0.2)
    assert judged.tokens_per_s == pytest.approx((3 * 11 + 1) / 10.5)
    assert judged.ttft.p50_s == pytest.approx(1.0)
    assert judged.ttft.p99_s == pytest.approx(2.94)
    assert judged.tpot.p50_s == pytest.approx(0.01), "an answer of one token has no TPOT"
    assert judged.tpot.p90_s == pytest.approx(0.05)
    assert judged.by_arrival == (Bucket(0.0, 5, 1), Bucket(5.0, 0, 0), Bucket(10.0, 1, 1))


def test_who_is_given_up_by_its_client_is_not_counted_and_a_deadline_is_a_miss() -> None:
    """Two clients of four lose patience, one request runs into its deadline; the fleet gives back what they held."""
    bounds = ((0.5, inf), (inf, 0.5), (0.4, 0.5), (inf, inf))
    requests = tuple(
        Request(number, 0.0, (number,), 64, 64, 200, 200, patience_s=patience_s, deadline_s=deadline_s)
        for number, (patience_s, deadline_s) in enumerate(bounds)
    )
    work = Workload("given up", (Stage(1.0, 1.0, requests),))
    Fleet(FLEET, peer("least loaded", 0)).run(work, check_every=1)
    assert [end_of(each) for each in requests] == [End.CANCELLED, End.DEADLINE, End.CANCELLED, End.DONE]
    judged = judge(requests, Slo(ttft_s=60.0), ALL)
    assert (judged.offered, judged.ended, judged.met, judged.cancelled) == (2, 1, 1, 2)
    assert judged.by_arrival == (Bucket(0.0, 2, 1),)
    # Steps take 10 ms, and a little for each of those that run.
    assert judged.itl.p50_s == pytest.approx(0.0101, rel=0.03)
    assert not judge(requests, Slo(itl_s=0.005), ALL).met


def test_a_window_counts_by_arrival_whenever_requests_end() -> None:
    requests = [request(float(at_s), 1.5) for at_s in range(20)]
    judged = judge(requests, SLO, Window(5.0, 14.0))
    assert (judged.offered, judged.met) == (10, 10)
    assert [(bucket.begin_s, bucket.offered) for bucket in judged.by_arrival] == [(5.0, 5), (10.0, 5)]


def test_nothing_offered_is_nothing_met() -> None:
    judged = judge([], SLO, Window.of([]))
    assert (judged.offered, judged.attainment, judged.tokens_per_s, judged.goodput_per_s) == (0, 0.0, 0.0, 0.0)
    assert judged.by_arrival == ()


DRAWN = st.lists(
    st.tuples(st.floats(0, 60), st.none() | st.floats(0, 5), st.floats(0, 0.1), st.integers(1, 50)), max_size=40
)


@given(DRAWN, st.floats(0, 60), st.floats(0, 60))
def test_buckets_add_up_and_nothing_lost_is_ever_met(
    drawn: list[tuple[float, float | None, float, int]], begin_s: float, length_s: float
) -> None:
    requests = [request(*each) for each in drawn]
    judged = judge(requests, SLO, Window(begin_s, begin_s + length_s))
    assert judged.met <= judged.ended <= judged.offered <= len(requests)
    assert sum(bucket.offered for bucket in judged.by_arrival) == judged.offered
    assert sum(bucket.met for bucket in judged.by_arrival) == judged.met
    lost = [*requests, request(begin_s, None)]
    worse = judge(lost, SLO, Window(begin_s, begin_s + length_s))
    assert (worse.met, worse.offered) == (judged.met, judged.offered + 1)
    assert worse.ttft == judged.ttft, "latencies are those of what ended"


def test_the_knee_lies_where_the_curve_crosses() -> None:
    assert knee([(30.0, 0.5), (10.0, 1.0), (20.0, 1.0)]) == pytest.approx(22.0)
    assert knee([(10.0, 0.9), (20.0, 0.8)]) == pytest.approx(10.0)
    assert knee([(10.0, 0.89), (20.0, 1.0)]) == 0.0, "the lowest rate falls short already"
    assert knee([(10.0, 1.0), (20.0, 0.95)]) == 20.0, "it lies beyond what was tried"
    assert knee([(1.0, 1.0), (2.0, 0.8), (3.0, 1.0)]) == pytest.approx(1.5), "the first crossing counts"
    assert knee([]) == 0.0


@given(st.floats(5, 50), st.floats(0.01, 0.1), st.integers(3, 30))
def test_a_straight_fall_has_its_knee_where_it_was_put(at: float, slope: float, points: int) -> None:
    """Attainment 0.9 at `at`, falling by `slope` per request a second around it."""
    rates = [at + (place - points / 2) / points for place in range(points + 1)]
    assert knee([(rate, 0.9 - slope * (rate - at)) for rate in rates]) == pytest.approx(at, rel=1e-6)


def test_recovery_is_told_by_the_first_bucket_that_holds() -> None:
    met = (10, 10, 4, 2, 10, 2, 9, 10, 10)
    buckets = [Bucket(5.0 * place, 10, count) for place, count in enumerate(met)]
    # One bucket that comes up in the middle of the trouble is not the recovery: those after it fall short together.
    assert recovery_s(buckets, 10.0, 0.9) == 20.0
    assert recovery_s(buckets, 10.0, 0.86) == 20.0, "with itself such a bucket would lift the others over the bar"
    assert recovery_s(buckets, 10.0, 1.0) == 25.0
    assert recovery_s(buckets[:6], 10.0, 0.9) is None
    assert recovery_s(buckets, 0.0, 0.7) == 0.0, "attainment that holds over all was never lost"
    assert recovery_s([Bucket(0.0, 0, 0), Bucket(5.0, 4, 4)], 0.0, 1.0) == 5.0, "nobody asked in the first"


# ---- requests that are refused in a fleet ----

TIME = StepTime(base_s=0.01, sequence_s=1e-4, read_s=1e-7, token_s=5e-5, context_s=2e-9)
FLEET = FleetSettings(roles(unified=2), WorkerSettings(3_000, 64, TIME, max_batched_tokens=512, max_sequences=16))


class Refusing:
    """Every third request is refused, the others go where there is least to do."""

    def __init__(self, knowledge: Knowledge, every: int = 3) -> None:
        self._inner: Decider = peer("least loaded", 0)(knowledge)
        self._every = every

    def place(self, request: Request, now: float) -> tuple[int, int] | None:
        return None if request.number % self._every == 0 else self._inner.place(request, now)

    def first_token(self, request: Request, now: float) -> None:
        assert request.number % self._every
        self._inner.first_token(request, now)

    def finished(self, request: Request, now: float) -> None:
        assert request.number % self._every
        self._inner.finished(request, now)

    def transferred(self, request: Request, tokens: int, seconds: float) -> None: ...


def refused_run(every: int) -> tuple[Workload, Judged]:
    """A run with a client that holds four requests at most, so that a refusal makes room for the next."""
    requests = tuple(Request(number, 0.01 * number, (number,), 64, 64, 20, 20) for number in range(30))
    work = Workload("refused", (Stage(100.0, 0.3, requests),), in_flight_max=4)
    figures = Fleet(FLEET, lambda knowledge: Refusing(knowledge, every)).run(work, check_every=1)
    assert figures.requests == sum(request.ended for request in requests)
    return work, judge(requests, Slo(ttft_s=60.0), ALL)


def test_a_fleet_goes_on_without_what_was_refused_and_goodput_counts_it() -> None:
    work, judged = refused_run(3)
    assert (judged.offered, judged.ended, judged.met) == (30, 20, 20)
    assert all(request.emitted == (20 if request.number % 3 else 0) for request in work.requests)


def test_a_request_that_its_client_kept_back_has_waited_since_it_was_due() -> None:
    requests = tuple(Request(number, 0.0, (number,), 64, 64, 20, 20) for number in range(6))
    Fleet(FLEET, peer("least loaded", 0)).run(Workload("one", (Stage(1.0, 1.0, requests),), in_flight_max=1))
    alone_s = requests[0].ttft_s
    assert [request.ttft_s for request in requests] == pytest.approx([alone_s] * 6), "each is served at once"
    assert Window.of(requests) == Window(0.0, 0.0)
    judged = judge(requests, Slo(ttft_s=1.5 * alone_s), Window.of(requests))
    assert (judged.offered, judged.met) == (6, 1)
    assert judged.ttft.p99_s == pytest.approx(requests[-1].first_s, rel=0.05)
    assert judge(requests, Slo(e2e_s=1.5 * requests[0].end_s), Window.of(requests)).met == 1


def test_a_stage_of_which_all_is_refused_has_no_figures() -> None:
    with pytest.raises(TandemError, match="all 30 requests at rate 100 were refused"):
        refused_run(1)
