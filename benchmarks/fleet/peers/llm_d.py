"""Scorers of llm-d's router, and of the Gateway API inference extension before it: a weighted sum, the highest wins.

`prefix` is the matched share of the prompt, `queue` the waiting queue min-max normalised over all candidates (1 where
all are equal), `kv` the free share of the pool. Ties at random. The precise index is fed by block events, and takes
what was just routed as cached for 2 s; the approximate one knows only what was routed: the first 256 blocks of 64
characters, in an LRU per pod of 31,250 of them, as in the published comparison.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.fleet.peers.policy import Peer, PeerContext
from benchmarks.fleet.peers.speculative import Speculative
from tandem.core.entropy import Entropy, below

_TIE: Final = 1e-9


@dataclass(frozen=True)
class Weights:
    """Of the three scorers."""

    prefix: float = 2.0
    queue: float = 1.0
    kv: float = 0.0


def queue_scores(waiting: Sequence[int]) -> list[float]:
    """1 for the shortest queue, 0 for the longest."""
    most, fewest = max(waiting), min(waiting)
    if most == fewest:
        return [1.0] * len(waiting)
    return [(most - each) / (most - fewest) for each in waiting]


def best(scores: Sequence[float], entropy: Entropy) -> int:
    """The position of the highest score, ties at random."""
    highest = max(scores)
    ties = [position for position, score in enumerate(scores) if score >= highest - _TIE]
    return ties[below(entropy, len(ties))]


class Scored(Peer):
    """The weighted sum; who knows of prefixes is a matter of the subclass. This one does not."""

    def __init__(self, entropy: Entropy, weights: Weights) -> None:
        self._entropy = entropy
        self._weights = weights

    def choose(self, ask: PeerContext) -> int:
        weights = self._weights
        queues = queue_scores([seen.waiting for seen in ask.seen])
        prefixes = self.prefix_scores(ask)
        scores = [
            weights.prefix * prefix + weights.queue * queue + weights.kv * (1.0 - seen.kv_usage)
            for prefix, queue, seen in zip(prefixes, queues, ask.seen, strict=True)
        ]
        chosen = best(scores, self._entropy)
        self.routed(ask, chosen)
        return chosen

    def prefix_scores(self, ask: PeerContext) -> Sequence[float]:
        return [0.0] * len(ask.seen)

    def routed(self, ask: PeerContext, chosen: int) -> None:
        """The request goes there."""


@dataclass(frozen=True)
class TierWeights:
    """What a cached block counts for by where it is. The defaults are the router's own; it names the pool and DRAM
    alone, and takes a tier that it does not know for the pool."""

    hbm: float = 1.0
    dram: float = 0.8
    nvme: float = 1.0


EVEN: Final = TierWeights(1.0, 1.0, 1.0)


class Precise(Scored):
    """By block events. What was just routed counts as if it were in the pool."""

    def __init__(
        self, entropy: Entropy, weights: Weights, speculative_s: float = 2.0, tiers: TierWeights = EVEN
    ) -> None:
        super().__init__(entropy, weights)
        self._speculative = Speculative(speculative_s)
        self._tiers = tiers

    def prefix_scores(self, ask: PeerContext) -> Sequence[float]:
        speculative, tiers = self._speculative, self._tiers
        speculative.expire(ask.now)
        if not speculative:
            return [
                (tiers.hbm * seen.hbm + tiers.dram * seen.dram + tiers.nvme * seen.nvme) / ask.input_tokens
                for seen in ask.seen
            ]
        return [self._weighted(ask, worker) / ask.input_tokens for worker in range(len(ask.seen))]

    def routed(self, ask: PeerContext, chosen: int) -> None:
        self._speculative.routed(ask.blocks, chosen, ask.now)

    def _weighted(self, ask: PeerContext, worker: int) -> float:
        seen, tiers, speculative = ask.seen[worker], self._tiers, self._speculative
        told = -(-seen.cached // ask.block_tokens)
        count = speculative.leading(ask.blocks, worker, told)
        weighted = tiers.hbm * seen.hbm + max(0, ask.tokens(count) - seen.cached)
        if seen.cached == seen.hbm:
            return weighted
        # Tokens below the pool, in the order of their tiers: DRAM, then NVMe.
        in_dram = seen.hbm + seen.dram
        for place in range(seen.hbm // ask.block_tokens, told):
            begin, end = max(ask.tokens(place), seen.hbm), min(ask.tokens(place + 1), seen.cached)
            weight = tiers.dram if end <= in_dram else tiers.nvme
            if speculative.holds(ask.blocks[place], worker):
                weight = max(weight, tiers.hbm)
            weighted += weight * max(0, end - begin)
        return weighted


class Approximate(Scored):
    """By what was routed."""

    def __init__(
        self,
        workers: int,
        entropy: Entropy,
        weights: Weights,
        match_tokens_max: int = 4_096,
        lru_tokens: int = 500_000,
    ) -> None:
        super().__init__(entropy, weights)
        self._match_max = match_tokens_max
        self._lru_tokens = lru_tokens
        self._lru: tuple[OrderedDict[int, int], ...] = tuple(OrderedDict() for _ in range(workers))
        self._held = [0] * workers

    def prefix_scores(self, ask: PeerContext) -> Sequence[float]:
        whole, looked_at = min(self._match_max, ask.input_tokens), self._looked_at(ask)
        return [min(ask.tokens(_leading(looked_at, lru)), whole) / whole for lru in self._lru]

    def routed(self, ask: PeerContext, chosen: int) -> None:
        lru, size = self._lru[chosen], ask.block_tokens
        for place, name in enumerate(self._looked_at(ask)):
            if name in lru:
                lru.move_to_end(name)
            else:
                lru[name] = min(size, ask.input_tokens - place * size)
                self._held[chosen] += lru[name]
        while self._held[chosen] > self._lru_tokens:
            self._held[chosen] -= lru.popitem(last=False)[1]

    def _looked_at(self, ask: PeerContext) -> Sequence[int]:
        """Blocks that begin before the most that is matched."""
        return ask.blocks[: -(-self._match_max // ask.block_tokens)]


def _leading(names: Sequence[int], lru: "OrderedDict[int, int]") -> int:
    count = 0
    for name in names:
        if name not in lru:
            break
        count += 1
    return count
