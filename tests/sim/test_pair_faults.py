"""Pairs of workers between which nothing travels: traffic goes on, the breaker opens, and closes when it is over."""

from collections import Counter
from dataclasses import replace

import pytest

from router.fleet.breaker import Breaker, Outcome, State
from router.settings import PlacementSettings, RouterSettings
from tandem.apps.simulation.faults import break_pair
from tandem.apps.simulation.faults.break_pair import BreakPair
from tandem.apps.simulation.faults.drawing import FaultProfile, draw_faults
from tandem.apps.simulation.traffic import TrafficProfile
from tandem.apps.simulation.world import Report, Script, WorldSettings, script, simulate
from tandem.core.entropy import SeededEntropy

CALM = WorldSettings(
    router=RouterSettings(placement=PlacementSettings(prefer="disaggregated")),
    traffic=TrafficProfile(requests=60, span_s=10.0, cancel_share=0.0, long_prompt_share=0.0),
    faults=FaultProfile(kills=0, corrupt_share=0.0),
)
DEADLINES = CALM.router.deadlines
STALL_S = DEADLINES.transfer_progress_s
"""How long a transfer may stand still before decode computes what is missing."""


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> Counter[State]:
    """Counts the states that breakers enter."""
    seen: Counter[State] = Counter()
    opened, carried = Breaker._open, Breaker._carried

    def opening(breaker: Breaker, outcome: Outcome, now: float) -> None:
        seen[State.OPEN] += 1
        opened(breaker, outcome, now)

    def carrying(breaker: Breaker, path: str, now: float) -> None:
        seen[State.CLOSED] += breaker.state is not State.CLOSED
        carried(breaker, path, now)

    monkeypatch.setattr(Breaker, "_open", opening)
    monkeypatch.setattr(Breaker, "_carried", carrying)
    return seen


def under(fault: BreakPair, seed: int) -> Report:
    """One seed's traffic under one fault."""
    return simulate(CALM, seed, Script(script(CALM, seed).requests, (fault,)))


@pytest.mark.parametrize("corrupts", [False, True], ids=["blocked", "corrupting"])
def test_traffic_goes_on_around_a_broken_pair_with_bounded_delay(corrupts: bool, entered: Counter[State]) -> None:
    for seed in range(2):
        entered.clear()
        report = under(BreakPair(1.0, "p0", "d0", 6.0, corrupts), seed)
        assert {outcome.end for outcome in report.outcomes} == {"done"}
        assert entered[State.OPEN] >= 1, "nobody noticed"
        # Four first canaries, and at least the one that ends it. The world checks that all pairs are closed then.
        assert entered[State.CLOSED] >= 5
        slowest_s = max(outcome.ttft_s or 0.0 for outcome in report.outcomes)
        assert slowest_s < STALL_S + 1.0
        late = sum((outcome.ttft_s or 0.0) > STALL_S / 2 for outcome in report.outcomes)
        assert late <= 12, f"{late} of {len(report.outcomes)} requests waited for a pair that was known to be broken"


def test_without_pairs_that_carry_decode_computes_everything_itself() -> None:
    faults = tuple(
        BreakPair(0.0, holder, receiver, 20.0, False) for holder in ("p0", "p1") for receiver in ("d0", "d1")
    )
    report = simulate(CALM, 1, Script(script(CALM, 1).requests, faults))
    assert {outcome.end for outcome in report.outcomes} == {"done"}
    assert report.handed_off < len(report.outcomes)
    # One pair after the other has been tried by then, each for as long as a transfer may stand still.
    later = [outcome for outcome in report.outcomes if outcome.asked_s > 4 * STALL_S]
    assert len(later) >= 5
    assert all((outcome.ttft_s or 0.0) < 0.5 for outcome in later)


def test_drawn_faults_leave_no_promise_broken() -> None:
    drawn = replace(CALM, faults=FaultProfile(kills=1, corrupt_share=0.5, pairs=5))
    for seed in range(3):
        report = simulate(drawn, seed)
        assert sum(isinstance(fault, BreakPair) for fault in report.faults) == 5


def test_other_faults_are_drawn_as_before() -> None:
    with_pairs = draw_faults(FaultProfile(others=3, pairs=2), 7, ("p0", "d0", "d1"))
    without = draw_faults(FaultProfile(others=3), 7, ("p0", "d0", "d1"))
    assert [fault for fault in with_pairs if not isinstance(fault, BreakPair)] == list(without)


def test_a_drawn_fault_is_between_a_prefill_and_a_decode_worker_where_there_are_both() -> None:
    for seed in range(30):
        fault = break_pair.draw(1.0, ("p0", "p1", "d0"), SeededEntropy(seed))
        assert {fault.holder[0], fault.receiver[0]} == {"p", "d"}
    lonely = break_pair.draw(1.0, ("d0",), SeededEntropy(1))
    assert (lonely.holder, lonely.receiver) == ("d0", "d0")
