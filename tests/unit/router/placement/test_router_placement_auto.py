"""Placement on workers of role `auto`: those that take prompts for others, and those that answer."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from router.placement import Placement, PlacementRequest, Unplaced, WorkerView
from router.placement.decision import Work
from router.placement.filters.sorting import suitable
from router.placement.policies import POLICIES
from router.settings import PlacementSettings
from tests.unit.router.placement.test_router_placement import ask, decide, load, placed, view

DISAGGREGATED = PlacementSettings(prefer="disaggregated")
_LAST = "only workers that take prompts for others are left"


def auto(worker_id: str, takes_prompts: bool = False, **more: object) -> WorkerView:
    return view(worker_id, "auto", takes_prompts=takes_prompts, **more)


def found_of(workers: Sequence[WorkerView], **more: object) -> tuple[list[str], list[str], str]:
    """Decodes, prefills and the reason of a last resort."""
    found = suitable(ask(500, **more), workers, PlacementSettings())
    return [each.worker_id for each in found.decodes], [each.worker_id for each in found.prefills], found.last_resort


def test_a_split_makes_prefill_and_decode_workers_of_equal_ones() -> None:
    assert found_of([auto("a1"), auto("a2")]) == (["a1", "a2"], [], "")
    assert found_of([auto("a1", True), auto("a2")]) == (["a2"], ["a1"], "")
    answered = placed(ask(), auto("a1", True), auto("a2"))
    assert (answered.mode, answered.prefill, answered.decode) == ("disaggregated", "a1", "a2")


def test_a_prefill_worker_takes_prompts_for_others_and_a_decode_worker_does_not() -> None:
    assert view("p1", "prefill").takes_prompts
    assert not view("d1", "decode").takes_prompts
    assert not auto("a1").takes_prompts


def test_where_nobody_answers_those_that_take_prompts_do() -> None:
    assert found_of([auto("a1", True), auto("a2", True)]) == (["a1", "a2"], [], _LAST)
    answered = placed(ask(), auto("a1", True), auto("a2", True), settings=DISAGGREGATED)
    assert (answered.mode, answered.prefill) == ("local", None)
    assert _LAST in answered.reasons


def test_a_fixed_prefill_worker_still_computes_for_those_of_the_last_resort() -> None:
    assert found_of([view("p1", "prefill"), auto("a1", True)]) == (["a1"], ["p1"], _LAST)


def test_a_request_waits_for_answering_workers_that_are_full() -> None:
    full = load(running=PlacementSettings().sequences_per_worker_max)
    found = decide(ask(), [auto("a1", True), auto("a2", load=full)])
    assert isinstance(found, Unplaced)
    assert found.code == "queue_full"


def test_who_takes_prompts_decodes_before_who_failed_the_request() -> None:
    workers = [auto("a1", True), auto("a2")]
    assert found_of(workers, excluded=(("a2", 1),)) == (["a1"], [], _LAST)
    assert found_of(workers, excluded=(("a1", 1),)) == (["a2"], [], "")
    both = (("a1", 1), ("a2", 1))
    assert found_of(workers, excluded=both) == (
        ["a1", "a2"],
        [],
        "only workers that already failed this request are left",
    )


def test_who_failed_the_request_and_is_full_keeps_nobody_from_it() -> None:
    full = load(running=PlacementSettings().sequences_per_worker_max)
    busy = auto("a2")
    busy.loaded(full, 0.0, 0.1)
    assert found_of([auto("a1", True), busy], excluded=(("a2", 1),)) == (["a1"], [], _LAST)
    found = decide(ask(excluded=(("a2", 1),)), [busy])
    assert isinstance(found, Unplaced)
    assert found.code == "queue_full", "alone it is waited for"


def test_an_overdue_one_comes_last_of_all() -> None:
    late = auto("a1", True)
    late.loaded(load(overdue_s=3.0), 0.0, 0.1)
    assert found_of([late, auto("a2")]) == (["a2"], [], "")
    assert found_of([late, auto("a2", True)]) == (["a2"], [], _LAST)
    assert found_of([late]) == (["a1"], [], "only workers whose engine's step is overdue are left")


def test_a_request_that_may_not_be_handed_off_is_answered_there_too() -> None:
    assert found_of([auto("a1", True)], local_only=True) == (["a1"], [], _LAST)


def test_streams_that_began_before_the_change_make_a_prompt_dearer_there() -> None:
    streams = Work(8, context_tokens=8 * 4000)
    idle, busy = auto("a1", True), auto("a2", True)
    for worker in (idle, busy):
        worker.loaded(load(running=8 if worker is busy else 0), 0.0, 0.1)
    busy.submitted(0.0, streams)
    answered = placed(ask(2000), idle, busy, auto("a3"))
    costs = {str(candidate): cost for candidate, cost in answered.costs}
    assert costs["a2→a3"].interference_ms > costs["a1→a3"].interference_ms
    assert costs["a2→a3"].total_ms > costs["a1→a3"].total_ms


@given(
    kinds=st.lists(st.sampled_from(["prefill", "decode", "unified", "auto", "auto prompts"]), min_size=1, max_size=6),
    prompt_tokens=st.integers(1, 3000),
    local_only=st.booleans(),
    prefer=st.sampled_from(["auto", "local", "disaggregated"]),
    policy=st.sampled_from(sorted(POLICIES)),
)
def test_a_placement_keeps_to_the_split(
    kinds: list[str], prompt_tokens: int, local_only: bool, prefer: str, policy: str
) -> None:
    workers = [
        view(f"w{number}", kind.split()[0], takes_prompts=kind == "auto prompts") for number, kind in enumerate(kinds)
    ]
    by_id = {worker.worker_id: worker for worker in workers}
    request: PlacementRequest = ask(prompt_tokens, local_only=local_only)
    found = decide(request, workers, settings=replace(PlacementSettings(), prefer=prefer, policy=policy))
    if all(kind == "prefill" for kind in kinds):
        assert isinstance(found, Unplaced)
        return
    assert isinstance(found, Placement)
    answering = [worker for worker in workers if not worker.takes_prompts]
    assert by_id[found.decode].role != "prefill"
    assert not (answering and by_id[found.decode].takes_prompts)
    if found.prefill is not None:
        assert by_id[found.prefill].takes_prompts
        assert found.prefill != found.decode
