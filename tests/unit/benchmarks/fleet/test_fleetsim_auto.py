"""Workers of role `auto` in a simulated fleet: a changing split loses nothing, one that stays is a fixed one."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fleet.auto import AutoDecider, auto
from benchmarks.fleet.fleet import Fleet, FleetSettings, roles
from benchmarks.fleet.goodput import Window, judge
from benchmarks.fleet.ours import ours
from benchmarks.fleet.scenarios import generated, sessions
from benchmarks.fleet.workload import Request, Workload
from router.split.values import ObservedRequest, Outlook, Split, WorkerStatus, WorkTimes
from tandem.core.slo import Slo

SLO = Slo(2.0, 0.05)
OURS = generated.ours_settings().holding(SLO)
WORKERS = 4
LOOK_S = OURS.split.look_s
Way = tuple[int, float | None]


class Scripted:
    """One way after the other, a look each, the last for good. Of `k` workers the first ones take prompts, from
    `turn` on where that is set: then every look has others of them."""

    def __init__(self, ways: Sequence[Way], turn: bool = False) -> None:
        self._ways = list(ways)
        self._turn = turn
        self._looks = 0
        self.split = Split(frozenset(), None, "at first")
        self.moves = 0
        self.outlooks: tuple[Outlook, ...] = ()
        self.told: list[ObservedRequest] = []
        self.answers: list[float] = []
        self.ended: dict[bool, int] = {True: 0, False: 0}
        self.times: list[WorkTimes] = []
        self.standings: list[Sequence[WorkerStatus]] = []
        self.looked_s: list[float] = []

    def seen(self, request: ObservedRequest) -> None:
        self.told.append(request)

    @property
    def forecast_error(self) -> float | None:
        return None

    def due(self, now: float) -> bool:
        return False

    def outcome(self, arrival_s: float, met: bool, placed: bool = True) -> None:
        self.ended[met] += 1

    def answered(self, prompt_tokens: int, max_tokens: int, tokens: float) -> None:
        self.answers.append(tokens)

    def look(
        self, now: float, standings: Sequence[WorkerStatus], times: WorkTimes, slo: Slo, share: float = 1.0
    ) -> Iterator[None]:
        assert slo == SLO
        self.looked_s.append(now)
        self.standings.append(standings)
        self.times.append(times)
        yield
        prefills, itl_s = self._ways[min(self._looks, len(self._ways) - 1)]
        start = self._looks if self._turn else 0
        names = [standing.worker_id for standing in standings]
        chosen = frozenset(names[(start + place) % len(names)] for place in range(prefills))
        self.moves += len(chosen ^ self.split.prefills)
        self._looks += 1
        self.split = Split(chosen, itl_s, f"look {self._looks}")


def traffic(name: str = "bimodal", seed: int = 3, rate: float = 8.0, lasting_s: float = 30.0) -> Workload:
    return generated.generated(generated.traffic(name), seed, rate, lasting_s).workload


def fleet(of_workers: tuple[str, ...], itl_s: float = 0.05) -> FleetSettings:
    return generated.fleet(of_workers, itl_target_s=itl_s)


def played(planner: Scripted, workload: Workload, workers: int = WORKERS, check_every: int = 0) -> AutoDecider:
    run = Fleet(fleet(roles(auto=workers)), auto(OURS, 1, lambda _: planner))
    run.run(workload, check_every)
    run.check()
    assert all(worker.pool.used == 0 for worker in run.workers), "somebody kept room of a request that is over"
    assert isinstance(run.decider, AutoDecider)
    return run.decider


def fates(requests: Sequence[Request]) -> list[tuple[object, ...]]:
    return [
        (each.decode, each.prefill, each.begun_s, each.first_s, each.end_s, each.computed, each.reused)
        for each in requests
    ]


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["bimodal", "prompt_heavy", "shifting"]),
    st.integers(0, 50),
    st.lists(st.tuples(st.integers(0, WORKERS), st.sampled_from([None, 0.02, 0.2])), min_size=1, max_size=6),
    st.booleans(),
)
def test_role_changes_lose_no_request_and_no_token(name: str, seed: int, ways: list[Way], turn: bool) -> None:
    workload = traffic(name, seed)
    planner = Scripted(ways, turn)
    decider = played(planner, workload, check_every=200)
    for request in workload.requests:
        assert request.ended
        assert request.emitted == request.output_tokens
        assert request.computed + request.reused + request.fetched >= request.input_tokens
    assert len(planner.told) == sum(planner.ended.values()) == len(workload.requests)
    assert all(view.sequences_in_flight == view.prompt_tokens_in_flight == 0 for view in decider.views)
    assert decider.history[-1].moves == planner.moves


def test_sessions_go_on_while_roles_change() -> None:
    loop = sessions.agents(5, 12, 60.0)
    planner = Scripted([(0, None), (2, 0.03), (1, None), (3, 0.02)], turn=True)
    decider = played(planner, loop)
    assert planner.moves > 10
    assert len(decider.history) > 8
    assert all(request.ended and request.emitted == request.output_tokens for request in loop.requests)
    assert {request.prefill >= 0 for request in loop.requests} == {True, False}


@pytest.mark.parametrize("prefills", [0, 1, 2, 3])
def test_a_split_that_never_changes_is_the_fixed_one(prefills: int) -> None:
    fixed, scripted = traffic(), traffic()
    of_workers = roles(prefill=prefills, decode=WORKERS - prefills) if prefills else roles(unified=WORKERS)
    Fleet(fleet(of_workers), ours(OURS, 1)).run(fixed)
    played(Scripted([(prefills, None)]), scripted)
    assert fates(fixed.requests) == fates(scripted.requests)


def test_an_itl_target_that_never_changes_is_that_of_workers_which_have_it() -> None:
    fixed, scripted = traffic(), traffic()
    Fleet(fleet(roles(unified=WORKERS), 0.02), ours(OURS, 1)).run(fixed)
    played(Scripted([(0, 0.02)]), scripted)
    assert fates(fixed.requests) == fates(scripted.requests)


def test_a_target_holds_from_the_next_step_on_and_none_is_the_workers_own() -> None:
    def itl(ways: list[Way]) -> float:
        workload = traffic(rate=7.0)
        played(Scripted(ways), workload)
        return judge(workload.requests, SLO, Window(12.0, 30.0)).itl.p99_s

    own, narrow, back = itl([(0, None)]), itl([(0, 0.02)]), itl([(0, 0.02), (0, None)])
    assert narrow < 0.7 * own
    assert back == pytest.approx(own, rel=0.1)


def test_two_runs_are_equal() -> None:
    first, second = traffic(), traffic()
    ways: list[Way] = [(0, None), (2, 0.03), (1, None)]
    histories = [played(Scripted(ways, turn=True), each).history for each in (first, second)]
    assert fates(first.requests) == fates(second.requests)
    assert histories[0] == histories[1]


def test_new_prompts_go_where_the_split_says_at_once() -> None:
    workload = traffic(rate=6.0)
    played(Scripted([(0, None), (0, None), (2, None)]), workload)
    first_late = next(request.number for request in workload.requests if request.arrival_s >= 2 * LOOK_S)
    for request in workload.requests:
        late = request.number >= first_late
        assert request.decode in ((2, 3) if late else range(WORKERS))
        assert request.prefill in ((-1, 0, 1) if late else (-1,))
    assert any(request.prefill >= 0 for request in workload.requests)


def test_the_last_worker_that_could_answer_is_replaced_by_those_that_take_prompts() -> None:
    workload = traffic(rate=2.0)
    played(Scripted([(WORKERS, None)]), workload)
    assert all(request.ended and request.prefill < 0 for request in workload.requests)


def test_a_planner_is_told_what_the_router_knows() -> None:
    workload = traffic()
    planner = Scripted([(1, None)])
    played(planner, workload)
    assert [int(at_s // LOOK_S) for at_s in planner.looked_s] == list(range(len(planner.looked_s)))
    assert len(planner.looked_s) == 6
    assert [each.prefill for each in planner.standings[0]] == [False] * WORKERS
    assert [each.prefill for each in planner.standings[1]] == [True, False, False, False]
    assert all(each.itl_target for each in planner.standings[0])
    assert sum(each.running for each in planner.standings[-1]) > 0
    reused = [each for each in planner.told if each.uncached_tokens < each.prompt_tokens]
    assert reused
    assert all(0 < each.uncached_tokens <= each.prompt_tokens for each in planner.told)
    true, learned = fleet(()).worker.step_time, planner.times[-1]
    assert planner.times[0].step_s != true.base_s, "nothing had been measured yet"
    assert learned.step_s == pytest.approx(true.base_s, rel=0.3)
    assert learned.prompt_token_s == pytest.approx(true.token_s, rel=0.3)
    assert 0 < planner.ended[True] <= len(workload.requests)


def test_what_clients_give_up_is_not_told_and_deadlines_are_misses() -> None:
    workload = traffic(rate=4.0, lasting_s=20.0)
    for request in workload.requests:
        if request.number >= 4:
            request.patience_s, request.deadline_s = (0.01, 1.0) if request.number % 2 else (1.0, 0.01)
    planner = Scripted([(1, None)])
    Fleet(fleet(roles(auto=WORKERS)), auto(OURS, 1, lambda _: planner)).run(workload)
    late = sum(request.number % 2 == 0 for request in workload.requests[4:])
    assert sum(planner.ended.values()) == 4 + late
    assert planner.ended[False] >= late


def test_workers_of_other_roles_stay_what_they_are() -> None:
    workload = traffic(rate=5.0)
    planner = Scripted([(1, None), (2, None)])
    mixed = replace(fleet(()), roles=(*roles(prefill=1, decode=1), *roles(auto=2)))
    Fleet(mixed, auto(OURS, 1, lambda _: planner)).run(workload)
    assert all(len(standings) == 2 for standings in planner.standings)
    assert all(request.ended and request.decode != 0 for request in workload.requests)
    assert any(request.prefill == 0 for request in workload.requests)
