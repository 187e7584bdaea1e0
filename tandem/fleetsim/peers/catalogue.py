"""Peers' policies by name, ready for a run."""

from collections.abc import Callable
from typing import Final

from tandem.core.entropy import SeededEntropy
from tandem.fleetsim.peers.ask import Peer
from tandem.fleetsim.peers.blind import LeastLoaded, Random, RoundRobin
from tandem.fleetsim.peers.decider import PeerDecider
from tandem.fleetsim.peers.dynamo import DynamoKv
from tandem.fleetsim.peers.hashing import HashBlock
from tandem.fleetsim.peers.llm_d import Approximate, Precise, Scored, Weights
from tandem.fleetsim.peers.sglang import CacheAware
from tandem.fleetsim.peers.vllm_router import KvAware
from tandem.fleetsim.router import Knowledge

_LLM_D_LOCAL: Final = 16
"""Uncached tokens that llm-d's decode workers compute themselves."""

Make = Callable[[int, SeededEntropy, bool], Peer]
"""(candidates, entropy, whether they only decode) -> policy."""

# Workers that only decode have no prompts waiting, which is all that kv_aware's cost knows of load: it would send all
# that begins alike to one of them. They are given the benefit of its load-only scoring.
_PEERS: Final[dict[str, Make]] = {
    "random": lambda workers, entropy, decode_only: Random(entropy),
    "round robin": lambda workers, entropy, decode_only: RoundRobin(),
    "least loaded": lambda workers, entropy, decode_only: LeastLoaded(entropy),
    "hash 1st block": lambda workers, entropy, decode_only: HashBlock(0),
    "hash 2nd block": lambda workers, entropy, decode_only: HashBlock(1),
    "sglang cache_aware": lambda workers, entropy, decode_only: CacheAware(workers),
    "vllm kv_aware": lambda workers, entropy, decode_only: LeastLoaded(entropy) if decode_only else KvAware(entropy),
    "dynamo kv": lambda workers, entropy, decode_only: DynamoKv(workers, entropy, decode_only=decode_only),
    "llm-d precise 2:1": lambda workers, entropy, decode_only: Precise(entropy, Weights(2, 1, 0)),
    "llm-d precise 3:1:1": lambda workers, entropy, decode_only: Precise(entropy, Weights(3, 1, 1)),
    "llm-d precise 3:2:2": lambda workers, entropy, decode_only: Precise(entropy, Weights(3, 2, 2), 0.0),
    "llm-d approximate": lambda workers, entropy, decode_only: Approximate(workers, entropy, Weights(1, 1, 1)),
    "llm-d load": lambda workers, entropy, decode_only: Scored(entropy, Weights(0, 1, 1)),
}
PEERS: Final = tuple(_PEERS)


def peer(name: str, seed: int) -> Callable[[Knowledge], PeerDecider]:
    """The policy of that name in both pools. Raises `KeyError` when there is none."""
    make = _PEERS[name]
    local = (lambda uncached: uncached <= _LLM_D_LOCAL) if name.startswith("llm-d") else (lambda uncached: False)

    def decider(knowledge: Knowledge) -> PeerDecider:
        entropy = SeededEntropy(seed, name)
        computing, generating = entropy.fork("computing"), entropy.fork("generating")
        return PeerDecider(
            knowledge,
            lambda workers: make(workers, computing, False),
            lambda workers: make(workers, generating, True),
            local,
        )

    return decider
