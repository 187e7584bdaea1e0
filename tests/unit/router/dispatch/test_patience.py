"""When a prefill counts as standing still, and what of a decode work's wait counts: the pure rules."""

from dataclasses import dataclass, field
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.fetch_progress import FetchProgress, PrefillStatus
from kv_transfer.transport.protocol import Alive
from router.dispatch.stall_timeout import STEPS, call_off_s, due, earliest, next_look, stall_timeout_s
from tandem.core.deadlines import Deadlines
from tandem.core.messages import Load
from tandem.engine.protocol import FetchJob
from tandem.engine.scheduler.request_deadlines import RequestDeadlines, Wait

DEADLINES = Deadlines()
TIMES = st.floats(0.0, 1e4)
STEP_S = st.floats(0.0, 30.0)


def leg(step_s: float | None, progressed_s: float, *, computes: bool = False) -> Any:
    load = None if step_s is None else Load(0, 0, 0, 9, 0, 0, 0.0, 0.0, 0.0, 0, longest_step_s=step_s)
    peer = SimpleNamespace(view=SimpleNamespace(load=load))
    return SimpleNamespace(peer=peer, progressed_s=progressed_s, computes_prompt=computes)


def attempt(prefill: Any, decode: Any, since: float) -> Any:
    worker_streams = [each for each in (prefill, decode) if each is not None]
    return SimpleNamespace(
        prefill=prefill,
        decode=decode,
        first={0: 1},
        patient_since=since,
        progressed_s=max(each.progressed_s for each in worker_streams),
        calls_off=None,
        calls_off_until=0.0,
    )


def positions(next_position: int = 1, moved_s: float = 0.0) -> Any:
    return SimpleNamespace(sequence=0, next_position=next_position, moved_s=moved_s)


MOST_S = DEADLINES.standstill_max_s


@given(step_s=STEP_S, bound_s=st.floats(0.1, 60.0), most_s=st.floats(0.1, 60.0))
def test_a_prompt_may_stand_still_for_its_bound_or_ten_steps(step_s: float, bound_s: float, most_s: float) -> None:
    found = stall_timeout_s(step_s, bound_s, most_s)
    assert found >= bound_s
    assert found >= min(STEPS * step_s, most_s)
    assert found <= max(bound_s, most_s)
    assert found in (bound_s, STEPS * step_s, most_s) or step_s == 0.0


def test_where_no_step_was_measured_a_prompt_is_waited_for_longer_than_short_steps_allow() -> None:
    assert stall_timeout_s(0.0, 5.0, MOST_S) == 30.0
    assert stall_timeout_s(0.02, 5.0, MOST_S) == 5.0
    assert stall_timeout_s(2.0, 5.0, MOST_S) == 20.0


def test_however_long_steps_are_a_prompt_may_not_stand_still_for_ever() -> None:
    running = attempt(leg(1e4, 0.0), leg(1e4, 0.0), 0.0)
    assert due(running, positions(), DEADLINES) == MOST_S + DEADLINES.heartbeat_every_s
    assert due(attempt(None, leg(1e4, 0.0, computes=True), 0.0), positions(), DEADLINES) == MOST_S


@given(
    step_s=st.none() | STEP_S,
    queue_s=st.floats(0.1, 60.0),
    kv_wait_s=st.floats(0.1, 60.0),
    prefill_progress_s=st.floats(0.1, 120.0),
)
def test_the_router_judges_before_whoever_holds_or_brings_the_blocks(
    step_s: float | None, queue_s: float, kv_wait_s: float, prefill_progress_s: float
) -> None:
    deadlines = Deadlines(queue_s=queue_s, kv_wait_s=kv_wait_s, prefill_progress_s=prefill_progress_s)
    judged = due(attempt(leg(step_s, 100.0), leg(0.01, 0.0), 100.0), positions(), deadlines)
    pulling = FetchProgress(FetchJob(1, ()), deadlines, 64, started=100.0, prefilled=PrefillStatus())
    assert pulling.deadline() > judged
    assert 100.0 + deadlines.unjudged_s > judged, "the bound of the holder"


@given(step_s=st.none() | st.floats(0.0, 1e4))
def test_a_prefill_that_is_called_off_has_a_step_to_end_in_and_no_more_than_its_bound(step_s: float | None) -> None:
    found = call_off_s(leg(step_s, 0.0), DEADLINES)
    assert 1.0 <= found <= DEADLINES.prefill_progress_s
    assert found >= min(step_s or 0.0, DEADLINES.prefill_progress_s)


@given(since=TIMES, prefill_s=TIMES, decode_s=TIMES, step_s=st.none() | STEP_S)
def test_only_what_prefill_says_counts_while_it_computes(
    since: float, prefill_s: float, decode_s: float, step_s: float | None
) -> None:
    running = attempt(leg(step_s, prefill_s), leg(0.01, decode_s), since)
    quiet = attempt(leg(step_s, prefill_s), leg(0.01, 0.0), since)
    at = due(running, positions(), DEADLINES)
    assert at == due(quiet, positions(), DEADLINES)
    steps_s = min(STEPS * (step_s or 0.0), MOST_S)
    assert at >= max(since, prefill_s) + max(DEADLINES.prefill_progress_s, steps_s)


@given(since=TIMES, told=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=20), step_s=STEP_S)
def test_a_prefill_that_gets_on_in_time_is_never_due(since: float, told: list[float], step_s: float) -> None:
    """However many steps it takes: each word of progress is in time where the gaps are shorter than the bound."""
    bound_s, now = stall_timeout_s(step_s, DEADLINES.prefill_progress_s, MOST_S), since
    prefill = leg(step_s, 0.0)
    running = attempt(prefill, leg(0.01, 0.0), since)
    for gap in told:
        now += gap % bound_s
        assert now <= due(running, positions(), DEADLINES)
        prefill.progressed_s = now


@given(since=TIMES, decode_s=TIMES, step_s=STEP_S)
def test_a_worker_that_computes_the_prompt_itself_ends_a_wait_for_a_place_before_its_router_does(
    since: float, decode_s: float, step_s: float
) -> None:
    at = due(attempt(None, leg(step_s, decode_s, computes=True), since), positions(), DEADLINES)
    assert at > max(since, decode_s) + DEADLINES.queue_s
    assert at >= max(since, decode_s) + min(STEPS * step_s, MOST_S)


def test_a_prefill_that_is_called_off_has_a_bound_of_its_own() -> None:
    ending = attempt(None, leg(0.01, 0.0), 100.0)
    ending.calls_off, ending.calls_off_until = leg(0.01, 0.0), 101.0
    assert next_look(ending, [positions()], DEADLINES, 100.0) == 101.0


def test_of_several_sequences_the_first_that_is_due_is_looked_at() -> None:
    running = attempt(None, leg(0.01, 0.0), 0.0)
    late, soon = positions(5, moved_s=50.0), positions(5, moved_s=20.0)
    assert earliest(running, [late, soon], DEADLINES) == (20.0 + DEADLINES.inter_token_s, soon)


@pytest.mark.parametrize(
    ("computes", "next_position", "told_s", "bound_s"),
    [
        # The first token of a worker that computes the prompt itself: it has its bound on the wait for a place.
        (True, 1, 60.0, MOST_S),
        # The second one waits for nothing any more, but where the blocks come from prefill.
        (True, 2, 0.0, DEADLINES.inter_token_s),
        (False, 2, 0.0, MOST_S),
        (False, 2, 60.0, MOST_S),
        (False, 3, 0.0, DEADLINES.inter_token_s),
        (False, 3, 60.0, DEADLINES.inter_token_s),
    ],
)
def test_a_sequence_is_due_so_long_after_it_moved_or_its_worker_said_that_it_gets_on(
    computes: bool, next_position: int, told_s: float, bound_s: float
) -> None:
    """A stream whose worker has died stands still for no longer; a hand-over that is slow is not taken for a loss."""
    running = attempt(None, leg(0.01, told_s, computes=computes), 20.0)
    at = due(running, positions(next_position, moved_s=50.0), DEADLINES)
    assert at == max(20.0 if next_position == 1 else 50.0, told_s) + bound_s


def test_a_prefill_is_due_after_its_bound_and_the_heartbeat_that_tells_of_it() -> None:
    running = attempt(leg(0.02, 103.0), leg(0.01, 200.0), 100.0)
    assert due(running, positions(), DEADLINES) == 103.0 + DEADLINES.prefill_progress_s + DEADLINES.heartbeat_every_s
    running.patient_since = 104.0
    assert due(running, positions(), DEADLINES) == 104.0 + DEADLINES.prefill_progress_s + DEADLINES.heartbeat_every_s


def test_a_stream_is_looked_at_four_times_until_it_is_due_and_then_in_time() -> None:
    running, look_s = attempt(None, leg(0.01, 0.0), 0.0), DEADLINES.inter_token_s / 4
    running.missing = None
    stream, at = positions(5, moved_s=20.0), 20.0 + DEADLINES.inter_token_s
    assert next_look(running, [stream], DEADLINES, 20.0) == 20.0 + look_s
    assert next_look(running, [stream], DEADLINES, at - look_s / 2) == at


# ---- decode's side ----


@dataclass
class Waiting:
    """A work of `tandem.engine.scheduler.request_deadlines`."""

    work_id: int
    waits_since: float
    waits_for_prefill: bool
    wait: Wait = Wait.PLACE
    begun: bool = False
    work: Any = field(default_factory=lambda: SimpleNamespace(deadline=1000.0))


@given(over=st.floats(0.0, 500.0), look_every=st.floats(0.3, 7.0))
def test_a_hand_off_waits_for_its_place_only_from_the_end_of_its_prefill(over: float, look_every: float) -> None:
    works = {1: Waiting(1, 0.0, waits_for_prefill=True)}
    deadlines: RequestDeadlines[Waiting] = RequestDeadlines(works, 10.0)
    deadlines.watch(works[1], 0.0)
    now, told = 0.0, False
    while not (due_now := list(deadlines.passed(now))):
        now += look_every
        if now >= over and not told:
            works[1].waits_for_prefill, works[1].waits_since, told = False, now, True
            deadlines.watch_wait(works[1])
            since = now
        assert deadlines.next() < inf
    assert told
    assert now >= since + 10.0
    assert now < since + 10.0 + look_every
    assert "for a place" in due_now[0][1]


def test_a_hand_off_that_never_hears_of_its_prefill_ends_with_its_request() -> None:
    works = {1: Waiting(1, 0.0, waits_for_prefill=True)}
    deadlines: RequestDeadlines[Waiting] = RequestDeadlines(works, 10.0)
    deadlines.watch(works[1], 0.0)
    assert not list(deadlines.passed(999.0))
    ((_, reason),) = deadlines.passed(1000.0)
    assert "the request's deadline" in reason


def test_an_answer_that_has_begun_keeps_its_turn_for_a_place_until_its_request_ends() -> None:
    works = {1: Waiting(1, 0.0, waits_for_prefill=False, begun=True)}
    deadlines: RequestDeadlines[Waiting] = RequestDeadlines(works, 10.0)
    deadlines.watch(works[1], 0.0)
    assert not list(deadlines.passed(999.0))
    ((_, reason),) = deadlines.passed(1000.0)
    assert "the request's deadline" in reason


# ---- the receiver of a hand-off ----


def progress(prefilled: PrefillStatus | None) -> FetchProgress:
    return FetchProgress(FetchJob(1, ()), DEADLINES, 64, started=100.0, prefilled=prefilled)


def test_a_holder_that_computes_may_be_silent_until_its_router_should_have_judged() -> None:
    prefilled = PrefillStatus()
    pulling = progress(prefilled)
    assert pulling.deadline() == 100.0 + DEADLINES.unjudged_s
    pulling.heard(Alive(), 103.0)
    assert pulling.deadline() == 103.0 + DEADLINES.unjudged_s
    prefilled.known(104.0)
    assert pulling.deadline() == 104.0 + DEADLINES.transfer_progress_s
    prefilled.known(105.0)
    assert pulling.deadline() == 104.0 + DEADLINES.transfer_progress_s


def test_a_holder_that_computes_has_no_longer_to_answer_for_that() -> None:
    """Else where nothing gets through would be found out late."""
    prefilled = PrefillStatus()
    pulling = progress(prefilled)
    assert pulling.answer_s(101.0) == DEADLINES.prefill_progress_s
    assert pulling.answer_s(100.0 + DEADLINES.unjudged_s - 1.0) == 1.0
    prefilled.known(104.0)
    assert pulling.answer_s(104.5) == DEADLINES.transfer_progress_s - 0.5
    assert progress(None).answer_s(100.5) == DEADLINES.transfer_progress_s - 0.5


def test_a_holder_that_computes_nothing_may_be_silent_for_a_transfers_bound() -> None:
    assert progress(None).deadline() == 100.0 + DEADLINES.transfer_progress_s


def test_whoever_pulls_hears_once_that_the_prompt_is_computed() -> None:
    prefilled, heard = PrefillStatus(), list[int]()
    prefilled.changed = lambda: heard.append(1)
    prefilled.known(1.0)
    prefilled.known(2.0)
    assert (prefilled.at, heard) == (1.0, [1])
