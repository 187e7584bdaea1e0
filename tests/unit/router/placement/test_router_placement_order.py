"""The order of priced candidates: by cost, and where costs are equal by what was there last."""

from hypothesis import given
from hypothesis import strategies as st

from router.placement.picker import by_cost
from router.placement.scorers.candidate import Priced
from router.placement.scorers.prompt import PromptPlan
from tests.unit.router.placement.test_router_placement import view

WAY = PromptPlan(0.0, 1.0, 10, 10, 1.0)
WORKERS = [view(f"d{number}", "decode", sequences_in_flight=number % 3) for number in range(12)]


def priced(totals: list[float]) -> list[Priced]:
    return [
        Priced(total, 0.0, WAY, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, worker, None)
        for total, worker in zip(totals, WORKERS, strict=False)
    ]


def naive(each: Priced, favourite: str) -> tuple[int, bool, int, str]:
    worker = each.decode
    favoured = worker.worker_id != favourite
    return round(each.total_ms / 1e-3), favoured, worker.sequences_in_flight, worker.worker_id


costs = st.lists(st.one_of(st.sampled_from([0.0, 1.0, 1.0004, 2.0]), st.floats(0.0, 1e6)), min_size=1, max_size=12)


@given(costs, st.sampled_from(["", "d1", "d7"]))
def test_candidates_are_in_the_order_of_their_costs_and_ties(totals: list[float], favourite: str) -> None:
    found = by_cost(priced(totals), favourite)
    assert [each.decode.worker_id for each in found] == [
        each.decode.worker_id for each in sorted(priced(totals), key=lambda each: naive(each, favourite))
    ]
