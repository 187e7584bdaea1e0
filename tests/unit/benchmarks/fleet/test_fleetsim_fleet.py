"""The fleet simulator as a whole: nothing is lost, nothing counted twice, and jumping changes no result."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fleet.contenders import CONTENDERS, decider_of
from benchmarks.fleet.fleet import Fleet, FleetSettings, roles
from benchmarks.fleet.ours import OursSettings
from benchmarks.fleet.router import Knowledge
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.tiers import TierSettings
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request, Stage, Workload

BLOCK = 64
TIME = StepTime(base_s=0.01, sequence_s=1e-4, read_s=1e-7, token_s=5e-5, context_s=2e-9)
TIERS = (TierSettings("dram", 2_000, 500_000.0), TierSettings("nvme", 2_000, 100_000.0))
WORKER = WorkerSettings(3_000, BLOCK, TIME, max_batched_tokens=512, max_sequences=16)
UNIFIED = FleetSettings(roles(unified=2), WORKER)
FLEETS = (
    UNIFIED,
    replace(UNIFIED, worker=replace(WORKER, tiers=TIERS)),
    FleetSettings(roles(prefill=2, decode=2), WORKER),
    FleetSettings(roles(unified=1, prefill=1, decode=1), replace(WORKER, tiers=TIERS)),
)
TANDEM = replace(WORKER.as_in_production(0.02), max_batched_tokens=512)
HELD = replace(UNIFIED, worker=TANDEM)
"""Chunks are held to an ITL target."""
HELD_APART = FleetSettings(roles(prefill=2, decode=2), replace(TANDEM, tiers=TIERS))
ALL = (*FLEETS, HELD, HELD_APART)

Drawn = tuple[float, int, int, int, int]
"""(seconds after the one before, family, shared blocks, own tokens, output tokens)."""
REQUESTS = st.lists(
    st.tuples(st.floats(0, 0.5), st.integers(0, 2), st.integers(0, 8), st.integers(1, 400), st.integers(1, 250)),
    min_size=1,
    max_size=25,
)


def workload(drawn: list[Drawn]) -> Workload:
    requests, at_s = [], 0.0
    for number, (gap_s, family, shared, own, output) in enumerate(drawn):
        at_s += gap_s
        tokens = shared * BLOCK + own
        blocks = tuple(family << 20 | place for place in range(shared))
        blocks += tuple((number + 10) << 20 | place for place in range(-(-own // BLOCK)))
        requests.append(Request(number, at_s, blocks, BLOCK, tokens, output, 512))
    return Workload("drawn", (Stage(1.0, at_s, tuple(requests)),))


class Alternating:
    """Every prompt to the next worker; through prefill workers where there are any."""

    def __init__(self, knowledge: Knowledge) -> None:
        workers = [(worker.index, worker.role) for worker in knowledge.workers]
        self._decodes = [number for number, role in workers if role != "prefill"]
        self._prefills = [number for number, role in workers if role == "prefill"] or [-1]

    def place(self, request: Request, now: float) -> tuple[int, int]:
        number = request.number
        return self._decodes[number % len(self._decodes)], self._prefills[number % len(self._prefills)]

    def first_token(self, request: Request, now: float) -> None: ...

    def finished(self, request: Request, now: float) -> None: ...

    def transferred(self, request: Request, tokens: int, seconds: float) -> None: ...


def check_ended(fleet: Fleet, requests: list[Request]) -> None:
    """Everything is over, complete, and given back."""
    fleet.check()
    assert not fleet.transfers.kept
    for worker in fleet.workers:
        assert worker.due is None
        assert worker.pool.used == 0
        assert worker.load.running + worker.load.waiting <= len(requests)
    for request in requests:
        assert request.emitted == request.output_tokens
        assert request.arrival_s <= request.begun_s <= request.first_s <= request.end_s
        found = request.reused + request.fetched
        assert found + request.computed >= request.input_tokens
        if not request.preempted:
            # Blocks that two prompts compute at the same time, each from another token on, are computed twice.
            assert found + request.computed <= request.input_tokens + 2 * BLOCK


@given(REQUESTS, st.sampled_from(ALL))
@settings(max_examples=60, deadline=None)
def test_every_request_ends_with_its_tokens_and_memory_adds_up_after_every_event(
    drawn: list[Drawn], fleet_settings: FleetSettings
) -> None:
    work = workload(drawn)
    fleet = Fleet(fleet_settings, Alternating)
    fleet.run(work, check_every=1)
    check_ended(fleet, list(work.requests))


@given(REQUESTS, st.sampled_from(ALL))
@settings(max_examples=40, deadline=None)
def test_advancing_many_steps_at_once_is_advancing_one_by_one(
    drawn: list[Drawn], fleet_settings: FleetSettings
) -> None:
    found = []
    for steps_max in (1, 1 << 40):
        work = workload(drawn)
        worker = replace(fleet_settings.worker, steps_max=steps_max)
        figures = Fleet(replace(fleet_settings, worker=worker), Alternating).run(work)
        found.append((work.requests, figures))
    (single, one_by_one), (jumped, at_once) = found
    for left, right in zip(single, jumped, strict=True):
        assert (left.first_s, left.end_s) == pytest.approx((right.first_s, right.end_s), abs=1e-6)
        assert (left.computed, left.reused, left.preempted) == (right.computed, right.reused, right.preempted)
    assert one_by_one.hit_ratio == at_once.hit_ratio
    assert one_by_one.imbalance == pytest.approx(at_once.imbalance)


def busy(seed: int, requests: int = 120) -> Workload:
    """Enough for queues, evictions and preemptions on two small workers."""
    spread = [(seed * 7919 + number * 104_729) % 1000 for number in range(requests)]
    return workload([(0.02, value % 3, value % 9, 1 + value % 300, 1 + value % 200) for value in spread])


@pytest.mark.parametrize("name", CONTENDERS)
@pytest.mark.parametrize("fleet_settings", FLEETS, ids=["unified", "tiers", "apart", "mixed"])
def test_every_policy_serves_everything_and_equal_seeds_give_equal_runs(
    name: str, fleet_settings: FleetSettings
) -> None:
    figures = []
    for _ in range(2):
        work = busy(3)
        fleet = Fleet(fleet_settings, decider_of(name, OursSettings(1000), 5))
        figures.append(fleet.run(work, check_every=50))
        check_ended(fleet, list(work.requests))
    assert figures[0] == figures[1]


def test_outgrown_memory_preempts_the_last_and_computes_it_again() -> None:
    requests = tuple(
        Request(number, 0.0, tuple(range(number * 100, number * 100 + 16)), BLOCK, 1_000, 600, 600)
        for number in range(2)
    )
    work = Workload("two", (Stage(1.0, 1.0, requests),))
    fleet = Fleet(replace(UNIFIED, roles=roles(unified=1)), Alternating)
    figures = fleet.run(work, check_every=1)
    check_ended(fleet, list(requests))
    assert figures.preemptions == requests[1].preempted == 1
    assert requests[0].computed == 1_000
    assert requests[1].computed > 1_000


def test_what_a_request_has_computed_itself_is_not_reused_after_a_preemption() -> None:
    requests = tuple(
        Request(number, 0.01 * number, tuple(range(number * 100, number * 100 + 10)), BLOCK, 640, 200, 200)
        for number in range(2)
    )
    worker = replace(UNIFIED.worker, kv_tokens=1_300, max_batched_tokens=32)
    fleet = Fleet(replace(UNIFIED, roles=roles(unified=1), worker=worker), Alternating)
    fleet.run(Workload("two", (Stage(1.0, 1.0, requests),)), check_every=1)
    check_ended(fleet, list(requests))
    assert requests[1].preempted, "in the middle of its prompt"
    assert requests[1].reused == 0


def test_a_prefix_is_computed_once_where_requests_meet() -> None:
    requests = tuple(Request(number, 0.001 * number, (1, 2, 3, 4), BLOCK, 250, 2, 8) for number in range(4))
    work = Workload("same", (Stage(1.0, 1.0, requests),))
    Fleet(replace(UNIFIED, roles=roles(unified=1)), Alternating).run(work, check_every=1)
    assert [request.computed for request in requests] == [250, 10, 10, 10]
    assert [request.reused for request in requests] == [0, 240, 240, 240]


def test_evicted_blocks_come_back_from_the_tiers() -> None:
    first = Request(0, 0.0, tuple(range(16)), BLOCK, 1_024, 2, 8)
    others = tuple(
        Request(number, float(number), tuple(range(number * 100, number * 100 + 16)), BLOCK, 1_024, 2, 8)
        for number in (1, 2, 3)
    )
    again = Request(4, 10.0, tuple(range(16)), BLOCK, 1_024, 2, 8)
    fleet = Fleet(replace(FLEETS[1], roles=roles(unified=1)), Alternating)
    fleet.run(Workload("again", (Stage(1.0, 1.0, (first, *others, again)),)), check_every=1)
    assert again.fetched > 500
    assert again.computed + again.reused + again.fetched == 1_024
    assert again.ttft_s < first.ttft_s


def test_a_named_source_is_fetched_from_when_that_is_faster_than_computing() -> None:
    class FromTheOther(Alternating):
        def place(self, request: Request, now: float) -> tuple[int, int]:
            if request.number == 1:
                request.sources = ((0, 16),)
            return request.number, -1

    requests = tuple(Request(number, float(number), tuple(range(16)), BLOCK, 1_024, 2, 8) for number in range(2))
    Fleet(UNIFIED, FromTheOther).run(Workload("peer", (Stage(1.0, 1.0, requests),)), check_every=1)
    assert requests[1].fetched == 1_023
    assert requests[1].ttft_s < requests[0].ttft_s / 2
    slow = tuple(Request(number, float(number), tuple(range(16)), BLOCK, 1_024, 2, 8) for number in range(2))
    crawling = replace(UNIFIED, transfer_tokens_per_s=1_000.0)
    Fleet(crawling, FromTheOther).run(Workload("peer", (Stage(1.0, 1.0, slow),)))
    assert slow[1].fetched == 0


def test_the_first_token_does_not_wait_for_the_transfer_but_the_second_does() -> None:
    times = []
    for rate in (1e9, 2_000.0):
        request = Request(0, 0.0, tuple(range(10)), BLOCK, 640, 3, 8)
        fleet = Fleet(replace(FLEETS[2], transfer_tokens_per_s=rate), Alternating)
        fleet.run(Workload("one", (Stage(1.0, 1.0, (request,)),)), check_every=1)
        times.append((request.first_s, request.end_s))
    (fast_first, fast_end), (slow_first, slow_end) = times
    assert fast_first == slow_first
    # Blocks travel from the beginning on, while the prompt is computed.
    assert slow_end - fast_end == pytest.approx(640 / 2_000.0 - slow_first, abs=1e-3)


def test_a_client_with_a_bound_sends_when_another_request_has_ended() -> None:
    requests = tuple(Request(number, 0.0, (number,), BLOCK, 10, 5, 8) for number in range(4))
    work = Workload("bound", (Stage(1.0, 1.0, requests),), in_flight_max=2)
    Fleet(UNIFIED, Alternating).run(work)
    assert [request.arrival_s for request in requests[:2]] == [0.0, 0.0]
    assert requests[2].arrival_s == min(request.end_s for request in requests[:2])
    assert [request.due_s for request in requests] == [0.0] * 4


def test_load_figures_are_those_of_the_last_report() -> None:
    seen = []

    class Looking(Alternating):
        def __init__(self, knowledge: Knowledge) -> None:
            super().__init__(knowledge)
            self._knowledge = knowledge

        def place(self, request: Request, now: float) -> tuple[int, int]:
            seen.append(self._knowledge.load(0))
            return 0, -1

    requests = tuple(
        Request(number, at_s, (number,), BLOCK, 60, 100, 100) for number, at_s in enumerate((0.0, 0.01, 0.32, 0.33))
    )
    Fleet(UNIFIED, Looking).run(Workload("looks", (Stage(1.0, 1.0, requests),)))
    assert [load.running + load.waiting for load in seen] == [0, 0, 2, 2]
    assert seen[2].step_s == pytest.approx(0.0102, rel=0.05)
    assert seen[2].blocks_free < seen[0].blocks_free
