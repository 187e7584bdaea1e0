"""What llm-d's guides configure in August 2026: a filter for prefix affinity, then the least tokens to compute.

The filter keeps the workers that have at least `affinity_threshold` of the prompt, if there are any; unless even the
least busy of them has so many more prompt tokens before it than the least busy of the others that its first token
would come `ttft_penalty_max_s` later, at the rate an idle worker computes prompts. Of those that are left the one
with the highest `token_load_score` wins, ties at random. The router counts prompt tokens in flight itself: what the
chosen worker lacked, until its first token. The index is one of `llm_d.py`: events, or what was routed where.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.fleet.peers.llm_d import best
from benchmarks.fleet.peers.policy import Peer, PeerContext
from tandem.core.entropy import Entropy, unit


@dataclass(frozen=True)
class AffinitySettings:
    """Defaults of the filter and of the scorer. `prefill_tokens_per_s` is to be measured anew for other workers than
    those it was measured on, an 8,192-token chunk of a 32B model on two H100."""

    affinity_threshold: float = 0.80
    ttft_penalty_max_s: float = 18.0
    exploration: float = 0.0
    prefill_tokens_per_s: float = 15_928.0
    load_tokens_max: int = 4_194_304


class PrefixIndex(Protocol):
    """Knows who has how much of a prompt."""

    def prefix_scores(self, ask: PeerContext) -> Sequence[float]:
        """By candidate, the share of the prompt it has."""
        ...

    def routed(self, ask: PeerContext, chosen: int) -> None:
        """The request goes there."""
        ...


def kept(shares: Sequence[float], in_flight: Sequence[int], settings: AffinitySettings) -> list[int]:
    """The candidates that pass the filter, in order: `shares` of the prompt they have, prompt tokens `in_flight`."""
    everybody = list(range(len(shares)))
    sticky = [worker for worker in everybody if shares[worker] >= settings.affinity_threshold]
    if not sticky or len(sticky) == len(everybody):
        return everybody
    if settings.ttft_penalty_max_s > 0:
        others = min(in_flight[worker] for worker in everybody if shares[worker] < settings.affinity_threshold)
        later_s = (min(in_flight[worker] for worker in sticky) - others) / settings.prefill_tokens_per_s
        if later_s > settings.ttft_penalty_max_s:
            return everybody
    return sticky


def token_load_score(tokens: float, most: int) -> float:
    """1 for nothing to compute, 0 for `most` tokens or more."""
    return 1.0 - min(tokens, most) / most


class AffinityThenLoad(Peer):
    """Counts its own prompt tokens in flight, as its index has it."""

    def __init__(
        self, workers: int, index: PrefixIndex, entropy: Entropy, settings: AffinitySettings | None = None
    ) -> None:
        self._index = index
        self._entropy = entropy
        self._settings = settings or AffinitySettings()
        self._in_flight = [0] * workers
        self._lacked: dict[int, int] = {}
        """By request whose first token has not come."""

    def choose(self, ask: PeerContext) -> int:
        settings, in_flight = self._settings, self._in_flight
        shares = self._index.prefix_scores(ask)
        lacking = [round((1.0 - share) * ask.input_tokens) for share in shares]
        if settings.exploration > 0 and unit(self._entropy) < settings.exploration:
            left = list(range(len(shares)))
        else:
            left = kept(shares, in_flight, settings)
        most = settings.load_tokens_max
        scores = [token_load_score(in_flight[worker] + lacking[worker], most) for worker in left]
        chosen = left[best(scores, self._entropy)]
        self._index.routed(ask, chosen)
        self._lacked[ask.number] = lacking[chosen]
        in_flight[chosen] += lacking[chosen]
        return chosen

    def first_token(self, number: int, chosen: int) -> None:
        self._in_flight[chosen] -= self._lacked.pop(number)
