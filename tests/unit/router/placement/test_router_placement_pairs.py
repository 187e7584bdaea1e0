"""Placement over pairs: only those known to carry are used, and the decision says what was left out and why."""

from dataclasses import replace

from router.placement import Placement, PlacementRequest, Unplaced, WorkerView
from router.placement.pairs import Pairs, PairView
from router.settings import PlacementSettings
from tests.unit.router.placement.test_router_placement import SETTINGS, ask, decide, load, view

GOOD = PairView(True, "", "shm")
OPEN = PairView(False, "open after kv_corrupt (…)")
P0, P1 = view("p0", "prefill"), view("p1", "prefill")
D0, D1 = view("d0", "decode"), view("d1", "decode")


def placed(
    pairs: Pairs | None,
    *workers: WorkerView,
    request: PlacementRequest | None = None,
    settings: PlacementSettings = SETTINGS,
) -> Placement:
    found = decide(request or ask(), workers, settings=settings, pairs=pairs)
    assert isinstance(found, Placement), found
    return found


def test_a_pair_that_nobody_has_looked_at_is_left_out_and_wanted() -> None:
    found = placed({}, P0, D0)
    assert (found.mode, found.unproved) == ("local", (("p0", "d0"),))
    assert "no pair with it has been proved" in found.reasons[0]
    assert "p0→d0 left out: not proved yet" in found.reasons


def test_a_pair_whose_canary_is_under_way_is_left_out_but_not_wanted_again() -> None:
    found = placed({("p0", "d0"): PairView(False, "not proved yet")}, P0, D0)
    assert (found.mode, found.unproved) == ("local", ())


def test_an_open_pair_is_avoided_by_way_of_another_worker_on_either_side() -> None:
    pairs = {("p0", "d0"): OPEN, ("p1", "d0"): GOOD, ("p0", "d1"): GOOD, ("p1", "d1"): OPEN}
    found = placed(pairs, P0, P1, D0)
    assert (found.prefill, found.decode, found.path) == ("p1", "d0", "shm")
    assert "p0→d0 left out: open after kv_corrupt (…)" in found.reasons
    other = placed(pairs, P0, D0, D1)
    assert (other.prefill, other.decode) == ("p0", "d1")


def test_pairs_with_the_same_reason_share_a_sentence() -> None:
    found = placed(dict.fromkeys([("p0", "d0"), ("p1", "d0")], OPEN), P0, P1, D0)
    assert found.mode == "local"
    assert "p0→d0, p1→d0 left out: open after kv_corrupt (…)" in found.reasons


def test_where_hand_offs_are_preferred_decode_still_computes_what_no_pair_carries() -> None:
    always = replace(SETTINGS, prefer="disaggregated")
    assert placed({("p0", "d0"): OPEN}, P0, D0, settings=always).mode == "local"
    found = placed({("p0", "d0"): OPEN, ("p0", "d1"): GOOD}, P0, D0, D1, settings=always)
    assert (found.mode, found.decode) == ("disaggregated", "d1")


def test_cheaper_prefill_workers_that_do_not_carry_do_not_hide_one_that_does() -> None:
    idle = [view(f"p{index}", "prefill") for index in range(SETTINGS.candidates_max + 2)]
    last = view("q", "prefill", load=load(queued_prompt_tokens=10))
    pairs = {(worker.worker_id, "d0"): OPEN for worker in idle} | {("q", "d0"): GOOD}
    always = replace(SETTINGS, prefer="disaggregated")
    assert placed(pairs, *idle, last, D0, settings=always).prefill == "q"


def test_nothing_is_said_of_pairs_that_a_request_does_not_need() -> None:
    short = placed({}, P0, D0, request=ask(8))
    assert (short.mode, short.unproved) == ("local", ())
    assert not any("proved" in reason for reason in short.reasons)


def test_without_pairs_all_are_trusted() -> None:
    found = placed(None, P0, D0)
    assert (found.mode, found.path, found.unproved) == ("disaggregated", "", ())


def test_a_worker_that_is_not_ready_gets_nothing() -> None:
    found = decide(ask(), [replace(D0, ready=False)])
    assert isinstance(found, Unplaced)
    assert found.code == "no_workers"
    assert found.reasons == ("d0 left out: not ready yet",)
    assert placed(None, replace(P0, ready=False), D0).mode == "local"
