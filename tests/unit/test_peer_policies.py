"""Peers' policies: the worked cases of their own tests and documents, and what follows from their formulas."""

from collections.abc import Sequence

import pytest

from tandem.core.entropy import SeededEntropy
from tandem.fleetsim.peers.ask import Peer, PeerAsk, Seen
from tandem.fleetsim.peers.blind import LeastLoaded, Random, RoundRobin
from tandem.fleetsim.peers.catalogue import PEERS, peer
from tandem.fleetsim.peers.dynamo import DynamoKv, DynamoSettings, cost
from tandem.fleetsim.peers.hashing import HashBlock
from tandem.fleetsim.peers.llm_d import Approximate, Precise, Scored, Weights, best, queue_scores
from tandem.fleetsim.peers.sglang import CacheAware, CacheAwareSettings
from tandem.fleetsim.peers.vllm_router import KvAware

BLOCK = 16


def ask(blocks: Sequence[int], seen: Sequence[Seen], number: int = 0, now: float = 0.0, tail: int = 0) -> PeerAsk:
    return PeerAsk(number, blocks, BLOCK, BLOCK * len(blocks) - tail, seen, now)


def loads(*in_flight: int) -> list[Seen]:
    return [Seen(in_flight=each) for each in in_flight]


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
    seen = [Seen(hbm=2 * BLOCK), Seen()]
    assert policy.choose(ask((1, 2, 3, 4), seen, number=1)) == 0
    assert policy.choose(ask((1, 2, 3, 4), seen, number=2)) == 0, "shared blocks are in use already"
    assert policy.choose(ask((5, 6, 7), [Seen(), Seen()], number=3)) == 1, "4 + 3 blocks against 3"
    policy.finished(1, 0)
    policy.finished(2, 0)
    policy.finished(3, 1)
    assert policy._tokens == [0, 0]


def test_dynamo_prefill_backlog_counts_against_a_cached_prefix() -> None:
    prompt = tuple(range(10))
    policy = DynamoKv(2, entropy())
    assert policy.choose(ask(prompt, [Seen(hbm=8 * BLOCK, prefill_tokens=7 * BLOCK), Seen()], number=1)) == 0
    fresh = DynamoKv(2, entropy())
    assert fresh.choose(ask(prompt, [Seen(hbm=8 * BLOCK, prefill_tokens=9 * BLOCK), Seen()], number=1)) == 1


def test_dynamo_workers_that_only_decode_are_chosen_by_load() -> None:
    policy = DynamoKv(2, entropy(), decode_only=True)
    first = policy.choose(ask((1, 2, 3), [Seen(), Seen()], number=1))
    other = [Seen(hbm=2 * BLOCK), Seen(hbm=2 * BLOCK)]
    assert policy.choose(ask((7, 8), other, number=2)) == 1 - first


# ---- the vLLM router ----


def test_vllm_kv_aware_the_least_tokens_to_compute_win_credits_by_tier() -> None:
    policy = KvAware(entropy())
    assert policy.cost(1000, Seen()) == 1000
    assert policy.cost(1000, Seen(hbm=500)) == 500
    assert policy.cost(1000, Seen(dram=500)) == 600
    assert policy.cost(1000, Seen(nvme=500)) == 850
    assert policy.cost(1000, Seen(hbm=100, dram=100, nvme=100, prefill_tokens=300)) == 1300 - 100 - 80 - 30
    prompt = tuple(range(10))
    assert policy.choose(ask(prompt, [Seen(hbm=64), Seen(dram=96)])) == 1
    assert policy.choose(ask(prompt, [Seen(hbm=64), Seen(dram=64)])) == 0


def test_vllm_kv_aware_without_evidence_goes_by_load_alone() -> None:
    policy = KvAware(entropy())
    assert policy.choose(ask((1, 2), [Seen(prefill_tokens=10), Seen(prefill_tokens=20)])) == 0
    assert policy.choose(ask((1, 2), loads(3, 2, 4))) == 1


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
    assert policy.choose(ask(prompt, [Seen(hbm=6 * BLOCK, waiting=9), Seen()])) == 0
    assert policy.choose(ask(prompt, [Seen(hbm=4 * BLOCK, waiting=9), Seen()])) == 1


def test_llm_d_a_full_pool_counts_against_a_worker() -> None:
    policy = Precise(entropy(), Weights(3, 1, 1), speculative_s=0.0)
    prompt = tuple(range(10))
    assert policy.choose(ask(prompt, [Seen(hbm=2 * BLOCK, kv_usage=0.5), Seen(kv_usage=0.0)])) == 0
    assert policy.choose(ask(prompt, [Seen(hbm=2 * BLOCK, kv_usage=0.9), Seen(kv_usage=0.1)])) == 1
    load_only = Scored(entropy(), Weights(0, 1, 1))
    assert load_only.choose(ask(prompt, [Seen(hbm=160, kv_usage=0.2), Seen(kv_usage=0.1)])) == 1


def test_llm_d_what_was_just_routed_counts_as_cached_for_two_seconds() -> None:
    policy = Precise(entropy(), Weights(2, 1, 0))
    prompt = tuple(range(4))
    first = policy.choose(ask(prompt, [Seen(), Seen()], now=0.0))
    assert list(policy.prefix_scores(ask(prompt, [Seen(), Seen()], now=1.9)))[first] == 1.0
    assert list(policy.prefix_scores(ask(prompt, [Seen(), Seen()], now=2.1))) == [0.0, 0.0]
    policy.choose(ask(prompt, [Seen(), Seen()], now=10.0))
    longer = policy.prefix_scores(ask((*prompt, 8), [Seen(hbm=2 * BLOCK), Seen(hbm=2 * BLOCK)], now=10.5))
    assert sorted(longer) == [0.4, 0.8]


def test_llm_d_approximate_sees_the_head_only_and_forgets_the_oldest() -> None:
    weights = Weights(1, 0, 0)
    policy = Approximate(2, entropy(), weights, match_tokens_max=2 * BLOCK, lru_tokens=3 * BLOCK)
    chosen = policy.choose(ask((1, 2, 3, 4), [Seen(), Seen()]))
    assert list(policy.prefix_scores(ask((1, 2, 8, 9), [Seen(), Seen()])))[chosen] == 1.0
    policy.routed(ask((5, 6), [Seen(), Seen()]), chosen)
    assert list(policy.prefix_scores(ask((1, 2), [Seen(), Seen()])))[chosen] == 0.0
    assert list(policy.prefix_scores(ask((5, 6), [Seen(), Seen()])))[chosen] == 1.0


# ---- hashing and the blind ones ----


def test_hashing_keeps_a_prefix_together_and_spreads_others() -> None:
    second = HashBlock(1)
    seen = [Seen() for _ in range(8)]
    chosen = [second.choose(ask((0, family, number), seen)) for family in range(40) for number in (100, 200)]
    assert chosen[::2] == chosen[1::2]
    assert len(set(chosen)) > 5
    assert len({HashBlock(0).choose(ask((0, family), seen)) for family in range(40)}) == 1
    assert second.choose(ask((7,), seen)) == HashBlock(0).choose(ask((7,), seen))


def test_hashing_moves_only_what_a_new_worker_wins() -> None:
    before = [HashBlock(0).choose(ask((key,), [Seen()] * 7)) for key in range(200)]
    after = [HashBlock(0).choose(ask((key,), [Seen()] * 8)) for key in range(200)]
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
