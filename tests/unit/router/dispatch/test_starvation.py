"""Which prompts leave a starved prefill worker, and how fast one is seen to compute what waits there."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.starvation import (
    MOVES_MAX,
    AlternativeWorker,
    PrefillRate,
    PromptAction,
    WaitingPrompt,
    decide_last_resort,
    decide_move,
)

PATIENCE_S = 5.0
WAITS = WaitingPrompt(waited_s=1.0, expected_s=1.0, turn_s=29.0, here_s=30.0, answer_s=4.0, left_s=600.0)
THERE = AlternativeWorker("p1", first_s=2.0, others_s=0.0, answer_s=4.0)
SECONDS = st.floats(0.0, 1000.0)


def test_a_prompt_leaves_for_where_its_first_token_is_clearly_earlier() -> None:
    verdict = decide_move(WAITS, THERE, PATIENCE_S)
    assert verdict.lot is PromptAction.MOVE
    assert "expected in 30.0 s, in 2.0 s on p1" in verdict.reason


@pytest.mark.parametrize("here_s", [3.0, 15.0, 20.9])
def test_it_stays_where_elsewhere_is_not_clearly_earlier(here_s: float) -> None:
    there = replace(THERE, first_s=10.0)
    assert decide_move(replace(WAITS, here_s=here_s), there, PATIENCE_S).lot is PromptAction.STAY


def test_what_others_lose_elsewhere_counts() -> None:
    assert decide_move(WAITS, replace(THERE, others_s=20.0), PATIENCE_S).lot is PromptAction.STAY


def test_it_stays_on_a_worker_that_is_as_busy_as_placement_took_it_to_be() -> None:
    assert decide_move(replace(WAITS, expected_s=28.0), THERE, PATIENCE_S).lot is PromptAction.STAY


def test_it_stays_where_nobody_else_can_take_it() -> None:
    assert decide_move(WAITS, None, PATIENCE_S).lot is PromptAction.STAY


def test_it_goes_where_the_policy_would_not_have_it_only_when_its_client_would_wait_in_vain() -> None:
    assert decide_last_resort(WAITS, THERE).lot is PromptAction.STAY
    assert decide_last_resort(replace(WAITS, left_s=35.0), THERE).lot is PromptAction.MOVE


def test_a_client_that_nobody_can_answer_in_time_is_refused_and_one_in_doubt_is_not() -> None:
    late = replace(THERE, first_s=25.0)
    assert decide_last_resort(replace(WAITS, left_s=10.0), late).lot is PromptAction.REFUSE
    assert decide_last_resort(replace(WAITS, left_s=20.0), late).lot is PromptAction.STAY
    assert decide_last_resort(replace(WAITS, left_s=10.0), None).lot is PromptAction.REFUSE


@given(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS)
def test_two_workers_never_both_are_clearly_earlier_than_the_other(
    here_s: float, there_s: float, waited_s: float, expected_s: float, others_s: float, left_s: float
) -> None:
    """So a prompt cannot go to and fro, also if nothing remembered where it came from."""
    here = WaitingPrompt(waited_s, expected_s, 3.0, here_s, 1.0, left_s)
    there = WaitingPrompt(waited_s, expected_s, 3.0, there_s, 1.0, left_s)
    to = decide_move(here, AlternativeWorker("b", there_s, others_s, 1.0), PATIENCE_S)
    fro = decide_move(there, AlternativeWorker("a", here_s, others_s, 1.0), PATIENCE_S)
    assert PromptAction.STAY in (to.lot, fro.lot)


@given(SECONDS, SECONDS, SECONDS, SECONDS, st.integers(MOVES_MAX, 9))
def test_moves_are_bounded(here_s: float, there_s: float, expected_s: float, left_s: float, moves: int) -> None:
    waits, there = (
        WaitingPrompt(1.0, expected_s, 3.0, here_s, 1.0, left_s, moves),
        AlternativeWorker("b", there_s, 0.0, 1.0),
    )
    assert decide_move(waits, there, PATIENCE_S).lot is PromptAction.STAY
    assert decide_last_resort(waits, there).lot is not PromptAction.MOVE


@given(SECONDS, SECONDS, SECONDS)
def test_nobody_is_refused_who_could_be_answered_in_time(here_s: float, there_s: float, left_s: float) -> None:
    verdict = decide_last_resort(
        WaitingPrompt(1.0, 1.0, 3.0, here_s, 1.0, left_s), AlternativeWorker("b", there_s, 0.0, 1.0)
    )
    assert verdict.lot is not PromptAction.REFUSE or min(here_s, there_s) > left_s


def test_nobody_leaves_a_worker_that_is_well_for_one_that_has_it_later() -> None:
    """Its client waits 8 s more, so it has less to spare than it should, and is in time where it is."""
    waits = WaitingPrompt(waited_s=0.1, expected_s=3.0, turn_s=2.5, here_s=3.0, answer_s=1.0, left_s=8.0)
    assert decide_last_resort(waits, AlternativeWorker("d1", 6.9, 0.0, 1.0)).lot is PromptAction.STAY
    assert decide_last_resort(waits, AlternativeWorker("d1", 2.9, 0.0, 1.0)).lot is PromptAction.MOVE


@given(SECONDS, SECONDS, SECONDS, st.floats(-9.0, 9.0), st.floats(-9.0, 9.0))
def test_who_moves_has_its_first_token_earlier_there(
    here_s: float, expected_s: float, others_s: float, later_s: float, spare_s: float
) -> None:
    there_s = max(0.0, here_s + later_s)
    waits = WaitingPrompt(1.0, expected_s, 3.0, here_s, 1.0, here_s + spare_s)
    there = AlternativeWorker("b", there_s, others_s, 1.0)
    for verdict in (decide_move(waits, there, PATIENCE_S), decide_last_resort(waits, there)):
        assert verdict.lot is not PromptAction.MOVE or there_s < here_s


@pytest.mark.parametrize("begins", [0.0, 1e6])
def test_a_worker_that_runs_in_slices_is_as_fast_as_it_is_over_all_of_them(begins: float) -> None:
    drain = PrefillRate()
    for second in range(40):
        drain.look(begins + 0.5 * second, 100 * (second // 4), 5)
    assert drain.token_s() == pytest.approx(0.02, rel=0.3)


def test_a_worker_that_has_waited_for_work_is_not_slow_by_it() -> None:
    drain = PrefillRate()
    drain.look(0.0, 100, 0)
    drain.look(100.0, 100, 3)
    assert drain.token_s() == 0.0
    drain.look(104.0, 500, 3)
    assert drain.token_s() == pytest.approx(0.01)


def test_the_time_in_which_nothing_waited_does_not_make_a_worker_slow() -> None:
    """Else the first prompts after each pause are moved off it, or refused."""
    drain = PrefillRate()
    for now, computed, waiting in ((0.0, 0, 3), (4.0, 400, 3), (5.0, 500, 0), (100.0, 500, 3), (104.0, 900, 3)):
        drain.look(now, computed, waiting)
    assert drain.token_s() == pytest.approx(0.01)


def test_a_step_that_takes_long_is_not_taken_for_a_worker_that_computes_nothing() -> None:
    """30,000 tokens in each step of 30 s, seen when it has ended."""
    drain, paces = PrefillRate(), list[float]()
    for second in range(150):
        drain.look(float(second), second // 30 * 30_000, 3)
        paces.append(drain.token_s())
    assert set(paces[:30]) == {0.0}
    assert paces[35:] == [pytest.approx(0.001, rel=0.02)] * len(paces[35:])


def test_a_worker_that_gets_slower_is_seen_to_before_its_next_step_ends() -> None:
    drain = PrefillRate()
    for second in range(10):
        drain.look(float(second), second * 100, 3)
    drain.look(60.0, 900, 3)
    assert drain.token_s() >= 0.05


def test_a_cancelled_prompt_takes_nothing_back() -> None:
    drain = PrefillRate()
    for second, computed in enumerate([0, 500, 1000, 600, 1100, 1600]):
        drain.look(2.0 * second, computed, 4)
    assert drain.token_s() == pytest.approx(0.004)


@pytest.mark.parametrize(
    ("looks", "token_s"),
    [
        ([(100.0, 5000)], 0.0),
        ([(100.0, 5000), (101.9, 5400)], 0.0),
        ([(100.0, 5000), (102.0, 5400)], 0.005),
        ([(100.0, 5000), (104.0, 5400)], 0.01),
        # Since it has computed anything it has had time for as much again.
        ([(100.0, 5000), (103.0, 5300), (106.0, 5300), (109.0, 5300)], 0.015),
        # Ten seconds are looked back at.
        ([*((100.0 + s, 100 * s) for s in range(21)), *((120.0 + s, 2000 + 1000 * s) for s in range(1, 13))], 0.001),
        # What it had computed of a prompt that was cancelled counts no more.
        ([(100.0, 5000), (104.0, 5400), (105.0, 5100)], 0.0),
    ],
)
def test_a_worker_is_as_fast_as_what_it_has_computed_of_late(looks: list[tuple[float, int]], token_s: float) -> None:
    """Whoever takes a fast worker for a slow one moves prompts off it, and refuses clients that it would serve."""
    drain = PrefillRate()
    for now, computed in looks:
        drain.look(now, computed, 3)
    assert drain.token_s() == pytest.approx(token_s)


@pytest.mark.parametrize(
    ("here_s", "answer_s", "in_time"), [(30.0, 4.0, True), (30.1, 4.0, False), (0.0, 34.0, True), (0.0, 34.1, False)]
)
def test_a_client_has_its_answer_in_time_with_five_seconds_to_spare(
    here_s: float, answer_s: float, in_time: bool
) -> None:
    assert replace(WAITS, here_s=here_s, answer_s=answer_s, left_s=39.0).in_time == in_time


@pytest.mark.parametrize(("turn_s", "soon"), [(1.9, True), (2.0, False)])
def test_a_turn_that_may_come_before_a_cancel_does_is_soon(turn_s: float, soon: bool) -> None:
    assert replace(WAITS, turn_s=turn_s).soon == soon


@pytest.mark.parametrize(("here_s", "starved"), [(26.0, False), (26.1, True)])
def test_a_prompt_is_starved_where_it_comes_after_twice_its_time_and_the_patience(
    here_s: float, starved: bool
) -> None:
    """11 s were expected; 27 s are twice as long and 5 s more, of which one has passed."""
    assert replace(WAITS, expected_s=11.0, here_s=here_s).starved(PATIENCE_S) == starved


@pytest.mark.parametrize(("here_s", "lot"), [(25.0, PromptAction.STAY), (25.1, PromptAction.MOVE)])
def test_clearly_earlier_is_half_of_the_time_and_a_second(here_s: float, lot: PromptAction) -> None:
    there = replace(THERE, first_s=10.0, others_s=2.0)
    assert decide_move(replace(WAITS, here_s=here_s), there, PATIENCE_S).lot is lot


@pytest.mark.parametrize(("left_s", "lot"), [(20.0, PromptAction.STAY), (19.9, PromptAction.REFUSE)])
def test_who_is_refused_would_have_its_first_token_after_half_as_long_again(left_s: float, lot: PromptAction) -> None:
    assert decide_last_resort(replace(WAITS, left_s=left_s), None).lot is lot
