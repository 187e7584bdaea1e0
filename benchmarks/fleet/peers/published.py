"""Policies as they were in the runs that are published, and what their routers saw: to calibrate the simulator by.

llm-d's of September 2025: the precise scorer spreads its scores between the least and the most of the pods that hold
anything (all of these score 1 when they hold the same, others 0), and knows nothing of what was just routed. Figures
come from vLLM's metrics page, which tells of the last step that has ended. Mooncake's prefill scheduling of FAST '25
(Algorithm 1) with times in prompt tokens, and its baselines.
"""

from collections.abc import Sequence

from benchmarks.fleet.peers.decider import PeerDecider
from benchmarks.fleet.peers.llm_d import Scored
from benchmarks.fleet.peers.policy import CandidateView, Peer, PeerContext, least
from benchmarks.fleet.workload import Request
from tandem.core.entropy import Entropy, below


def among_holders(cached: Sequence[int]) -> list[float]:
    """Scores by cached tokens, normalised over those that hold any."""
    held = [tokens for tokens in cached if tokens > 0]
    low, high = min(held, default=0), max(held, default=0)
    return [0.0 if tokens <= 0 else 1.0 if low == high else (tokens - low) / (high - low) for tokens in cached]


class FirstPrecise(Scored):
    """llm-d's precise scorer in its first form."""

    def prefix_scores(self, ask: PeerContext) -> Sequence[float]:
        return among_holders([seen.cached for seen in ask.seen])


class LeastToCompute(Peer):
    """The fewest prompt tokens to compute before the first token, ties at random. `local`: the request's own count
    without those that the worker has. `pooled`: without those that any worker has, which are fetched."""

    def __init__(self, entropy: Entropy, *, local: bool = False, pooled: bool = False) -> None:
        self._entropy = entropy
        self._local = local
        self._pooled = pooled

    def choose(self, ask: PeerContext) -> int:
        best = max(seen.cached for seen in ask.seen) if self._pooled else 0
        own = [max(best, seen.cached if self._local or self._pooled else 0) for seen in ask.seen]
        costs = [seen.prefill_tokens + ask.input_tokens - known for seen, known in zip(ask.seen, own, strict=True)]
        ties = least(costs)
        return ties[below(self._entropy, len(ties))]


class PublishedDecider(PeerDecider):
    """A peer's router that scrapes vLLM."""

    _now = 0.0

    def place(self, request: Request, now: float) -> tuple[int, int]:
        self._now = now
        return super().place(request, now)

    def _seen(self, number: int, held: tuple[int, int, int]) -> CandidateView:
        worker = self._knowledge.workers[number]
        waiting, free = worker.page(self._now)
        usage = 1.0 - free / worker.settings.kv_tokens
        return CandidateView(self._in_flight[number], waiting, usage, self._prefill_tokens[number], *held)


class PooledDecider(PeerDecider):
    """Prefill workers fetch what another of them has of a prompt: Mooncake's store."""

    def place(self, request: Request, now: float) -> tuple[int, int]:
        decode, prefill = super().place(request, now)
        found = self._knowledge.index.longest(self._knowledge.names(request))
        held = [(self._knowledge.numbers[worker], match.total) for worker, match in found.items()]
        request.sources = tuple(sorted((each for each in held if each[0] != prefill), key=lambda each: -each[1]))
        return decode, prefill
