"""What an operator is told of a placement whose request has an objective."""

from router.placement import Objective, PlacementRequest
from router.placement.filters.partners import Partners
from router.placement.filters.sorting import Suitable
from router.placement.reasons import Chosen, at_stake
from router.placement.scorers.candidate import Priced
from router.placement.scorers.prompt import PromptPlan
from router.settings import PlacementSettings
from tests.unit.router.placement.test_router_placement import ask, view

HELD_TO = ask(objective=Objective(ttft_ms=1_000.0))


def priced(name: str, total_ms: float, stakes_ms: float = 0.0, answer_stakes_ms: float = 0.0) -> Priced:
    """Its first token is expected after 500 ms."""
    way = PromptPlan(100.0, 250.0, 400, 400, 250.0)
    decode = view(name, "unified")
    return Priced(total_ms, 150.0, way, 0.0, 0.0, 0.0, 0.0, stakes_ms, answer_stakes_ms, decode, None)


def told(request: PlacementRequest, *candidates: Priced) -> tuple[str, ...]:
    return at_stake(Chosen(request, PlacementSettings(), candidates, Suitable(), Partners(None), ()))


def test_a_place_that_only_its_risk_spoke_against_is_named_with_both_sides() -> None:
    found = told(HELD_TO, priced("w1", 105.0, 3.0, 2.0), priced("w2", 130.0, 40.0, 20.0))
    assert found == ("w2 would take 30.0 ms less, but risks misses of objectives for 60.0 ms, not 5.0 ms",)


def test_the_first_such_place_is_enough() -> None:
    found = told(
        HELD_TO, priced("w1", 100.0), priced("w2", 110.0, 5.0), priced("w3", 120.0, 30.0), priced("w4", 130.0, 60.0)
    )
    assert [sentence.partition(" ")[0] for sentence in found] == ["w3"]


def test_a_place_that_takes_as_long_is_not_said_to_take_less() -> None:
    assert told(HELD_TO, priced("w1", 105.0, 5.0), priced("w2", 160.0, 60.0)) == ()


def test_a_place_that_risks_no_more_is_not_said_to_risk_anything() -> None:
    assert told(HELD_TO, priced("w1", 105.0, 5.0), priced("w2", 106.0, 4.0)) == ()


def test_a_first_token_is_said_to_be_late_when_it_is_late() -> None:
    on_time, late = (ask(objective=HELD_TO.objective, age_ms=age_ms) for age_ms in (500.0, 600.0))
    assert told(on_time, priced("w1", 100.0)) == ()
    assert told(late, priced("w1", 100.0)) == (
        "its first token is expected 1100 ms after it came, and is to take 1000 ms",
    )
    assert told(ask(objective=Objective(tpot_ms=20.0), age_ms=1e6), priced("w1", 100.0)) == ()


def test_without_an_objective_nothing_is_said_of_one() -> None:
    assert told(ask(), priced("w1", 100.0), priced("w2", 130.0, 60.0)) == ()
