"""What a request is to hold: from its service and its priority to what placement is asked."""

from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.objectives import objective_of, weight_of
from router.fleet.services import ServiceFacts
from router.placement import Objective, PlacementRequest
from tandem.core.slo import Slo


def facts(ttft_s: float | None = None, tpot_s: float | None = None) -> ServiceFacts:
    return ServiceFacts("ns/s", "m", slo=Slo(ttft_s, tpot_s))


def test_a_service_without_bounds_asks_for_nothing() -> None:
    assert objective_of(None, begun=False) is None
    assert objective_of(facts(), begun=False) is None


def test_the_bounds_of_a_service_are_in_milliseconds() -> None:
    assert objective_of(facts(2.0, 0.05), begun=False) == Objective(2000.0, 50.0)
    assert objective_of(facts(ttft_s=2.0), begun=False) == Objective(2000.0)


def test_who_has_begun_to_answer_waits_for_no_first_token() -> None:
    assert objective_of(facts(2.0, 0.05), begun=True) == Objective(None, 50.0)
    assert objective_of(facts(2.0), begun=True) is None


@given(st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_a_higher_priority_never_counts_less_and_none_outweighs_all(one: int, other: int) -> None:
    assert weight_of(0) == 1.0
    assert 1 / 8 <= weight_of(one) <= 8
    if one >= other:
        assert weight_of(one) >= weight_of(other)


def test_what_is_kept_of_a_request_has_its_objective() -> None:
    asked = PlacementRequest("m", 100, 1, 10, objective=Objective(2000.0), age_ms=12.0, weight=2.0)
    kept = asked.figures()
    assert (kept.objective, kept.age_ms, kept.weight) == (Objective(2000.0), 12.0, 2.0)
