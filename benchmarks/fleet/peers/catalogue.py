"""Peers' policies by name, ready for a run.

Each is written from its sources as they were at these commits, or as released:

| peer | repository | read at |
|---|---|---|
| llm-d: filter, scorers, tokens in flight, indexes | llm-d/llm-d-router | ebab687927f5331c1b39defcb579a07951bce56c |
| llm-d default: guide optimized-baseline | llm-d/llm-d | 0a3b0c939d50576e91adddf8add79441c29957d1 |
| llm-d precise default: guide precise-prefix-cache-routing | llm-d/llm-d | 8052f2209e2976ba5213e56bde50255fc73badce |
| llm-d precise tiers: guide pd-disaggregation, multi-tier | llm-d/llm-d | 3ed9c2d978343ac3d13edc30809ecb525e71a3e0 |
| llm-d beside prefill workers: guide pd-disaggregation | llm-d/llm-d | 83bb7c18c881ab96e54eb5f12a9d7c7813ae3a19 |
| Dynamo: cost of a worker | ai-dynamo/dynamo | 07a6c9ce3bb096cfaf353fe69ee578e105c6a512 |
| Dynamo: conditional disaggregation | ai-dynamo/dynamo | 088ca50b5d9cec2d4f8b980fb411e218c2c34702 |
| vLLM router: kv_aware | vllm-router on PyPI | 0.1.17 |
| vLLM router: longest prefix | vllm-project/router | dda6063bf6912c8113f840a8efe961163b6e19d9 |
| sglang: cache_aware | sgl-project/sglang | 053b63ff26df927535ada92bf15967f27637787a |
| sglang: prefill beside decode | sgl-project/sglang | 004dcda2c5b5e7cefd82ad971350eb74ccd74a67 |

`llm-d precise 2:1` and the other weights without a name of their own are older: sample configurations, and those of
the published ladders. A decode worker is chosen when the request arrives, also by routers that choose it only when
the prompt has been computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.fleet.peers.blind import LeastLoaded, Random, RoundRobin
from benchmarks.fleet.peers.decider import PeerDecider, Pool
from benchmarks.fleet.peers.dynamo import DynamoDecode, DynamoKv, DynamoPrefill
from benchmarks.fleet.peers.hashing import HashBlock
from benchmarks.fleet.peers.llm_d import EVEN, Approximate, Precise, Scored, TierWeights, Weights
from benchmarks.fleet.peers.llm_d_current import AffinitySettings, AffinityThenLoad
from benchmarks.fleet.peers.policy import Peer, PeerContext, PoolFacts
from benchmarks.fleet.peers.sglang import CacheAware
from benchmarks.fleet.peers.vllm_router import KvAware, LongestPrefix
from benchmarks.fleet.router import Knowledge
from tandem.core.entropy import Entropy, SeededEntropy

_MATCH_TOKENS_MAX: Final = 131_072
"""Of a prompt that llm-d's approximate index looks at, in its guide for prefill workers."""
_GUIDE_TIERS: Final = TierWeights(dram=0.4)
_LLM_D_LOCAL: Final = 16
"""Uncached tokens that decode workers compute themselves in llm-d's sample configuration."""

Make = Callable[[PoolFacts, Entropy], Peer]


@dataclass(frozen=True)
class _Entry:
    """One policy for workers that do both, one for prefill workers and one for decode workers; those that are None
    are the first."""

    unified: Make
    prefill: Make | None = None
    decode: Make | None = None


class _FewLocal(Peer):
    """Another policy, whose choices compute prompts themselves of which they lack at most `tokens`."""

    def __init__(self, inner: Peer, tokens: int) -> None:
        self._inner = inner
        self._tokens = tokens

    def choose(self, ask: PeerContext) -> int:
        return self._inner.choose(ask)

    def local(self, ask: PeerContext, chosen: int) -> bool:
        return ask.input_tokens - ask.seen[chosen].cached <= self._tokens

    def first_token(self, number: int, chosen: int) -> None:
        self._inner.first_token(number, chosen)

    def finished(self, number: int, chosen: int) -> None:
        self._inner.finished(number, chosen)


def _least_loaded(facts: PoolFacts, entropy: Entropy) -> Peer:
    return LeastLoaded(entropy)


def _blind(make: Callable[[Entropy], Peer]) -> _Entry:
    return _Entry(lambda facts, entropy: make(entropy))


def _sample(make: Make) -> _Entry:
    """llm-d's sample configuration: the same in both pools, but short rests of prompts stay."""
    return _Entry(make, None, lambda facts, entropy: _FewLocal(make(facts, entropy), _LLM_D_LOCAL))


def _precise(weights: Weights, speculative_s: float = 2.0, tiers: TierWeights = EVEN) -> Make:
    return lambda facts, entropy: Precise(entropy, weights, speculative_s, tiers)


def _guide(index: Callable[[PoolFacts, Entropy], Precise | Approximate]) -> _Entry:
    """llm-d's guides: affinity, then the least to compute; every prompt disaggregated; decode by active requests."""

    def make(facts: PoolFacts, entropy: Entropy) -> Peer:
        settings = AffinitySettings(prefill_tokens_per_s=facts.prefill_tokens_per_s)
        return AffinityThenLoad(facts.workers, index(facts, entropy), entropy, settings)

    return _Entry(make, None, _least_loaded)


def _routed(facts: PoolFacts, entropy: Entropy) -> Approximate:
    """Tuned to the engine, whose blocks it has and as many of them."""
    return Approximate(facts.workers, entropy, Weights(), _MATCH_TOKENS_MAX, facts.kv_tokens)


def _dynamo(*, conditional: bool) -> _Entry:
    return _Entry(
        lambda facts, entropy: DynamoKv(facts.workers, entropy),
        lambda facts, entropy: DynamoPrefill(entropy),
        lambda facts, entropy: DynamoDecode(facts.workers, entropy, conditional=conditional),
    )


# Workers that only decode have no prompts waiting, which is all that kv_aware's cost knows of load: it would send all
# that begins alike to one of them. They are given the benefit of its load-only scoring.
_PEERS: Final[dict[str, _Entry]] = {
    "random": _blind(Random),
    "round robin": _blind(lambda entropy: RoundRobin()),
    "least loaded": _blind(LeastLoaded),
    "hash 1st block": _blind(lambda entropy: HashBlock(0)),
    "hash 2nd block": _blind(lambda entropy: HashBlock(1)),
    "sglang cache_aware": _Entry(lambda facts, entropy: CacheAware(facts.workers)),
    "vllm kv_aware": _Entry(lambda facts, entropy: KvAware(entropy), None, _least_loaded),
    "vllm longest prefix": _blind(lambda entropy: LongestPrefix()),
    "dynamo kv": _dynamo(conditional=False),
    "dynamo kv conditional": _dynamo(conditional=True),
    "llm-d default": _guide(_routed),
    "llm-d precise default": _guide(lambda facts, entropy: Precise(entropy, Weights(), tiers=TierWeights())),
    "llm-d precise tiers": _Entry(
        _precise(Weights(3, 2, 2), tiers=TierWeights()),
        _precise(Weights(3, 2, 2), tiers=_GUIDE_TIERS),
        _least_loaded,
    ),
    "llm-d precise 2:1": _sample(_precise(Weights(2, 1, 0))),
    "llm-d precise 3:1:1": _sample(_precise(Weights(3, 1, 1))),
    "llm-d precise 3:2:2": _sample(_precise(Weights(3, 2, 2), 0.0)),
    "llm-d approximate": _sample(lambda facts, entropy: Approximate(facts.workers, entropy, Weights(1, 1, 1))),
    "llm-d load": _sample(lambda facts, entropy: Scored(entropy, Weights(0, 1, 1))),
}
PEERS: Final = tuple(_PEERS)
CURRENT: Final = (
    "sglang cache_aware",
    "vllm kv_aware",
    "vllm longest prefix",
    "dynamo kv",
    "dynamo kv conditional",
    "llm-d default",
    "llm-d precise default",
    "llm-d precise tiers",
)
"""Every router as its project configures it today."""
_ONLY_APART: Final = ("dynamo kv conditional",)
"""Differ from another where prompts are computed apart, and only there."""


def current(roles: Sequence[str]) -> tuple[str, ...]:
    """Of `CURRENT` those that differ from each other on workers in these roles."""
    apart = "prefill" in roles
    return tuple(name for name in CURRENT if apart or name not in _ONLY_APART)


def peer(name: str, seed: int) -> Callable[[Knowledge], PeerDecider]:
    """The policy of that name in all pools. Raises `KeyError` when there is none."""
    entry = _PEERS[name]

    def decider(knowledge: Knowledge) -> PeerDecider:
        entropy = SeededEntropy(seed, name)
        computing, generating = entropy.fork("computing"), entropy.fork("generating")
        return PeerDecider(
            knowledge,
            _pool(entry.unified, computing),
            _pool(entry.prefill or entry.unified, computing),
            _pool(entry.decode or entry.unified, generating),
        )

    return decider


def _pool(make: Make, entropy: Entropy) -> Pool:
    return lambda facts: make(facts, entropy)
