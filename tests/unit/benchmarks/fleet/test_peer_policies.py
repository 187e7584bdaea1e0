"""Peers' policies: the worked cases of their own tests and documents, and what follows from their formulas."""

from collections.abc import Sequence

import pytest

from benchmarks.fleet.fleet import Fleet, FleetSettings, roles
from benchmarks.fleet.peers.blind import LeastLoaded, Random, RoundRobin
from benchmarks.fleet.peers.catalogue import CURRENT, PEERS, current, peer
from benchmarks.fleet.peers.decider import PeerDecider
from benchmarks.fleet.peers.dynamo import DynamoDecode, DynamoKv, DynamoPrefill, DynamoSettings, cost, stays_local
from benchmarks.fleet.peers.hashing import HashBlock
from benchmarks.fleet.peers.llm_d import Approximate, Precise, Scored, TierWeights, Weights, best, queue_scores
from benchmarks.fleet.peers.llm_d_current import AffinitySettings, AffinityThenLoad, kept, token_load_score
from benchmarks.fleet.peers.policy import CandidateView, Peer, PeerContext, PoolFacts
from benchmarks.fleet.peers.sglang import CacheAware, CacheAwareSettings
from benchmarks.fleet.peers.vllm_router import KvAware, LongestPrefix
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request
from tandem.core.entropy import SeededEntropy

BLOCK = 16


def ask(
    blocks: Sequence[int], seen: Sequence[CandidateView], number: int = 0, now: float = 0.0, tail: int = 0
) -> PeerContext:
    return PeerContext(number, blocks, BLOCK, BLOCK * len(blocks) - tail, seen, now)


def loads(*in_flight: int) -> list[CandidateView]:
    return [CandidateView(in_flight=each) for each in in_flight]


def entropy() -> SeededEntropy:
    return SeededEntropy(1, "peers")


# ---- sglang: the cases of its cache_aware tests ----


def test_sglang_balanced_equal_and_similar_requests_go_to_one_worker() -> None:
    policy = CacheAware(2)
    first = policy.choose(ask((1, 2, 3), loads(0, 0)))
    assert policy.choose(ask((1, 2, 3), loads(1, 0))) == first
    assert policy.choose(ask((1,), loads(2, 0))) == first


def test_sglang_imbalanced_the_shortest_queue_wins_over_the_cache() -> None:
    policy = CacheAware(
        2, CacheAwareSettings(cache_threshold=0.5, balance_abs_threshold=5, balance_rel_threshold=2.0)
    )
    assert policy.choose(ask((1, 2), loads(0, 9), number=1)) == 0
    assert [policy.choose(ask((1, 2), loads(20, 0))) for _ in range(5)] == [1] * 5


@pytest.mark.parametrize(
    ("in_flight", "balanced"),
    [((64, 0), True), ((65, 0), False), ((150, 100), True), ((300, 200), True), ((301, 200), False)],
)
def test_sglang_imbalance_needs_both_the_absolute_and_the_relative_difference(
    in_flight: tuple[int, int], balanced: bool
) -> None:
    policy = CacheAware(2)
    assert policy.choose(ask((1,), loads(0, 1))) == 0
    assert (policy.choose(ask((1,), loads(*in_flight))) == 0) is balanced


def test_sglang_a_match_of_no_more_than_the_threshold_goes_to_the_least_loaded() -> None:
    for matched, expected in ((3, 1), (4, 0)):
        policy = CacheAware(2)
        policy.choose(ask(tuple(range(matched)), loads(0, 1)))
        prompt = (*range(matched), *range(100, 110 - matched))
        assert policy.choose(ask(prompt, loads(1, 0))) == expected


def test_sglang_the_prompt_is_noted_at_routing_time_for_whoever_gets_it() -> None:
    policy = CacheAware(2)
    policy.choose(ask((1, 2), loads(0, 1)))
    policy.choose(ask((1, 2), loads(100, 0)))
    assert policy.choose(ask((1, 2), loads(0, 1))) == 1, "the worker that had it last"


def test_sglang_the_tree_is_cut_to_its_size_leaves_first() -> None:
    settings = CacheAwareSettings(tree_tokens_max=2 * BLOCK, eviction_interval_s=60.0)
    policy = CacheAware(2, settings)
    policy.choose(ask((1, 2, 3), loads(0, 1)))
    policy.choose(ask((9,), loads(1, 0), now=61.0))
    assert policy.choose(ask((1, 2), loads(1, 0), now=62.0)) == 0
    assert policy.choose(ask((3,), loads(1, 0), now=62.0)) == 1, "the leaf was forgotten"


# ---- Dynamo: the three workers of its documentation, and its formula ----


def test_dynamo_the_documented_example_chooses_the_second_worker() -> None:
    settings = DynamoSettings()
    documented = ((10, 2, 10), (10, 5, 5), (10, 8, 9))
    costs = [cost(settings, raw, cached, decode) for raw, cached, decode in documented]
    assert costs == [18.0, 10.0, 11.0]


def test_dynamo_credit_never_makes_the_prefill_part_negative() -> None:
    assert cost(DynamoSettings(), 3, 10, 4) == 4


def test_dynamo_lower_tiers_count_less_and_requests_by_their_weight() -> None:
    assert cost(DynamoSettings(), 10, 2, 0, host_blocks=4, disk_blocks=4) == 10 - 2 - 3 - 1
    assert cost(DynamoSettings(decode_active_request_weight=0.5), 0, 0, 0, active_requests=4) == 2.0
    assert cost(DynamoSettings(prefill_load_scale=2.0), 10, 4, 1) == 13.0


def test_dynamo_counts_blocks_of_its_own_requests_once_and_only_while_they_run() -> None:
    policy = DynamoKv(2, entropy())
    seen = [CandidateView(hbm=2 * BLOCK), CandidateView()]
    assert policy.choose(ask((1, 2, 3, 4), seen, number=1)) == 0
    assert policy.choose(ask((1, 2, 3, 4), seen, number=2)) == 0, "shared blocks are in use already"
    assert policy.choose(ask((5, 6, 7), [CandidateView(), CandidateView()], number=3)) == 1, "4 + 3 blocks against 3"
    policy.finished(1, 0)
    policy.finished(2, 0)
    policy.finished(3, 1)
    assert policy._tokens == [0, 0]


def test_dynamo_prefill_backlog_counts_against_a_cached_prefix() -> None:
    prompt = tuple(range(10))
    policy = DynamoKv(2, entropy())
    assert (
        policy.choose(
            ask(prompt, [CandidateView(hbm=8 * BLOCK, prefill_tokens=7 * BLOCK), CandidateView()], number=1)
        )
        == 0
    )
    fresh = DynamoKv(2, entropy())
    assert (
        fresh.choose(ask(prompt, [CandidateView(hbm=8 * BLOCK, prefill_tokens=9 * BLOCK), CandidateView()], number=1))
        == 1
    )


def test_dynamo_workers_that_only_decode_are_chosen_by_load() -> None:
    policy = DynamoDecode(2, entropy())
    first = policy.choose(ask((1, 2, 3), [CandidateView(), CandidateView()], number=1))
    other = [CandidateView(hbm=2 * BLOCK), CandidateView(hbm=2 * BLOCK)]
    assert policy.choose(ask((7, 8), other, number=2)) == 1 - first


def test_dynamo_workers_that_only_decode_share_no_blocks_and_give_no_credit() -> None:
    policy = DynamoDecode(2, entropy())
    cached = [CandidateView(hbm=4 * BLOCK), CandidateView()]
    first = policy.choose(ask((1, 2, 3, 4), cached, number=1))
    assert policy.choose(ask((1, 2, 3, 4), cached, number=2)) == 1 - first, "8 blocks against 4"
    assert policy.choose(ask((1,), cached, number=3)) in (0, 1)
    for number, chosen in ((1, first), (2, 1 - first)):
        policy.finished(number, chosen)
    assert sorted(policy._tokens) == [0, BLOCK]
    assert not policy.local(ask((1, 2, 3, 4), cached), 0)


def test_dynamo_prefill_workers_are_chosen_by_prompts_alone() -> None:
    prompt = tuple(range(10))
    policy = DynamoPrefill(entropy())
    # 7 + 10 - 8 against 10; 9 + 10 - 8 against 10. What runs there does not count.
    assert (
        policy.choose(
            ask(prompt, [CandidateView(hbm=8 * BLOCK, prefill_tokens=7 * BLOCK, in_flight=99), CandidateView()])
        )
        == 0
    )
    assert policy.choose(ask(prompt, [CandidateView(hbm=8 * BLOCK, prefill_tokens=9 * BLOCK), CandidateView()])) == 1
    assert policy.choose(ask(prompt, [CandidateView(hbm=8 * BLOCK), CandidateView()])) == 0
    assert policy.choose(ask(prompt, [CandidateView(hbm=8 * BLOCK), CandidateView()])) == 0, (
        "the first one's blocks are not tracked"
    )


@pytest.mark.parametrize(
    ("prompt", "cached", "stays"),
    [
        (1_000, 896, True),  # 104 tokens, a tenth
        (100_000, 64_000, False),  # 36,000 tokens
        (200, 0, False),  # all of it
        (2_048, 0, False),
        (8_000, 5_952, False),  # 2,048 is not less than 2,048
        (8_000, 5_953, True),
        (1_000, 300, False),  # .7 is not less than .7
        (1_000, 301, True),
        (500, 640, True),
        (0, 0, True),
    ],
)
def test_dynamo_conditional_disaggregation_keeps_what_is_small_in_tokens_and_as_a_share(
    prompt: int, cached: int, stays: bool
) -> None:
    assert stays_local(DynamoSettings(), prompt, cached) is stays


def test_dynamo_conditional_disaggregation_peeks_by_the_whole_formula_and_decodes_with_credit() -> None:
    policy = DynamoDecode(2, entropy(), conditional=True)
    prompt = tuple(range(200))
    # Peeked: 200 - 150 + 200 blocks against 200 + 200. 50 blocks, a quarter of the prompt, are computed there.
    warm = ask(prompt, [CandidateView(hbm=150 * BLOCK), CandidateView()], number=1)
    assert policy.choose(warm) == 0
    assert policy.local(warm, 0)
    # 80 of 200 blocks leave 1,920 tokens, .6 of it.
    fresh = DynamoDecode(2, entropy(), conditional=True)
    cool = ask(prompt, [CandidateView(hbm=80 * BLOCK), CandidateView()], number=2)
    assert (fresh.choose(cool), fresh.local(cool, 0)) == (0, True)
    # 40 leave 2,560: computed apart. To decode: 200 - 40 blocks against 200, then 400 - 40 against 200.
    fresh = DynamoDecode(2, entropy(), conditional=True)
    for number, chosen in ((3, 0), (4, 1)):
        cold = ask(prompt, [CandidateView(hbm=40 * BLOCK), CandidateView()], number=number)
        assert (fresh.choose(cold), fresh.local(cold, chosen)) == (chosen, False)


# ---- the vLLM router ----


def test_vllm_kv_aware_the_least_tokens_to_compute_win_credits_by_tier() -> None:
    policy = KvAware(entropy())
    assert policy.cost(1000, CandidateView()) == 1000
    assert policy.cost(1000, CandidateView(hbm=500)) == 500
    assert policy.cost(1000, CandidateView(dram=500)) == 600
    assert policy.cost(1000, CandidateView(nvme=500)) == 850
    assert policy.cost(1000, CandidateView(hbm=100, dram=100, nvme=100, prefill_tokens=300)) == 1300 - 100 - 80 - 30
    prompt = tuple(range(10))
    assert policy.choose(ask(prompt, [CandidateView(hbm=64), CandidateView(dram=96)])) == 1
    assert policy.choose(ask(prompt, [CandidateView(hbm=64), CandidateView(dram=64)])) == 0


def test_vllm_kv_aware_without_evidence_goes_by_load_alone() -> None:
    policy = KvAware(entropy())
    assert policy.choose(ask((1, 2), [CandidateView(prefill_tokens=10), CandidateView(prefill_tokens=20)])) == 0
    assert policy.choose(ask((1, 2), loads(3, 2, 4))) == 1


def test_vllm_longest_prefix_wins_whatever_waits_there() -> None:
    policy = LongestPrefix(speculative_s=0.0)
    prompt = (1, 2, 3, 4)
    busy = CandidateView(hbm=2 * BLOCK, in_flight=500, prefill_tokens=100_000)
    assert policy.choose(ask(prompt, [busy, CandidateView(hbm=BLOCK), CandidateView()])) == 0
    assert policy.choose(ask(prompt, [busy, CandidateView(dram=3 * BLOCK), CandidateView()])) == 1
    assert policy.choose(ask(prompt, [CandidateView(hbm=BLOCK), CandidateView(hbm=BLOCK), CandidateView()])) == 1, (
        "the last of equals"
    )
    assert policy.choose(ask(prompt, [*loads(3, 1, 1)])) == 1, "nobody has any: the first of the least loaded"


def test_vllm_longest_prefix_takes_what_it_sent_for_cached_for_two_seconds() -> None:
    policy = LongestPrefix()
    prompt = (1, 2, 3, 4)
    assert policy.choose(ask(prompt, loads(0, 1), now=0.0)) == 0
    assert policy.choose(ask(prompt, loads(9, 0), now=1.9)) == 0
    assert policy.choose(ask(prompt, loads(9, 0), now=2.1)) == 1, "nothing was lacking the second time"
    assert policy.choose(ask((*prompt, 5), [CandidateView(hbm=4 * BLOCK), CandidateView()], now=3.0)) == 1, (
        "4 told and 4 sent: the last"
    )


# ---- llm-d ----


def test_llm_d_queues_are_min_max_normalised() -> None:
    assert queue_scores([0, 5, 10]) == [1.0, 0.5, 0.0]
    assert queue_scores([7, 7]) == [1.0, 1.0]


def test_llm_d_ties_are_drawn_among_the_highest_scores() -> None:
    draws = {best([1.0, 3.0, 3.0, 0.0], SeededEntropy(seed)) for seed in range(40)}
    assert draws == {1, 2}


def test_llm_d_prefix_weighs_twice_the_queue() -> None:
    policy = Precise(entropy(), Weights(2, 1, 0), speculative_s=0.0)
    prompt = tuple(range(10))
    # 2 * .6 + 0 against 2 * 0 + 1; then 2 * .4 + 0 against 1.
    assert policy.choose(ask(prompt, [CandidateView(hbm=6 * BLOCK, waiting=9), CandidateView()])) == 0
    assert policy.choose(ask(prompt, [CandidateView(hbm=4 * BLOCK, waiting=9), CandidateView()])) == 1


def test_llm_d_a_full_pool_counts_against_a_worker() -> None:
    policy = Precise(entropy(), Weights(3, 1, 1), speculative_s=0.0)
    prompt = tuple(range(10))
    assert policy.choose(ask(prompt, [CandidateView(hbm=2 * BLOCK, kv_usage=0.5), CandidateView(kv_usage=0.0)])) == 0
    assert policy.choose(ask(prompt, [CandidateView(hbm=2 * BLOCK, kv_usage=0.9), CandidateView(kv_usage=0.1)])) == 1
    load_only = Scored(entropy(), Weights(0, 1, 1))
    assert load_only.choose(ask(prompt, [CandidateView(hbm=160, kv_usage=0.2), CandidateView(kv_usage=0.1)])) == 1


def test_llm_d_what_was_just_routed_counts_as_cached_for_two_seconds() -> None:
    policy = Precise(entropy(), Weights(2, 1, 0))
    prompt = tuple(range(4))
    first = policy.choose(ask(prompt, [CandidateView(), CandidateView()], now=0.0))
    assert list(policy.prefix_scores(ask(prompt, [CandidateView(), CandidateView()], now=1.9)))[first] == 1.0
    assert list(policy.prefix_scores(ask(prompt, [CandidateView(), CandidateView()], now=2.1))) == [0.0, 0.0]
    policy.choose(ask(prompt, [CandidateView(), CandidateView()], now=10.0))
    longer = policy.prefix_scores(
        ask((*prompt, 8), [CandidateView(hbm=2 * BLOCK), CandidateView(hbm=2 * BLOCK)], now=10.5)
    )
    assert sorted(longer) == [0.4, 0.8]


def test_llm_d_approximate_sees_the_head_only_and_forgets_the_oldest() -> None:
    weights = Weights(1, 0, 0)
    policy = Approximate(2, entropy(), weights, match_tokens_max=2 * BLOCK, lru_tokens=3 * BLOCK)
    chosen = policy.choose(ask((1, 2, 3, 4), [CandidateView(), CandidateView()]))
    assert list(policy.prefix_scores(ask((1, 2, 8, 9), [CandidateView(), CandidateView()])))[chosen] == 1.0
    policy.routed(ask((5, 6), [CandidateView(), CandidateView()]), chosen)
    assert list(policy.prefix_scores(ask((1, 2), [CandidateView(), CandidateView()])))[chosen] == 0.0
    assert list(policy.prefix_scores(ask((5, 6), [CandidateView(), CandidateView()])))[chosen] == 1.0


def test_llm_d_blocks_count_by_their_tier() -> None:
    prompt = tuple(range(10))
    seen = [
        CandidateView(hbm=2 * BLOCK, dram=5 * BLOCK),
        CandidateView(hbm=2 * BLOCK, dram=5 * BLOCK, nvme=BLOCK),
        CandidateView(),
    ]
    policy = Precise(entropy(), Weights(), 0.0, TierWeights())
    # (2 + .8 * 5) / 10; a tier that has no weight counts whole.
    assert list(policy.prefix_scores(ask(prompt, seen))) == pytest.approx([0.6, 0.7, 0.0])
    guide = Precise(entropy(), Weights(), 0.0, TierWeights(dram=0.4))
    assert list(guide.prefix_scores(ask(prompt, seen)))[:2] == pytest.approx([0.4, 0.5])


def test_llm_d_what_was_just_routed_counts_as_in_the_pool() -> None:
    policy = Precise(entropy(), Weights(3, 2, 2), 2.0, TierWeights())
    prompt = tuple(range(10))
    assert policy.choose(ask(prompt[:4], [CandidateView(dram=4 * BLOCK), CandidateView()], now=0.0)) == 0
    # 4 blocks in the pool soon, 2 in DRAM; and 6 in DRAM, one of them cut short by the prompt's end.
    both = [CandidateView(dram=6 * BLOCK), CandidateView(dram=6 * BLOCK)]
    assert list(policy.prefix_scores(ask(prompt, both, now=1.0))) == pytest.approx([0.56, 0.48])
    short = ask(prompt[:6], [CandidateView(dram=6 * BLOCK - 8), CandidateView(dram=6 * BLOCK - 8)], now=1.0, tail=8)
    assert list(policy.prefix_scores(short)) == pytest.approx([(4 + 0.8 * 1.5) / 5.5, 0.8])


def test_llm_d_the_filter_keeps_who_has_most_of_the_prompt() -> None:
    default = AffinitySettings()
    assert kept([0.9, 0.85, 0.1], [0, 0, 0], default) == [0, 1]
    assert kept([0.8, 0.79], [0, 0], default) == [0]
    assert kept([0.1, 0.2, 0.5], [0, 0, 0], default) == [0, 1, 2]
    assert kept([0.9, 0.9], [10**9, 0], default) == [0, 1]


def test_llm_d_the_filter_gives_way_where_the_first_token_would_come_much_later() -> None:
    thousand = {"prefill_tokens_per_s": 1_000.0}
    # 500 and 50 tokens at 1,000 a second: .45 s later.
    assert kept([0.9, 0.1], [500, 50], AffinitySettings(ttft_penalty_max_s=0.1, **thousand)) == [0, 1]
    assert kept([0.9, 0.1], [500, 50], AffinitySettings(ttft_penalty_max_s=1.0, **thousand)) == [0]
    assert kept([0.9, 0.1], [5_000, 50], AffinitySettings(ttft_penalty_max_s=0.0, **thousand)) == [0]
    # 18 s at the default's 15,928 a second, of the least busy on both sides.
    assert kept([0.9, 0.9, 0.1, 0.1], [286_704, 10**9, 10**9, 0], AffinitySettings()) == [0, 1]
    assert kept([0.9, 0.9, 0.1, 0.1], [286_705, 10**9, 10**9, 0], AffinitySettings()) == [0, 1, 2, 3]


def test_llm_d_token_load_is_a_share_of_four_mebitokens() -> None:
    most = AffinitySettings().load_tokens_max
    assert [token_load_score(tokens, most) for tokens in (0, 1 << 20, 1 << 22, 1 << 23)] == [1.0, 0.75, 0.0, 0.0]


def test_llm_d_of_those_that_are_left_the_one_with_least_to_compute_wins() -> None:
    policy = AffinityThenLoad(2, Precise(entropy(), Weights(), 0.0), entropy())
    cold, half = [CandidateView(), CandidateView()], [CandidateView(hbm=5 * BLOCK), CandidateView()]
    first = policy.choose(ask(tuple(range(10)), cold, number=1))
    assert policy.choose(ask(tuple(range(10, 18)), cold, number=2)) == 1 - first, "160 in flight"
    # 160 in flight on one, 128 on the other. 9 of 10 blocks: to whom has them, whatever waits there.
    warm = [CandidateView(), CandidateView()]
    warm[first] = CandidateView(hbm=9 * BLOCK)
    assert policy.choose(ask(tuple(range(10)), warm, number=3)) == first
    assert policy._in_flight[first] == 160 + 16
    # Half of the prompt is not enough to stay: 176 + 80 against 128 + 160; with first tokens 16 + 80 against 160.
    half = [CandidateView(), CandidateView()]
    half[first] = CandidateView(hbm=5 * BLOCK)
    assert policy.choose(ask(tuple(range(10)), half, number=4)) == first
    assert policy.choose(ask(tuple(range(20, 30)), cold, number=5)) == 1 - first, "256 + 160 against 128 + 160"
    for number, chosen in ((1, first), (2, 1 - first), (3, first), (4, first), (5, 1 - first)):
        policy.first_token(number, chosen)
    assert policy._in_flight == [0, 0]


# ---- at work in a fleet ----

TIME = StepTime(0.01, 0.0, 0.0, 1e-4, 0.0)
APART = FleetSettings(roles(prefill=2, decode=2), WorkerSettings(100_000, BLOCK, TIME))


def at_work(name: str, settings: FleetSettings = APART) -> tuple[PeerDecider, Fleet]:
    found: list[PeerDecider] = []
    fleet = Fleet(settings, lambda knowledge: found.append(peer(name, 1)(knowledge)) or found[-1])
    return found[0], fleet


def incoming(number: int, blocks: int = 10) -> Request:
    return Request(number, 0.0, tuple(range(100 * number, 100 * number + blocks)), BLOCK, BLOCK * blocks, 9, 9)


def placed(decider: PeerDecider, request: Request) -> Request:
    request.decode, request.prefill = decider.place(request, 0.0)
    return request


@pytest.mark.parametrize("name", PEERS)
def test_where_nothing_is_cached_every_prompt_is_computed_apart(name: str) -> None:
    decider, _ = at_work(name)
    for number in range(8):
        request = placed(decider, incoming(number))
        assert (request.prefill in (0, 1), request.decode in (2, 3)) == (True, True)


@pytest.mark.parametrize(("name", "apart"), [("dynamo kv", True), ("dynamo kv conditional", False)])
def test_a_prompt_that_a_decode_worker_has_stays_there_only_if_disaggregation_is_conditional(
    name: str, apart: bool
) -> None:
    decider, fleet = at_work(name)
    request = incoming(1, blocks=100)
    fleet.knowledge.heard(3, "hbm", request.blocks[:60], (), 0.0)
    fleet.knowledge.renew(1.0)
    placed(decider, request)
    assert (request.prefill >= 0) is apart
    assert decider._prefill_tokens[3] == (0 if apart else 40 * BLOCK)
    decider.first_token(request, 1.0)
    decider.finished(request, 2.0)
    assert not any((*decider._prefill_tokens, *decider._in_flight))


@pytest.mark.parametrize(("name", "left"), [("sglang cache_aware", 1), ("llm-d default", 0)])
def test_how_long_a_request_counts_on_its_prefill_worker(name: str, left: int) -> None:
    decider, _ = at_work(name)
    request = placed(decider, incoming(1))
    assert decider._in_flight[request.prefill] == 1
    decider.first_token(request, 1.0)
    assert (decider._in_flight[request.prefill], decider._in_flight[request.decode]) == (left, 1)
    decider.finished(request, 2.0)
    assert not any(decider._in_flight)


def test_the_rate_of_prompts_is_that_of_the_workers() -> None:
    seen: list[PoolFacts] = []

    def pool(facts: PoolFacts) -> Peer:
        seen.append(facts)
        return RoundRobin()

    Fleet(APART, lambda knowledge: PeerDecider(knowledge, pool, pool, pool))
    # 8,192 tokens in 10 ms and 8,192 * .1 ms.
    assert [(facts.workers, facts.kv_tokens) for facts in seen] == [(2, 100_000), (2, 100_000)]
    assert seen[0].prefill_tokens_per_s == pytest.approx(8_192 / 0.8292)


def test_todays_peers_are_in_the_catalogue_and_differ_by_layout() -> None:
    assert set(CURRENT) <= set(PEERS)
    assert current(roles(prefill=1, decode=1)) == CURRENT
    assert set(CURRENT) - set(current(roles(unified=2))) == {"dynamo kv conditional"}


# ---- hashing and the blind ones ----


def test_hashing_keeps_a_prefix_together_and_spreads_others() -> None:
    second = HashBlock(1)
    seen = [CandidateView() for _ in range(8)]
    chosen = [second.choose(ask((0, family, number), seen)) for family in range(40) for number in (100, 200)]
    assert chosen[::2] == chosen[1::2]
    assert len(set(chosen)) > 5
    assert len({HashBlock(0).choose(ask((0, family), seen)) for family in range(40)}) == 1
    assert second.choose(ask((7,), seen)) == HashBlock(0).choose(ask((7,), seen))


def test_hashing_moves_only_what_a_new_worker_wins() -> None:
    before = [HashBlock(0).choose(ask((key,), [CandidateView()] * 7)) for key in range(200)]
    after = [HashBlock(0).choose(ask((key,), [CandidateView()] * 8)) for key in range(200)]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {7}
    assert 10 < len(moved) < 45


def test_blind_policies() -> None:
    rounds = RoundRobin()
    assert [rounds.choose(ask((1,), loads(0, 0, 0))) for _ in range(4)] == [0, 1, 2, 0]
    assert LeastLoaded(entropy()).choose(ask((1,), loads(3, 1, 2))) == 1
    assert {LeastLoaded(SeededEntropy(seed)).choose(ask((1,), loads(1, 1, 2))) for seed in range(20)} == {0, 1}
    assert {Random(SeededEntropy(seed)).choose(ask((1,), loads(9, 0, 0))) for seed in range(40)} == {0, 1, 2}


def test_every_peer_of_the_catalogue_can_be_made_and_others_cannot() -> None:
    assert len(PEERS) == len(set(PEERS))
    assert all(callable(peer(name, 1)) for name in PEERS)
    with pytest.raises(KeyError):
        peer("nobody", 1)


def test_a_policy_that_decides_nothing_says_so() -> None:
    with pytest.raises(NotImplementedError):
        Peer().choose(ask((1,), loads(0)))
