"""Requests that end before their time give back all they had, wherever they are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fleet.fleet import Fleet, FleetSettings
from benchmarks.fleet.ours import OursSettings, ours
from benchmarks.fleet.peers.catalogue import peer
from tests.unit.benchmarks.fleet.test_fleetsim_fleet import ALL, FLEETS, REQUESTS, Alternating, Drawn, busy, workload


@given(REQUESTS, st.sampled_from(ALL), st.lists(st.floats(0.0, 4.0), min_size=25, max_size=25))
@settings(max_examples=80, deadline=None)
def test_a_cancelled_request_leaves_nothing_behind(
    drawn: list[Drawn], fleet_settings: FleetSettings, allowed: list[float]
) -> None:
    # A run of nothing that ended has no figures.
    work = workload([*drawn, (0.0, 0, 1, 10, 5)])
    for place, (request, seconds) in enumerate(zip(work.requests[:-1], allowed, strict=False)):
        if place % 2:
            request.deadline_s = seconds
        else:
            request.patience_s = seconds
    fleet = Fleet(fleet_settings, Alternating)
    fleet.run(work, check_every=1)
    # What was still waited for when the last of them was over may end as well.
    while fleet._heap:
        fleet._next_event()
    fleet.check()
    for worker in fleet.workers:
        assert worker.due is None
        assert worker.pool.used == 0
    for request in work.requests:
        allowed_s = min(request.deadline_s, request.patience_s)
        if request.ended:
            assert request.cancelled_s < 0
            assert request.emitted == request.output_tokens
            assert request.end_s <= request.arrival_s + allowed_s
        else:
            assert request.cancelled_s == request.arrival_s + allowed_s
            assert request.emitted <= request.output_tokens


@pytest.mark.parametrize("name", ["ours", "least loaded", "llm-d precise 2:1", "dynamo kv"])
@pytest.mark.parametrize("fleet_settings", FLEETS, ids=["unified", "tiers", "apart", "mixed"])
def test_every_router_forgets_what_was_cancelled(name: str, fleet_settings: FleetSettings) -> None:
    work = busy(3)
    for request in work.requests:
        if request.number % 3 == 0:
            request.patience_s = 0.02 * (request.number % 90)
    decider = ours(OursSettings(1000), 5) if name == "ours" else peer(name, 5)
    fleet = Fleet(fleet_settings, decider)
    fleet.run(work, check_every=50)
    assert any(request.cancelled_s >= 0 and request.first_s < 0 for request in work.requests)
    assert any(request.cancelled_s >= 0 and request.first_s >= 0 for request in work.requests)
    held = fleet.decider
    if name == "ours":
        assert all(view.sequences_in_flight == 0 for view in held.views)  # type: ignore[attr-defined]
        assert all(view.prompt_tokens_in_flight == 0 for view in held.views)  # type: ignore[attr-defined]
    else:
        assert not any(held._in_flight)  # type: ignore[attr-defined]
        assert not any(held._prefill_tokens)  # type: ignore[attr-defined]
