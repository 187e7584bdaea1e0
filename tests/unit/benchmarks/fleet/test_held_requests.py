"""Requests that are out of the ordinary, beside those that are not: small cells on virtual time."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fleet.adapters import AdapterSettings
from benchmarks.fleet.fleet import Fleet
from benchmarks.fleet.gaps import Gaps
from benchmarks.fleet.metrics import quantile
from benchmarks.fleet.ours import OursDecider, OursSettings
from benchmarks.fleet.peers.catalogue import peer
from benchmarks.fleet.router import Knowledge
from benchmarks.fleet.scenarios.generated import BLOCK_TOKENS, Kind, Traffic
from benchmarks.fleet.workload import Request, Stage, Workload
from router.placement import CostModel, Placement, PlacementRequest, WorkerView, make_policy
from router.settings import CostPriors, PlacementSettings
from tandem.core.entropy import SeededEntropy, below, unit
from tandem.core.kv import Layout
from tandem.core.messages import Load
from tests.worlds.held_cells import CHATS, attained, in_order, play, requests_of, workers

FULL = 8.0
"""Chats a second and worker that four workers carry with nothing to spare."""
LENGTH_S = 30.0
TENANTS = 1 << 70
"""Names of a tenant's blocks begin here, and at each multiple of it those of another."""


def of_tenant(tenant: int, names: tuple[int, ...]) -> tuple[int, ...]:
    """What blocks of equal content are called, which every tenant's salt makes different."""
    return tuple(tenant * TENANTS + name for name in names)


# ---- cancellations ----


def impatient(seed: int, share: float) -> list[Request]:
    """Chats whose answers have 180 to 220 tokens, so many of which are given up before their end."""
    entropy = SeededEntropy(seed, "impatient")
    requests = requests_of(CHATS, seed, 0.8 * FULL * 4, LENGTH_S)
    for request in requests:
        request.output_tokens = 180 + below(entropy, 41)
        if unit(entropy) < share:
            request.patience_s = 0.05 + 2.5 * unit(entropy)
    return requests


class Expecting(OursDecider):
    """Notes how long answers are expected to become whenever one is over."""

    def __init__(self, knowledge: Knowledge, settings: OursSettings) -> None:
        super().__init__(knowledge, settings, 1)
        self.expected: list[float] = []

    def finished(self, request: Request, now: float) -> None:
        super().finished(request, now)
        self.expected.append(self.costs.answers.expected(request.max_tokens, 200))


@pytest.mark.parametrize("seed", [1, 2])
def test_what_clients_give_up_spoils_neither_what_is_learned_nor_the_rest(seed: int) -> None:
    patient = play(workers(4), impatient(seed, 0.0))
    played = play(workers(4), impatient(seed, 0.3), made=Expecting)
    given_up = {request.number for request in played.requests if request.cancelled_s >= 0}
    assert 0.2 * len(played.requests) <= len(given_up) <= 0.3 * len(played.requests) * 1.2
    rest = attained([request for request in patient.requests if request.number not in given_up])
    assert played.attainment() >= rest - 0.005
    ours = played.routers[0]
    assert isinstance(ours, Expecting)
    assert 180 <= min(ours.expected) <= max(ours.expected) <= 220
    for view in ours.views:
        assert view.sequences_in_flight == view.prompt_tokens_in_flight == view.attended_in_flight == 0
        assert view.prompts_in_flight == view.prompt_ms_in_flight == 0


# ---- a hot adapter ----


def adapted(seed: int, rate: float, hot: float, cold: int) -> list[Request]:
    """Of all chats `hot` are for one adapter, the others for one of `cold`."""
    entropy = SeededEntropy(seed, "adapters")
    requests = requests_of(CHATS, seed, rate, LENGTH_S)
    for request in requests:
        number = 0 if unit(entropy) < hot else 1 + below(entropy, cold)
        request.adapter = f"adapter {number}"
        request.blocks = of_tenant(1 + number, request.blocks)
    return requests


ADAPTERS = AdapterSettings(slots=8, load_s=0.5)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_hot_adapter_is_spread_and_cold_ones_are_seldom_loaded(seed: int) -> None:
    """Against workers that have all adapters loaded, and against placement that does not ask what is loaded."""
    load = 0.75 * FULL * 4
    loading = play(workers(4, adapters=ADAPTERS), adapted(seed, load, 0.75, 24))
    loaded = play(workers(4), adapted(seed, load, 0.75, 24))
    assert loading.attainment() >= loaded.attainment() - 0.02
    hot = loading.placed(lambda request: request.adapter == "adapter 0")
    assert set(hot) == {0, 1, 2, 3}
    blind = Fleet(workers(4, adapters=ADAPTERS), peer("least loaded", seed))
    blind.run(Workload("blind", (Stage(1.0, LENGTH_S, adapted(seed, load, 0.75, 24)),)))
    assert loading.fleet.adapters is not None
    assert blind.adapters is not None
    assert loading.fleet.adapters.loads <= 0.7 * blind.adapters.loads


# ---- tenants ----


POOL_TOKENS = 100_000


def of_two_tenants(seed: int, load: float, every_s: float) -> list[Request]:
    """A tenant asks something of 8,000 tokens from time to time, beside another whose prompts are ever new."""
    prefix = tuple(range(QUIET_TOKENS // BLOCK_TOKENS))
    requests = requests_of(CHATS, seed, load * FULL * 4, LENGTH_S)
    for request in requests:
        request.blocks = of_tenant(1, request.blocks)
    for turn in range(int(LENGTH_S / every_s)):
        number = 100_000 + turn
        blocks = of_tenant(2, (*prefix, number << 32, number << 32 | 1))
        tokens = len(blocks) * BLOCK_TOKENS
        requests.append(Request(number, 1.0 + turn * every_s, blocks, BLOCK_TOKENS, tokens, 50, 1_024))
    return in_order(requests)


QUIET_TOKENS = 8_000


@pytest.mark.parametrize("seed", [1, 2])
def test_a_busy_tenant_does_not_evict_what_another_comes_back_to(seed: int) -> None:
    """What nobody uses is evicted after the time in which all pools together are filled once: the prefix comes back
    in a third of that."""
    alone = workers(4)
    fleet = replace(alone, worker=replace(alone.worker, kv_tokens=POOL_TOKENS))
    played = play(fleet, of_two_tenants(seed, 0.6, 3.0))
    filled_s = 4 * POOL_TOKENS / (sum(r.computed + r.emitted for r in played.requests) / LENGTH_S)
    assert filled_s >= 9.0
    later = [request for request in played.requests if request.blocks[0] >= 2 * TENANTS][1:]
    found = [(request.reused + request.fetched) / (QUIET_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS) for request in later]
    assert fmean(found) >= 0.9
    evicting = [request for request in played.requests if request.blocks[0] < 2 * TENANTS]
    assert sum(request.input_tokens for request in evicting) > 4 * POOL_TOKENS


# ---- a burst of long prompts ----

BURST_S, BURST_TOKENS = 8.0, 16_000


def burst(seed: int, count: int, priority: int = 0) -> list[Request]:
    """Chats, and so many long prompts of one tenant within a second."""
    requests = requests_of(CHATS, seed, 0.6 * FULL * 4, LENGTH_S)
    size = BURST_TOKENS // BLOCK_TOKENS
    for place in range(count):
        blocks = of_tenant(9, tuple(place * size + block for block in range(size)))
        at_s = BURST_S + place / count
        requests.append(Request(100_000 + place, at_s, blocks, BLOCK_TOKENS, BURST_TOKENS, 50, 1_024))
        requests[-1].priority = priority
    return in_order(requests)


def chat(request: Request) -> bool:
    return request.blocks[0] < 9 * TENANTS


def soon(request: Request) -> bool:
    """A chat that comes while the burst is computed."""
    return chat(request) and BURST_S <= request.arrival_s < BURST_S + 8


def ttft_p90(requests: Iterable[Request]) -> float:
    return quantile(sorted(request.ttft_s for request in requests), 0.9)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_burst_of_long_prompts_takes_from_others_no_more_than_has_to_be(seed: int) -> None:
    quiet = play(workers(4), burst(seed, 0))
    # A tenant whose priority is lower waits for the others.
    yielding = play(workers(4), burst(seed, 24, priority=-1))
    assert yielding.attainment(soon) >= quiet.attainment(soon) - 0.05
    assert all(request.ended for request in yielding.requests)
    # Of equal priority all wait alike, and nobody longer than where every worker has as many requests.
    alike = play(workers(4), burst(seed, 24))
    even = burst(seed, 24)
    Fleet(workers(4), peer("least loaded", seed)).run(Workload("even", (Stage(1.0, LENGTH_S, even),)))
    assert ttft_p90(filter(soon, alike.requests)) <= ttft_p90(filter(soon, even))

    def later(request: Request) -> bool:
        return chat(request) and request.arrival_s >= BURST_S + 12

    assert alike.attainment(later) >= quiet.attainment(later) - 0.01


# ---- several sequences of one request ----

SEQUENCES = 6


class Together(OursDecider):
    """Every six requests one after the other are the sequences of one, which are placed together."""

    def __init__(self, knowledge: Knowledge, settings: OursSettings) -> None:
        super().__init__(knowledge, settings, 1)
        self._first: Request | None = None
        self._at: tuple[int, int] | None = None
        self._left: dict[int, list[Request]] = {}

    def place(self, request: Request, now: float) -> tuple[int, int] | None:
        first = request.number - request.number % SEQUENCES
        if request.number == first:
            self._first, self._at = request, super().place(request, now)
            self._left[first] = []
        assert self._first is not None
        request.sources = self._first.sources
        counted = sum(view.sequences_in_flight for view in self.views)
        assert counted == sum(SEQUENCES for ended in self._left.values() if len(ended) < SEQUENCES)
        return self._at

    def first_token(self, request: Request, now: float) -> None:
        if request.number % SEQUENCES == 0:
            super().first_token(request, now)

    def finished(self, request: Request, now: float) -> None:
        ended = self._left[request.number - request.number % SEQUENCES]
        ended.append(request)
        if len(ended) == SEQUENCES:
            super().finished(min(ended, key=lambda each: each.number), now)

    def _asked(self, request: Request, names: Sequence[bytes], now: float) -> PlacementRequest:
        return msgspec.structs.replace(super()._asked(request, names, now), sequences=SEQUENCES)


WRITERS = Traffic("writers", (Kind((1, 1), (300, 300), (400, 400), (0.5, 0.5), (0.0, 0.0), (1, 1)),))


def sampled(seed: int, rate: float) -> list[Request]:
    """Prompts, each with so many answers."""
    answers = SeededEntropy(seed, "sampled")
    requests: list[Request] = []
    for one in requests_of(WRITERS, seed, rate / SEQUENCES, LENGTH_S):
        for _ in range(SEQUENCES):
            answer = max(2, int(one.output_tokens * (0.5 + unit(answers))))
            requests.append(replace(one, number=len(requests), output_tokens=answer, gaps=Gaps()))
    return requests


def test_sequences_of_one_request_are_carried_where_as_many_requests_are() -> None:
    """The pools have room for what is asked at a time and little more, so that a worker with too many preempts."""
    alone = workers(4)
    fleet = replace(alone, worker=replace(alone.worker, kv_tokens=50_000))
    single = play(fleet, sampled(1, 36.0))
    together = play(fleet, sampled(1, 36.0), made=Together)
    assert together.attainment() >= single.attainment() - 0.02
    assert not any(view.sequences_in_flight for view in together.routers[0].views)


@given(sequences=st.integers(8, 64), answer=st.integers(200, 2_000))
def test_many_sequences_go_where_there_is_room_for_all_of_them(sequences: int, answer: int) -> None:
    """A worker with few sequences and little room is right for one, and wrong for many."""
    costs, policy = CostModel(CostPriors()), make_policy(PlacementSettings(), SeededEntropy(1, "n"))
    costs.observe_answer(answer, answer)
    layout = Layout("simulated", "plain", "u8", 1, 1, 16, 1, 8)
    views = []
    for name, running, blocks in (("little room", 1, answer // 16 + 40), ("room", 3, 20_000)):
        load = Load(running, 0, 0, blocks - 20 * running, 0, 0, 0.01, 0.0, 0.0, 0)
        views.append(WorkerView(name, 1, "unified", "m", "", 0, b"r" * 16, layout, blocks, 1 << 20, load=load))

    def place(count: int) -> str:
        asked = PlacementRequest("m", 100, count, answer)
        placed = policy.choose(asked, views, costs, PlacementSettings(), None, 0.0)
        assert isinstance(placed, Placement)
        assert placed.work(count)[0].sequences == count
        return placed.decode

    assert place(1) == "little room"
    assert place(sequences) == "room"


# ---- long answers ----


@pytest.mark.parametrize("told", [False, True])
def test_answers_of_many_thousand_tokens_leave_the_others_as_they_are(told: bool) -> None:
    """Sixteen answers of 20,000 to 32,000 tokens begin before the others come, with the same bound or one of their
    own."""
    entropy = SeededEntropy(1, "thinking")

    def chats() -> list[Request]:
        asked = requests_of(CHATS, 1, 0.6 * FULL * 4, LENGTH_S)
        for request in asked:
            request.arrival_s += 2.0
            request.max_tokens = 2_048 if told else 32_768
        return asked

    def long(place: int) -> Request:
        names = of_tenant(3, tuple(place * 16 + block for block in range(16)))
        tokens = 20_000 + below(entropy, 12_000)
        return Request(100_000 + place, 0.1 * place, names, BLOCK_TOKENS, 16 * BLOCK_TOKENS, tokens, 32_768)

    without = play(workers(4), in_order(chats()))
    played = play(workers(4), in_order([*chats(), *map(long, range(16))]))

    def thinks(request: Request) -> bool:
        return request.output_tokens >= 20_000

    assert all(request.emitted == request.output_tokens for request in played.requests)
    assert max(played.placed(thinks).values()) <= 2 * 16 / 4
    assert played.attainment(lambda request: not thinks(request)) >= without.attainment() - 0.02
    assert played.attainment(thinks) == 1.0
