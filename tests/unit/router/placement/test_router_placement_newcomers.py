"""A prompt waits no longer at a worker that has just come than prompts do elsewhere on average."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from hypothesis import given
from hypothesis import strategies as st

from router.placement import Placement, WorkerView
from router.placement.policies.newcomers import WHY, in_turn
from router.placement.scorers.candidate import Priced
from router.placement.scorers.prompt import PromptPlan
from tests.unit.router.placement.test_router_placement import ask, decide, load, view

WAY = PromptPlan(0.0, 1.0, 10, 10, 1.0)
NOW, OLD, NEW = 100.0, 10.0, 99.0
ANSWER_MS = 2_000.0
PREFILL = view("p1", "prefill")

candidates = st.lists(
    st.tuples(st.sampled_from([None, OLD, NEW]), st.floats(0.0, 1e4), st.booleans()), min_size=1, max_size=8
)
"""When they came, how long the prompt would wait there, and whether a prefill worker would compute it."""


def priced(drawn: Sequence[tuple[float | None, float, bool]], answer_ms: float = ANSWER_MS) -> list[Priced]:
    return [
        Priced(
            float(place),
            queue_ms,
            WAY,
            0.0,
            answer_ms,
            0.0,
            0.0,
            0.0,
            0.0,
            view(f"d{place}", "unified", ready_at=ready_at),
            PREFILL if apart else None,
        )
        for place, (ready_at, queue_ms, apart) in enumerate(drawn)
    ]


@given(candidates)
def test_who_is_new_comes_first_only_if_prompts_wait_no_longer_there(
    drawn: list[tuple[float | None, float, bool]],
) -> None:
    before = priced(drawn)
    found = in_turn(before, NOW)
    assert sorted(each.total_ms for each in found) == [each.total_ms for each in before]
    others = [each.queue_ms for each in before if each.prefill is None and each.decode.ready_at != NEW]
    first = found[0]
    if first.prefill is None and first.decode.ready_at == NEW and others:
        assert first.queue_ms <= fmean(others)
    # All others keep their order, and are before those that are held back.
    kept = [each.total_ms for each in found if each.prefill is not None or each.decode.ready_at != NEW]
    assert kept == sorted(kept)
    if found is not before:
        assert before[0].decode.ready_at == NEW
        assert first.total_ms > before[0].total_ms


@given(candidates, st.sampled_from([None, OLD, NEW]))
def test_where_all_are_alike_nothing_changes(
    drawn: list[tuple[float | None, float, bool]], ready_at: float | None
) -> None:
    before = priced([(ready_at, queue_ms, apart) for _, queue_ms, apart in drawn])
    assert in_turn(before, NOW) is before


def test_who_is_new_depends_on_how_long_answers_take() -> None:
    drawn = [(80.0, 900.0, False), (OLD, 100.0, False)]
    assert in_turn(priced(drawn, answer_ms=4_000.0), NOW)[0].decode.worker_id == "d1"
    assert in_turn(priced(drawn, answer_ms=1_000.0), NOW)[0].decode.worker_id == "d0"


def busy(worker_id: str, ready_at: float | None, running: int, queued: int) -> WorkerView:
    figures = load(
        running=running, queued_prompt_tokens=queued, blocks_free=900, step_s=0.02, prefill_tokens_per_s=20_000
    )
    return view(worker_id, "unified", load=figures, ready_at=ready_at)


def test_a_full_fleet_keeps_a_prompt_from_the_queue_of_a_newcomer_and_says_so() -> None:
    """Policies that have not been asked before read the time as 0."""
    full = [busy(f"w{number}", -1e3, 60, 1_000) for number in range(3)]
    new = busy("new", -1.0, 2, 6_000)
    found = decide(ask(2_000), [*full, new])
    assert isinstance(found, Placement)
    assert found.decode == "w0"
    assert WHY in found.reasons[0]
    costs = {candidate.decode: cost.total_ms for candidate, cost in found.costs}
    assert min(costs, key=costs.__getitem__) == "new"
    # One that is calmer than the others gets the prompt, as does one that has been there for as long as they have.
    for taken in (busy("new", -1.0, 2, 0), replace(new, ready_at=-1e3), replace(new, ready_at=None)):
        found = decide(ask(2_000), [*full, taken])
        assert isinstance(found, Placement)
        assert found.decode == "new"
        assert WHY not in found.reasons[0]
