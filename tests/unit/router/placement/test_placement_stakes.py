"""Objectives in the price of a placement: misses that a choice makes more likely, the request's own and others'."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.placement import CostModel, Objective, Placement, PlacementRequest, WorkerView
from router.placement.decision import Work
from router.placement.filters.sorting import Suitable
from router.placement.learning.step_costs import StepTerms
from router.placement.policies.scoring_context import scoring_context
from router.placement.scorers.candidate import prefill_price, price_local, price_pairs
from router.placement.scorers.stakes import (
    Stakes,
    beside_stake,
    miss,
    miss_token,
    prompt_stake,
    stakes,
    stream_stake,
    unfair_ms,
)
from router.placement.scorers.times import streaming_ms
from router.settings import CostPriors, PlacementSettings
from tests.unit.router.placement.test_router_placement import ask, decide, load, view

STEP = StepTerms(10.0, 0.1, 0.0)
HELD_TO = Objective(ttft_ms=1000.0, tpot_ms=20.0)
PARTS = ("first token", "stream", "streams beside", "prompts behind")
times = st.floats(0.0, 1e7)


def at_stake(request: PlacementRequest, *without: str) -> Stakes:
    found = stakes(request, 100.0, PlacementSettings(without=without))
    assert found is not None
    return found


def placed(request: PlacementRequest, *workers: WorkerView, without: tuple[str, ...] = ()) -> Placement:
    found = decide(request, workers, CostModel(CostPriors()), PlacementSettings(without=without))
    assert isinstance(found, Placement), found
    return found


def beside(found: Stakes, worker: WorkerView, prefill_ms: float) -> float:
    return beside_stake(found, worker, streaming_ms(worker, STEP), 100.0, prefill_ms)


def stream(found: Stakes, worker: WorkerView) -> float:
    return stream_stake(found, worker, streaming_ms(worker, STEP), 0.1)


def busy(worker_id: str, sequences: int, queued: int = 0, **more: object) -> WorkerView:
    return view(worker_id, "unified", load=load(running=sequences, queued_prompt_tokens=queued), **more)


@given(times, times, st.floats(1.0, 1e6))
def test_a_miss_is_likelier_the_longer_it_takes(one: float, other: float, bound: float) -> None:
    sooner, later = sorted((one, other))
    assert 0.0 <= miss(sooner, bound) <= miss(later, bound) <= 1.0
    assert miss(sooner, inf) == 0.0


@given(st.floats(1.0, 1e6), st.floats(0.001, 0.05))
def test_at_the_bound_it_is_a_half_and_no_cliff(bound: float, share: float) -> None:
    assert abs(miss(bound, bound) - 0.5) < 1e-9
    assert 0.0 < miss(bound * (1 + share), bound) - miss(bound * (1 - share), bound) < 5 * share


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.floats(0.1, 1e4))
def test_a_stream_misses_the_likelier_the_longer_its_tokens_take(one: float, other: float, bound: float) -> None:
    sooner, later = sorted((one, other))
    assert 0.0 <= miss_token(sooner, bound) <= miss_token(later, bound) <= 1.0
    assert miss_token(bound, bound) == pytest.approx(0.5)
    assert miss_token(sooner, inf) == 0.0


def test_hundreds_of_streams_that_nothing_threatens_are_at_no_stake() -> None:
    """30 of 50 ms a token: what a stream more adds to 250 of them is less than a prompt of a millisecond; at 45 ms
    it is a second."""
    plain = at_stake(ask(objective=HELD_TO._replace(ttft_ms=2_000.0, tpot_ms=50.0)))
    batch = busy("w1", 250)
    assert stream_stake(plain, batch, 30.0, 0.02) < 1.0
    assert stream_stake(plain, batch, 45.0, 0.02) > 1_000.0


def test_nothing_is_at_stake_without_an_objective() -> None:
    assert stakes(ask(), 100.0, PlacementSettings()) is None
    assert stakes(ask(objective=Objective()), 100.0, PlacementSettings()) is None
    only_tokens = at_stake(ask(objective=Objective(tpot_ms=20.0)))
    assert (only_tokens.own_first_ms, only_tokens.behind_ms) == (0.0, 0.0)
    assert prompt_stake(only_tokens, 1.0, 1e5, 1e6, 1e5) == 0.0
    assert placed(ask(), busy("w1", 60)).costs[0][1].misses_ms == 0.0


def test_a_miss_costs_what_the_objective_allows_and_a_class_what_it_weighs() -> None:
    plain, important = at_stake(ask(objective=HELD_TO)), at_stake(ask(objective=HELD_TO, weight=4.0))
    assert plain.own_first_ms == plain.own_stream_ms == plain.streams_ms == plain.behind_ms == 1000.0 + 100 * 20.0
    assert important.own_first_ms == important.own_stream_ms == 4 * plain.own_first_ms
    assert (important.streams_ms, important.behind_ms) == (plain.streams_ms, plain.behind_ms), "others' own weight"


@given(st.sampled_from(PARTS), st.integers(0, 100), times, st.floats(0.0, 1e4))
def test_a_part_that_is_left_out_costs_nothing(part: str, sequences: int, first: float, prefill: float) -> None:
    worker, request = busy("w1", sequences), ask(objective=HELD_TO)
    whole, less = at_stake(request), at_stake(request, part)
    found = [
        (
            prompt_stake(each, 0.01, first, first + prefill, prefill),
            beside(each, worker, prefill),
            stream(each, worker),
        )
        for each in (whole, less)
    ]
    assert all(0.0 <= cut <= full for cut, full in zip(found[1], found[0], strict=True))
    nothing = at_stake(request, *PARTS)
    assert prompt_stake(nothing, 0.01, first, first + prefill, prefill) == 0.0
    assert beside(nothing, worker, prefill) == stream(nothing, worker) == 0.0


@given(st.integers(1, 200), st.floats(0.0, 1e4), st.floats(0.0, 1e4))
def test_a_prompt_costs_streams_beside_it_the_more_the_longer_it_is(rows: int, one: float, other: float) -> None:
    found, worker = at_stake(ask(objective=HELD_TO)), busy("w1", rows)
    short, long = sorted((one, other))
    assert beside(found, worker, short) <= beside(found, worker, long) + 1e-9


def test_steps_that_are_kept_within_the_objective_cost_streams_no_miss() -> None:
    found = at_stake(ask(objective=HELD_TO))
    fixed, kept = busy("w1", 50), busy("w2", 50, features=("itl_target",))
    assert beside(found, fixed, 800.0) > 0.0
    assert beside(found, kept, 800.0) == 0.0


def test_only_sequences_that_generate_are_beside_a_prompt() -> None:
    worker = busy("w1", 5)
    assert worker.decoding == 5
    prompt = Work(1, prompt_tokens=500, prompt_ms=50.0, context_tokens=500)
    worker.submitted(0.0, prompt)
    assert (worker.sequences, worker.decoding) == (6, 5)
    worker.computed(prompt)
    assert worker.decoding == 6
    told = view("w2", "unified", load=load(running=4, waiting=3))
    assert (told.sequences, told.decoding) == (7, 4)


def test_a_first_token_that_would_be_late_goes_where_it_is_not() -> None:
    """Without its objective waiting is cheaper than to disturb streams."""
    queued, crowded = busy("queued", 0, queued=7000), busy("crowded", 3)
    request = ask(4000, objective=Objective(ttft_ms=900.0))
    assert placed(request, queued, crowded, without=PARTS).decode == "queued"
    found = placed(request, queued, crowded)
    assert found.decode == "crowded"
    by_name = {str(candidate): cost for candidate, cost in found.costs}
    assert by_name["queued"].misses_ms > by_name["crowded"].misses_ms > 0.0
    assert "+ misses" in found.cost_table()
    assert any("queued would take" in reason and "risks misses" in reason for reason in found.reasons)


def test_whoever_is_late_wherever_he_goes_is_placed_by_what_it_takes() -> None:
    workers = busy("w1", 3, queued=4000), busy("w2", 3, queued=2000), busy("w3", 9)
    plain = placed(ask(3000), *workers)
    late = placed(ask(3000, objective=Objective(ttft_ms=100.0), age_ms=60_000.0), *workers)
    assert late.decode == plain.decode
    # Its own miss costs the same everywhere; what it has waited too long makes its time dearer, up to a bound.
    missed = [cost.misses_ms - 8.0 * (cost.queue_ms + cost.fetch_ms + cost.prefill_ms) for _, cost in late.costs]
    assert all(rest == pytest.approx(100.0, rel=0.02) for rest in missed)
    assert any("is expected" in reason and "is to take 100 ms" in reason for reason in late.reasons)


@given(st.floats(0.0, 5000.0), st.floats(0.0, 5000.0))
def test_age_counts_as_waiting(age: float, first: float) -> None:
    young, old = at_stake(ask(objective=HELD_TO)), at_stake(ask(objective=HELD_TO, age_ms=age))
    assert prompt_stake(old, 0.0, 0.0, first, 1.0) >= prompt_stake(young, 0.0, 0.0, first, 1.0)


def test_streams_gather_where_the_objective_is_lost_rather_than_be_lost_everywhere() -> None:
    """Steps of 20 ms are allowed, 100 sequences take just these. Many more on one worker are lost whatever comes."""
    found = at_stake(ask(objective=HELD_TO))
    free, edge, lost = (stream(found, busy("w1", rows)) for rows in (10, 95, 400))
    assert free < 0.02 * found.own_stream_ms < lost < 1.1 * found.own_stream_ms < edge
    own = stream_stake(found, busy("w1", 0), 10.0 + 0.1 * 95, 0.1)
    assert edge > 2.0 * own, "those that are there count, too"


@given(st.integers(0, 100), st.integers(0, 100))
def test_below_the_bound_the_smaller_batch_costs_less(one: int, other: int) -> None:
    found = at_stake(ask(objective=Objective(tpot_ms=24.0)))
    fewer, more = sorted((one, other))
    assert stream(found, busy("w1", fewer)) <= stream(found, busy("w1", more)) + 1e-9


@given(times, times, st.floats(1.0, 1e5), st.floats(0.0, 1e5), st.floats(0.0, 5.0))
def test_a_wait_that_is_unfair_costs_more_the_longer_it_is(
    one: float, other: float, alone: float, age: float, slowdown: float
) -> None:
    found = stakes(ask(objective=HELD_TO, age_ms=age), 100.0, PlacementSettings(), slowdown=slowdown)
    assert found is not None
    shorter, longer = sorted((one, other))
    costs = [unfair_ms(found, queue, queue + alone) for queue in (shorter, longer)]
    assert 0.0 <= costs[0] <= costs[1] <= 8.0 * (longer + alone) * (1.0 + 1e-9)
    if age + longer + alone <= max(1.0, 3.0 * slowdown) * max(1_000.0, alone):
        assert costs[1] == 0.0


def test_who_waits_too_long_for_what_it_takes_is_the_one_that_goes_first() -> None:
    """Streams beside are many: without an objective they keep long prompts where these wait."""
    waiting, crowded = busy("waiting", 2, queued=25_000), busy("crowded", 30)
    request = ask(4_000, objective=Objective(ttft_ms=1e5))
    assert placed(ask(4_000), waiting, crowded).decode == "waiting"
    found = placed(request, waiting, crowded)
    assert found.decode == "crowded"
    assert placed(request, waiting, crowded, without=("first token",)).decode == "waiting"


def test_what_is_told_of_a_price_is_what_candidates_are_ordered_by() -> None:
    """An operator who adds the parts up must find the cheapest first, with misses among them."""
    request = ask(2_000, objective=Objective(ttft_ms=400.0, tpot_ms=14.0))
    decode, prefill = busy("w1", 40, 1_000), view("p1", "prefill", load=load(queued_prompt_tokens=1_500))
    found = scoring_context(request, Suitable([decode], [prefill]), CostModel(CostPriors()), PlacementSettings())
    local = price_local(found, decode)
    (paired,) = price_pairs(found, [prefill_price(found, prefill)], local)
    for each in (local, paired):
        assert min(each.stakes_ms, each.answer_stakes_ms) > 1.0
        assert each.breakdown().misses_ms == pytest.approx(each.stakes_ms + each.answer_stakes_ms)
        assert each.breakdown().total_ms == pytest.approx(each.total_ms)


def test_what_an_objective_does_not_bound_is_not_at_stake() -> None:
    first = at_stake(ask(objective=Objective(ttft_ms=1000.0)))
    assert (first.own_stream_ms, first.streams_ms) == (0.0, 0.0)
    assert min(first.own_first_ms, first.behind_ms) == 1000.0
    steady = at_stake(ask(objective=Objective(tpot_ms=20.0)))
    assert (steady.own_first_ms, steady.behind_ms) == (0.0, 0.0)
    assert min(steady.own_stream_ms, steady.streams_ms) == 2000.0
