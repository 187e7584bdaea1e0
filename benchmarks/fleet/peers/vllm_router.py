"""`kv_aware` of the vLLM router, by exact block events: as released (0.1.17), and as its sources have it.

The release takes the worker with the least tokens to compute. The sources take the one with the longest cached
prefix, whatever it has to do, and the least loaded where nobody has any of it; what the chosen one lacks counts as
cached there for 2 s, so that prompts that follow closely find it.
"""

from dataclasses import dataclass

from benchmarks.fleet.peers.policy import CandidateView, Peer, PeerContext, least
from benchmarks.fleet.peers.speculative import Speculative
from tandem.core.entropy import Entropy, below


@dataclass(frozen=True)
class KvAwareSettings:
    """What a cached token counts for, by tier."""

    device: float = 1.0
    host: float = 0.8
    disk: float = 0.3


class KvAware(Peer):
    """Cost: prompt tokens less what is cached, plus what waits there to be computed. Temperature 0: the least cost;
    ties go to fewer requests in flight, then at random."""

    def __init__(self, entropy: Entropy, settings: KvAwareSettings | None = None) -> None:
        self._entropy = entropy
        self._settings = settings or KvAwareSettings()

    def choose(self, ask: PeerContext) -> int:
        cheapest = least([self.cost(ask.input_tokens, seen) for seen in ask.seen])
        fewest = least([ask.seen[position].in_flight for position in cheapest])
        return cheapest[fewest[below(self._entropy, len(fewest))]]

    def cost(self, input_tokens: int, seen: CandidateView) -> float:
        """In tokens."""
        settings = self._settings
        credit = settings.device * seen.hbm + settings.host * seen.dram + settings.disk * seen.nvme
        return input_tokens - credit + seen.prefill_tokens


class LongestPrefix(Peer):
    """Counts whole blocks, in whatever tier. Of equal prefixes the last worker's wins, of equal loads the first
    worker."""

    def __init__(self, speculative_s: float = 2.0) -> None:
        self._speculative = Speculative(speculative_s)

    def choose(self, ask: PeerContext) -> int:
        speculative = self._speculative
        speculative.expire(ask.now)
        counts = [seen.cached // ask.block_tokens for seen in ask.seen]
        if speculative:
            counts = [speculative.leading(ask.blocks, worker, count) for worker, count in enumerate(counts)]
        longest = max(counts)
        if longest == 0:
            chosen = least([seen.in_flight for seen in ask.seen])[0]
        else:
            chosen = len(counts) - 1 - counts[::-1].index(longest)
        speculative.routed(ask.blocks[longest:], chosen, ask.now)
        return chosen
