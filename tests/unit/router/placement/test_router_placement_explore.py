"""Who gets a prompt now and then though it costs more there, and who does not."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from router.placement import CostModel
from router.placement.decision import Objective, Placement, PlacementRequest
from router.placement.policies import make_policy
from router.placement.policies.explore import WHY, Explorer, looks_slow
from router.placement.scorers.candidate import Priced
from router.placement.scorers.prompt import PromptPlan
from router.settings import CostPriors, PlacementSettings
from tandem.core.entropy import SeededEntropy, unit
from tests.unit.router.placement.test_router_placement import load, view

WORKERS = tuple(view(f"w{number}", "unified") for number in range(4))
REQUEST = PlacementRequest("demo", 1_000, 1, 100)


def priced(worker: int, total_ms: float, uncached: int = 1_000, ttft_ms: float = 100.0) -> Priced:
    figures = dict.fromkeys(Priced.__struct_fields__, 0.0)
    way = PromptPlan(0.0, ttft_ms, uncached, uncached, ttft_ms)
    return Priced(**{**figures, "total_ms": total_ms, "way": way, "decode": WORKERS[worker], "prefill": None})


def placement(chosen: Priced) -> Placement:
    return Placement("local", chosen.decode.worker_id, None, chosen.way.uncached, 0, (), ())


def everybody(worker_id: str) -> bool:
    return True


def carried_out(
    offers: list[list[Priced]], request: PlacementRequest = REQUEST, slow: Callable[[str], bool] = everybody
) -> list[tuple[int, Priced]]:
    explorer, chosen = Explorer(), list[tuple[int, Priced]]()
    for offer in offers:
        place = explorer.pick(request, offer, slow)
        explorer.placed(placement(offer[place]))
        chosen.append((place, offer[place]))
    return chosen


def test_a_worker_that_is_dearer_gets_one_prompt_in_a_hundred_of_every_size() -> None:
    offers = [
        [priced(0, 100.0, size), priced(1, 120.0, size), priced(2, 250.0, size), priced(3, 290.0, size)]
        for _ in range(600)
        for size in (50, 1_000, 30_000)
    ]
    chosen = carried_out(offers)
    for size in (50, 1_000, 30_000):
        mine = [each.decode.worker_id for _, each in chosen if each.way.uncached == size]
        for worker in WORKERS[1:]:
            assert 6 <= mine.count(worker.worker_id) <= 9
    assert sum(place > 0 for place, _ in chosen) <= 0.05 * len(chosen)


@settings(max_examples=20)
@given(st.integers(0, 1 << 32))
def test_nobody_explores_at_more_than_three_times_the_best_price(seed: int) -> None:
    entropy = SeededEntropy(seed)
    prices = [[1.0 + 1_000.0 * unit(entropy) for _ in WORKERS] for _ in range(300)]
    offers = [sorted((priced(at, ms) for at, ms in enumerate(each)), key=lambda one: one.total_ms) for each in prices]
    for offer, (_, chosen) in zip(offers, carried_out(offers), strict=True):
        assert chosen.total_ms <= 3.0 * offer[0].total_ms


def test_nobody_explores_beyond_the_objective_or_with_a_prompt_of_another_size() -> None:
    in_time = msgspec.structs.replace(REQUEST, objective=Objective(ttft_ms=500.0), age_ms=200.0)
    late = [[priced(0, 100.0), priced(1, 110.0, ttft_ms=301.0)] for _ in range(400)]
    assert all(place == 0 for place, _ in carried_out(late, in_time))
    soon = [[priced(0, 100.0), priced(1, 110.0, ttft_ms=299.0)] for _ in range(400)]
    assert any(place for place, _ in carried_out(soon, in_time))
    uncached = [[priced(0, 100.0, 50), priced(1, 110.0, 5_000)] for _ in range(400)]
    assert all(place == 0 for place, _ in carried_out(uncached))


def test_nobody_explores_at_the_risk_of_the_answers_objective_or_with_what_failed_elsewhere() -> None:
    held = msgspec.structs.replace(REQUEST, objective=Objective(tpot_ms=25.0))
    best, risky = priced(0, 100.0), msgspec.structs.replace(priced(1, 110.0), stakes_ms=50.0)
    assert all(place == 0 for place, _ in carried_out([[best, risky]] * 400, held))
    alike = msgspec.structs.replace(best, stakes_ms=50.0)
    assert any(place for place, _ in carried_out([[alike, risky]] * 400, held))
    again = msgspec.structs.replace(REQUEST, excluded=(("w3", 1),))
    assert all(place == 0 for place, _ in carried_out([[best, priced(1, 110.0)]] * 400, again))


def test_a_turn_that_did_not_suit_comes_again_soon_whoever_else_waits() -> None:
    """w1 was explored first, so its next turn is first in line for long."""
    explorer, chosen = Explorer(), list[str]()
    for number in range(400):
        unsuited = 100 <= number < 120
        offer = [priced(0, 100.0), priced(1, 110.0), priced(2, 120.0, 5_000 if unsuited else 1_000)]
        place = explorer.pick(REQUEST, offer, lambda worker_id: worker_id != "w0")
        explorer.placed(placement(offer[place]))
        chosen.append(offer[place].decode.worker_id)
    turns = [number for number, name in enumerate(chosen) if name == "w2"]
    assert len(turns) >= 3
    assert all(after - before <= 120 for before, after in pairwise(turns))


def test_whoever_is_as_fast_as_the_others_explores_nothing() -> None:
    offers = [[priced(0, 100.0), priced(1, 120.0), priced(2, 250.0)] for _ in range(600)]
    chosen = carried_out(offers, slow=lambda worker_id: worker_id == "w2")
    assert {each.decode.worker_id for place, each in chosen if place} == {"w2"}


def test_slow_is_who_takes_longer_than_half_of_the_candidates() -> None:
    costs, offer = CostModel(CostPriors()), [priced(number, 100.0) for number in range(4)]
    assert not any(looks_slow(each.worker_id, offer, costs) for each in WORKERS)
    for _ in range(20):
        for each, pace in zip(WORKERS, (1.0, 1.0, 1.0, 1.4), strict=True):
            costs.prefill.observe_rate(each.worker_id, 10_000.0 / pace)
    assert [looks_slow(each.worker_id, offer, costs) for each in WORKERS] == [False, False, False, True]


def test_a_worker_that_is_gone_is_not_waited_for() -> None:
    explorer = Explorer()
    for _ in range(200):
        explorer.placed(placement(priced(3, 1.0)))
        explorer.pick(REQUEST, [priced(0, 1.0), priced(3, 2.0)], everybody)
    explorer.forget("w3")
    offers = [[priced(0, 100.0), priced(1, 110.0)] for _ in range(400)]
    found = [
        explorer.pick(REQUEST, offer, everybody) for offer in offers if explorer.placed(placement(offer[0])) is None
    ]
    assert any(found)


def test_a_placement_that_explores_says_so() -> None:
    policy, costs = make_policy(PlacementSettings(), SeededEntropy(1)), CostModel(CostPriors())
    busy = replace(WORKERS[1])
    busy.loaded(load(running=6), 0.0, 0.0)
    for worker, rate in ((WORKERS[0], 10_000.0), (busy, 6_000.0)):
        costs.prefill.observe_rate(worker.worker_id, rate)
    said = []
    for number in range(300):
        request = msgspec.structs.replace(REQUEST, request_id=str(number))
        found = policy.choose(request, (WORKERS[0], busy), costs, PlacementSettings(), None, float(number))
        assert isinstance(found, Placement)
        policy.placed(request, found, float(number))
        said.append((found.decode, found.reasons[0]))
    explored = [decode for decode, reason in said if WHY in reason]
    assert explored
    assert set(explored) == {"w1"}
    assert all(decode == "w0" for decode, reason in said if WHY not in reason)


def test_a_prefill_worker_that_is_never_among_the_cheapest_is_explored() -> None:
    policy, costs = make_policy(PlacementSettings(), SeededEntropy(1)), CostModel(CostPriors())
    workers = [view(f"p{number}", "prefill") for number in range(8)]
    workers += [view(f"d{number}", "decode") for number in range(8)]
    for worker in workers[:8]:
        costs.prefill.observe_rate(worker.worker_id, 4_000.0 if worker.worker_id == "p0" else 8_000.0)
    settings = PlacementSettings(prefer="disaggregated")
    taken = []
    for number in range(1_500):
        request = PlacementRequest("demo", 4_000, 1, 100, request_id=str(number))
        found = policy.choose(request, workers, costs, settings, None, float(number))
        assert isinstance(found, Placement)
        policy.placed(request, found, float(number))
        taken.append(found.prefill)
    assert 0.007 * len(taken) <= taken.count("p0") <= 0.03 * len(taken)


def test_no_prompt_is_spent_on_a_place_whose_first_token_would_be_late() -> None:
    """Its line, its blocks on their way and the hand-over count, and how long the request has waited."""
    request = msgspec.structs.replace(REQUEST, objective=Objective(ttft_ms=200.0), age_ms=20.0)
    for part, late in (("queue_ms", True), ("transfer_ms", True), ("queue_ms", False), ("transfer_ms", False)):
        dear = msgspec.structs.replace(priced(1, 120.0), **{part: 100.0 if late else 40.0})
        chosen = carried_out([[priced(0, 100.0), dear] for _ in range(600)], request)
        assert any(place for place, _ in chosen) == (not late)
