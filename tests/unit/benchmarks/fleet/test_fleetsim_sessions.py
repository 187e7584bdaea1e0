"""Closed loops: so many sessions are under way, each goes on from what was answered, and finds it again."""

from itertools import pairwise

import pytest

from benchmarks.fleet.fleet import Fleet, FleetSettings, roles
from benchmarks.fleet.ours import ours
from benchmarks.fleet.peers.catalogue import peer
from benchmarks.fleet.router import Knowledge
from benchmarks.fleet.scenarios import generated
from benchmarks.fleet.scenarios.draws import Surge
from benchmarks.fleet.scenarios.sessions import Agents, Sessions, agents
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Listed, Request, Stage, Workload

BLOCK = 64
TIME = StepTime(base_s=0.01, sequence_s=1e-4, read_s=1e-7, token_s=5e-5, context_s=2e-9)
WORKER = WorkerSettings(200_000, BLOCK, TIME, max_batched_tokens=512, max_sequences=64)
ONE = FleetSettings(roles(unified=1), WORKER)


class First:
    """Everything goes to the first worker, or by way of it to the second."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._placed = (1, 0) if knowledge.workers[0].role == "prefill" else (0, -1)

    def place(self, request: Request, now: float) -> tuple[int, int] | None:
        return self._placed

    def first_token(self, request: Request, now: float) -> None: ...

    def finished(self, request: Request, now: float) -> None: ...

    def transferred(self, request: Request, tokens: int, seconds: float) -> None: ...


def turns(requests: list[Request]) -> list[list[Request]]:
    """By session: the last block of a prompt is its own."""
    found: dict[int, list[Request]] = {}
    for request in requests:
        found.setdefault(request.blocks[-1] >> 16, []).append(request)
    return list(found.values())


def ideal(sessions: Sessions, service_s: float) -> list[Request]:
    """Played by a machine that answers every request after so long."""
    answering: list[tuple[float, Request]] = []
    while True:
        next_s = sessions.next_s
        if answering and (next_s is None or answering[0][0] <= next_s):
            now, request = answering.pop(0)
            request.end_s = now
            sessions.ended(request, now)
        elif next_s is not None:
            request = sessions.take()
            answering.append((next_s + service_s, request))
        else:
            return sessions.requests


def test_a_list_gives_its_requests_in_order_and_waits_for_nothing() -> None:
    requests = [Request(number, float(number), (number,), BLOCK, 10, 2, 2) for number in range(3)]
    source = Listed(requests)
    taken = []
    while (at_s := source.next_s) is not None:
        taken.append((at_s, source.take()))
    assert taken == [(request.arrival_s, request) for request in requests]


def test_an_answer_with_names_is_found_by_the_next_turn() -> None:
    first = Request(0, 0.0, (1, 2), BLOCK, 128, 150, 150, answer=(3, 4))
    second = Request(1, 100.0, (1, 2, 3, 4, 5), BLOCK, 320, 2, 2)
    unnamed = Request(2, 200.0, (11, 12), BLOCK, 128, 150, 150)
    third = Request(3, 300.0, (11, 12, 13, 14, 15), BLOCK, 320, 2, 2)
    work = Workload("turns", (Stage(1.0, 1.0, (first, second, unnamed, third)),))
    fleet = Fleet(ONE, First)
    fleet.run(work, check_every=1)
    assert (second.reused, second.computed) == (256, 64)
    assert (third.reused, third.computed) == (128, 192)
    assert fleet.workers[0].pool.used == 0


def test_the_last_token_of_an_answer_has_no_kv() -> None:
    for output, blocks in ((64, 0), (65, 1), (128, 1), (129, 2)):
        request = Request(0, 0.0, (1, 2), BLOCK, 128, output, 200, answer=(3, 4))
        fleet = Fleet(ONE, First)
        fleet.run(Workload("one", (Stage(1.0, 1.0, (request,)),)), check_every=1)
        assert fleet.workers[0].leading((1, 2, 3, 4)) == 2 + blocks


def test_the_router_hears_of_answers_and_only_the_decode_worker_has_them() -> None:
    request = Request(0, 0.0, (1, 2), BLOCK, 128, 150, 150, answer=(3, 4))
    fleet = Fleet(FleetSettings(roles(prefill=1, decode=1), WORKER), First)
    fleet.run(Workload("one", (Stage(1.0, 1.0, (request,)),)), check_every=1)
    after = Request(1, 0.0, (1, 2, 3, 4), BLOCK, 256, 2, 2)
    fleet.knowledge.renew(1_000.0)
    held = fleet.knowledge.index.longest(fleet.knowledge.names(after))
    assert {worker: each.total for worker, each in held.items()} == {"w000": 2, "w001": 4}


def test_an_answer_that_was_preempted_is_named_all_the_same() -> None:
    small = FleetSettings(roles(unified=1), WorkerSettings(3_000, BLOCK, TIME, max_batched_tokens=512))
    requests = tuple(
        Request(
            number,
            0.0,
            tuple(range(100 * number, 100 * number + 16)),
            BLOCK,
            1_024,
            600,
            600,
            answer=tuple(range(100 * number + 16, 100 * number + 25)),
        )
        for number in range(2)
    )
    fleet = Fleet(small, First)
    fleet.run(Workload("two", (Stage(1.0, 1.0, requests),)), check_every=1)
    assert requests[1].preempted == 1
    assert fleet.workers[0].leading(requests[1].blocks + requests[1].answer) == 25


def test_sessions_go_on_from_what_was_said() -> None:
    requests = ideal(Sessions(1, 20, 200.0), 1.0)
    for session in turns(requests):
        assert len(session) <= Agents().turns[1]
        for before, after in pairwise(session):
            said = before.blocks + before.answer
            assert after.blocks[: len(said)] == said
            assert len(after.blocks) > len(said)
            assert after.arrival_s > before.end_s
    assert len(requests) > 200
    assert all(request.input_tokens == len(request.blocks) * BLOCK for request in requests)
    assert all(request.input_tokens + request.output_tokens < 33_000 for request in requests)
    heads = {request.blocks[0] for request in requests}
    assert len(heads) <= Agents().applications[1], "sessions of an application begin alike"


def test_as_many_are_under_way_as_were_asked_for_and_more_in_a_surge() -> None:
    sessions = Sessions(3, 10, 100.0, surge=Surge(40.0, 60.0, 1.5))
    seen: list[tuple[float, int]] = []
    answering: list[tuple[float, Request]] = []
    while (next_s := sessions.next_s) is not None or answering:
        if answering and (next_s is None or answering[0][0] <= next_s):
            now, request = answering.pop(0)
            request.end_s = now
            sessions.ended(request, now)
            seen.append((now, len(sessions._coming) + len(sessions._waiting)))
        else:
            assert next_s is not None
            answering.append((next_s + 0.5, sessions.take()))
    assert {count for _, count in seen} == {15, *range(10, 15)}
    assert seen[-1][1] == 10, "those of the surge go when it is over"
    before = [request for request in sessions.requests if request.arrival_s < 40]
    during = [request for request in sessions.requests if 42 <= request.arrival_s < 60]
    assert len(during) / 18 > 1.1 * len(before) / 40


def contents(sessions: list[list[Request]]) -> dict[int, list[tuple[tuple[int, ...], int]]]:
    return {each[0].blocks[-1] >> 16: [(one.blocks, one.output_tokens) for one in each] for each in sessions}


def test_how_fast_they_are_answered_changes_no_sessions_contents() -> None:
    fast, slow = (contents(turns(ideal(Sessions(5, 8, 150.0), service_s))) for service_s in (0.1, 2.0))
    common = fast.keys() & slow.keys()
    assert len(common) >= 8
    for number in common:
        shorter = min(len(fast[number]), len(slow[number]))
        assert fast[number][:shorter] == slow[number][:shorter]
    assert contents(turns(ideal(Sessions(6, 8, 150.0), 0.1))) != fast


def test_a_loop_lasts_until_it_has_its_requests_but_not_for_ever() -> None:
    assert len(ideal(Sessions(1, 5, 10.0, requests_min=40), 0.1)) == 40
    endless = ideal(Sessions(1, 1, 10.0, requests_min=10_000), 0.1)
    assert max(request.arrival_s for request in endless) < 40.0


def test_who_is_refused_begins_anew() -> None:
    sessions = Sessions(1, 1, 1_000.0)
    first = sessions.take()
    sessions.ended(first, 1.0)
    assert sessions.next_s is not None
    assert sessions.next_s > 1.0
    second = sessions.take()
    assert second.blocks[-1] >> 16 != first.blocks[-1] >> 16


@pytest.mark.parametrize("of_workers", [roles(unified=4), roles(prefill=2, decode=2)], ids=["unified", "apart"])
@pytest.mark.parametrize("policy", ["ours", "llm-d precise 2:1"])
def test_a_fleet_serves_sessions_and_finds_most_of_every_prompt(of_workers: tuple[str, ...], policy: str) -> None:
    settings = generated.fleet(of_workers, itl_target_s=0.05)
    figures = []
    for _ in range(2):
        decider = ours(generated.ours_settings(), 0) if policy == "ours" else peer(policy, 0)
        work = agents(2, 12, 60.0)
        fleet = Fleet(settings, decider)
        figures.append(fleet.run(work, check_every=500))
        assert all(request.ended for request in work.requests)
        assert all(worker.due is None and worker.pool.used == 0 for worker in fleet.workers)
    assert figures[0] == figures[1]
    assert figures[0].hit_ratio > 0.6
