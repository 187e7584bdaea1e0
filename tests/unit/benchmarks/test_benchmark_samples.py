"""What the long measurements judge by: slopes that noise does not make, metrics pages, answers put together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.overload import OverloadResult, RequestOutcome, checks_of
from benchmarks.samples import Curve
from benchmarks.soak import checks_of as soak_checks
from benchmarks.soak_clients import Soak, questions
from tandem.apps.chaos.live import parse_metrics, total

PAGE = b"""# HELP tandem_sequences Sequences on a worker by state: running, waiting.
# TYPE tandem_sequences gauge
tandem_sequences{state="running"} 3.0
tandem_sequences{state="waiting"} 2.0
tandem_requests_running 7.0
"""


def curve(values: list[float]) -> Curve:
    return Curve([float(second) for second in range(len(values))], values)


@given(st.floats(-5, 5), st.integers(10, 200), st.floats(0, 100))
def test_the_slope_of_a_line_is_its_slope(slope: float, count: int, start: float) -> None:
    assert curve([start + slope * second for second in range(count)]).slope == pytest.approx(slope, abs=1e-6)


def test_a_spike_is_no_slope_and_a_leak_is_one() -> None:
    flat = [100.0 + second % 3 for second in range(100)]
    spiked = [*flat[:50], 900.0, *flat[50:]]
    assert abs(curve(spiked).growth) < 3.0
    leaking = [value + 0.5 * second for second, value in enumerate(flat)]
    assert curve(leaking).growth == pytest.approx(50.0, rel=0.1)
    assert curve([1.0]).growth == 0.0
    assert curve(leaking).since(90.0).times_s[0] == 90.0


def test_a_page_gives_its_samples() -> None:
    found = parse_metrics(PAGE)
    assert total(found, "tandem_sequences") == 5.0
    assert total(found, "tandem_sequences", "waiting") == 2.0
    assert total(found, "tandem_requests_running") == 7.0
    assert total(found, "tandem_requests") == 0.0


def test_the_questions_are_the_same_every_time_and_of_all_sorts() -> None:
    asked = questions()
    assert asked == questions()
    assert {question.n for question in asked} == {1, 3}
    assert len({len(question.prompt) // 200 for question in asked}) >= 4


def test_a_leak_a_wrong_answer_and_an_untyped_end_are_each_noticed() -> None:
    flat, leak = curve([100.0] * 100), curve([100.0 + second for second in range(100)])

    def verdicts(**changed: object) -> list[bool]:
        soak = Soak(memory={"router": flat}, files={"router": flat}, untouched=("router",))
        for name, value in changed.items():
            setattr(soak, name, value)
        return [check.met for check in soak_checks(soak)]

    assert all(verdicts())
    assert not all(verdicts(memory={"router": leak}))
    assert not all(verdicts(files={"router": leak}))
    assert not all(verdicts(wrong=["x"]))
    assert not all(verdicts(warm_s=95.0)), "too short a run proves nothing"
    assert not all(verdicts(held="prefill-0: 1 sequences"))
    assert not all(verdicts(ends={"cut off": 1}))
    assert all(verdicts(ends={"worker_lost": 1, "left": 3, "answered": 5}))


def test_an_overload_with_a_lost_request_or_slow_refusals_does_not_pass() -> None:
    good = OverloadResult(capacity=10.0, offered=200.0, planned=200.0, goodput=10.0, retry_after=1)
    assert all(check.met for check in checks_of(good))
    for name, value in (
        ("kinds", {"no end": 1}),
        ("refusal_p99_s", 0.2),
        ("retry_after", 0),
        ("goodput", 1.0),
        ("rss_max_mb", 500.0),
        ("recovered_s", 60.0),
    ):
        bad = OverloadResult(capacity=10.0, offered=200.0, planned=200.0, goodput=10.0, retry_after=1)
        setattr(bad, name, value)
        assert not all(check.met for check in checks_of(bad)), name
    assert RequestOutcome(0.0, 0.0, 0.1, "queue_full").kind == "queue_full"
