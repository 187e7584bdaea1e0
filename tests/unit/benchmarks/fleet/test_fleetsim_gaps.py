"""Gaps between tokens: what the histogram tells is what single steps took."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fleet.fleet import Fleet, FleetSettings
from benchmarks.fleet.gaps import Gaps, all_gaps
from tests.unit.benchmarks.fleet.test_fleetsim_fleet import ALL, REQUESTS, Alternating, Drawn, workload


@given(st.floats(1e-4, 1.0), st.floats(0, 0.5), st.integers(1, 400))
def test_many_growing_gaps_are_those_added_one_by_one(first_s: float, growth: float, steps: int) -> None:
    last_s = first_s * (1 + growth) if steps > 1 else first_s
    at_once, single = Gaps(), Gaps()
    at_once.add_steps(first_s, last_s, steps)
    for step in range(steps):
        single.add(first_s + (last_s - first_s) * step / max(1, steps - 1))
    assert at_once.count == single.count == steps
    for share in (0.0, 0.5, 0.99, 1.0):
        # A gap on the edge of two bins may fall into either.
        assert at_once.quantile(share) == pytest.approx(single.quantile(share), rel=0.021)
    assert at_once.longest_s == pytest.approx(last_s, rel=0.021)


def test_quantiles_are_right_to_a_hundredth() -> None:
    gaps = Gaps()
    for number in range(1, 1001):
        gaps.add(number / 1000)
    assert gaps.quantile(0.5) == pytest.approx(0.5, rel=0.012)
    assert gaps.quantile(0.99) == pytest.approx(0.99, rel=0.012)
    assert gaps.longest_s == pytest.approx(1.0, rel=0.012)
    assert Gaps().quantile(0.5) == Gaps().longest_s == 0.0


@given(REQUESTS, st.sampled_from(ALL), st.sampled_from((1, 1 << 40)))
@settings(max_examples=40, deadline=None)
def test_a_requests_gaps_are_as_many_as_follow_its_first_token_and_fill_its_time(
    drawn: list[Drawn], fleet_settings: FleetSettings, steps_max: int
) -> None:
    work = workload(drawn)
    worker = replace(fleet_settings.worker, steps_max=steps_max)
    Fleet(replace(fleet_settings, worker=worker), Alternating).run(work)
    for request in work.requests:
        assert request.gaps.count == request.output_tokens - 1
        total_s = sum(_middle_s(request.gaps, number) * count for number, count in request.gaps.bins.items())
        assert total_s == pytest.approx(request.end_s - request.first_s, rel=0.012)
    assert all_gaps(request.gaps for request in work.requests).count == sum(
        request.output_tokens - 1 for request in work.requests
    )


def _middle_s(gaps: Gaps, number: int) -> float:
    only = Gaps()
    only.bins = {number: 1}
    return only.longest_s
