"""Who enters a simulated worker, and when: order, budget, exports, hand-overs, and reservations that give way."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fleet.fleet import Fleet, FleetSettings, roles
from benchmarks.fleet.idle_reservations import FreeCapacity, Shortage, preempted_handoffs
from benchmarks.fleet.queueing import Waiting
from benchmarks.fleet.router import Knowledge
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker_request import WorkerRequest
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request, Stage, Workload
from tandem.engine.scheduler.step_rules import order_of
from tests.unit.benchmarks.fleet.test_fleetsim_fleet import ALL, REQUESTS, Alternating, Drawn, workload

BLOCK = 16
TIME = StepTime(base_s=0.01, sequence_s=1e-4, read_s=1e-7, token_s=5e-5, context_s=2e-9)
WORKER = WorkerSettings(16_000, BLOCK, TIME).as_in_production()
APART = FleetSettings(roles(prefill=1, decode=1), WORKER)


class ByNumber:
    """Even requests through the prefill worker, odd ones on the decode worker alone."""

    def __init__(self, knowledge: Knowledge) -> None: ...

    def place(self, request: Request, now: float) -> tuple[int, int]:
        return 1, -1 if request.number % 2 else 0

    def first_token(self, request: Request, now: float) -> None: ...

    def finished(self, request: Request, now: float) -> None: ...

    def transferred(self, request: Request, tokens: int, seconds: float) -> None: ...


def request(number: int, tokens: int, output: int, at_s: float = 0.0, priority: int = 0) -> Request:
    blocks = tuple(number << 20 | place for place in range(-(-tokens // BLOCK)))
    return Request(number, at_s, blocks, BLOCK, tokens, output, output, priority=priority)


def job(number: int, *, prefill_only: bool = False, handed_over: bool = False, bring: int = 0) -> WorkerRequest:
    made = WorkerRequest(request(number, 100, 5), prefill_only=prefill_only, handed_over=handed_over)
    made.order, made.bring = order_of(0, number), bring
    return made


def play(fleet_settings: FleetSettings, requests: list[Request], **kind: type) -> Fleet:
    fleet = Fleet(fleet_settings, kind.get("decider", ByNumber))
    fleet.run(Workload("some", (Stage(1.0, 1.0, tuple(requests)),)), check_every=1)
    return fleet


def test_without_budget_only_hand_overs_enter_and_a_few_whose_blocks_are_brought() -> None:
    waiting = Waiting()
    compute, bring, fetch = job(1), job(2, bring=3), job(3, handed_over=True)
    for each in (fetch, bring, compute):
        waiting.push(each)
    yes = [compute, bring, fetch]
    assert waiting.head(True, 9, 4, lambda job: True) is yes[0]
    assert waiting.head(False, 3, 4, lambda job: True) is bring
    assert waiting.head(False, 4, 4, lambda job: True) is fetch


def test_a_prompt_that_waits_for_exports_does_not_hold_up_the_others() -> None:
    waiting = Waiting()
    exported, fetch = job(1, prefill_only=True), job(2, handed_over=True)
    waiting.push(exported)
    waiting.push(fetch)
    assert waiting.head(True, 0, 4, lambda job: True) is exported
    assert waiting.head(True, 0, 4, lambda job: False) is fetch


def test_a_hand_over_reserves_its_room_while_another_prompt_has_all_the_budget() -> None:
    # A long prompt fills every step of the decode worker; the hand-over comes behind it.
    requests = [request(1, 12_000, 2), request(2, 1_600, 5, at_s=0.001)]
    reserved: list[float] = []

    class Watching(Fleet):
        def reserved(self, job: WorkerRequest, now: float) -> None:
            reserved.append(now)
            super().reserved(job, now)

    fleet = Watching(APART, ByNumber)
    fleet.run(Workload("some", (Stage(1.0, 1.0, tuple(requests)),)), check_every=1)
    # At the first boundary between steps, with 10,000 tokens of the long prompt still to compute.
    assert reserved[0] < requests[0].first_s / 3
    assert requests[1].end_s < requests[0].end_s


def test_nothing_travels_before_the_decode_worker_has_room_for_it() -> None:
    # The first request leaves too little room for the second until it ends.
    requests = [request(1, 9_000, 300), request(2, 9_000, 5, at_s=0.01)]
    fleet = play(replace(APART, transfer_tokens_per_s=100_000.0), requests)
    assert requests[1].first_s < requests[0].end_s, "prefill goes ahead"
    assert requests[1].gaps.longest_s == pytest.approx(
        requests[0].end_s - requests[1].first_s + 0.09 + fleet._settings.transfer_s + 0.011, rel=0.02
    )


def test_the_more_urgent_is_first_and_the_least_urgent_gives_way() -> None:
    one = FleetSettings(roles(unified=1), replace(WORKER, kv_tokens=4_000, max_sequences=2))

    class Here(ByNumber):
        def place(self, request: Request, now: float) -> tuple[int, int]:
            return 0, -1

    requests = [request(number, 500, 50, at_s=0.001 * number, priority=number // 2) for number in range(6)]
    play(one, requests, decider=Here)
    # The first was alone; then by priority, and within one by arrival.
    assert sorted(range(6), key=lambda number: requests[number].first_s) == [0, 4, 5, 2, 3, 1]
    grown = [request(number, 1_500, 700, at_s=0.001 * number, priority=number == 0) for number in range(2)]
    play(replace(one, worker=replace(one.worker, max_sequences=8)), grown, decider=Here)
    assert [each.preempted for each in grown] == [0, 1]
    grown = [request(number, 1_500, 700, at_s=0.001 * number, priority=number == 1) for number in range(2)]
    play(replace(one, worker=replace(one.worker, max_sequences=8)), grown, decider=Here)
    assert [each.preempted for each in grown] == [1, 0]


def test_exports_keep_to_their_share_of_the_pool() -> None:
    # Transfers take long, so prompts that have been computed hold their blocks.
    slow = replace(APART, transfer_tokens_per_s=2_000.0)
    most: list[int] = []

    class Looking(ByNumber):
        def __init__(self, knowledge: Knowledge) -> None:
            self._knowledge = knowledge

        def place(self, request: Request, now: float) -> tuple[int, int]:
            most.append(self._knowledge.load(0).blocks_exported * BLOCK)
            return 1, 0

    requests = [request(2 * number, 1_600, 2, at_s=0.1 * number) for number in range(20)]
    play(slow, requests, decider=Looking)
    assert 0.3 * WORKER.kv_tokens < max(most) <= WORKER.export_share * WORKER.kv_tokens
    assert all(each.ended for each in requests)


@given(REQUESTS, st.sampled_from(ALL), st.integers(1_100, 2_500))
@settings(max_examples=60, deadline=None)
def test_small_pools_that_hand_over_to_each_other_do_not_stand_still(
    drawn: list[Drawn], fleet_settings: FleetSettings, kv_tokens: int
) -> None:
    worker = replace(fleet_settings.worker, kv_tokens=kv_tokens)
    work = workload(drawn)
    fleet = Fleet(replace(fleet_settings, roles=roles(prefill=2, decode=1), worker=worker), Alternating)
    fleet.run(work, check_every=1)
    assert all(request.emitted == request.output_tokens for request in work.requests)


def test_idle_reservations_make_room_for_who_is_ready_and_after_a_while_for_anybody() -> None:
    idle, other, ready = job(1, handed_over=True), job(5, handed_over=True), job(6, handed_over=True)
    ready.ready = True
    idle.private = 100
    free = FreeCapacity(10, 5)

    def given_way(waiting: WorkerRequest, now: float, wanted: int = 90) -> list[WorkerRequest]:
        return preempted_handoffs([idle], Shortage(waiting, wanted), free, 2.0, now, lambda job: job.private)

    assert given_way(other, 1.0) == []
    assert given_way(ready, 1.0) == [idle]
    assert given_way(other, 2.0) == [idle]
    assert given_way(ready, 1.0, wanted=111) == [], "it would not fit even so"
    assert given_way(ready, 1.0, wanted=10) == [], "it fits already"
    idle.idle_turns = 1
    assert given_way(other, 2.0) == []
    idle.room_made = 4
    assert given_way(ready, 2.0) == []
    idle.room_made, idle.untouched = 0, False
    assert given_way(ready, 2.0) == [], "its blocks have begun to come"
