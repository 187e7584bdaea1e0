"""`kv_aware` of the vLLM router (0.1.17): the least tokens to compute, by exact block events."""

from dataclasses import dataclass

from tandem.core.entropy import Entropy, below
from tandem.fleetsim.peers.ask import Peer, PeerAsk, Seen, least


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

    def choose(self, ask: PeerAsk) -> int:
        cheapest = least([self.cost(ask.input_tokens, seen) for seen in ask.seen])
        fewest = least([ask.seen[position].in_flight for position in cheapest])
        return cheapest[fewest[below(self._entropy, len(fewest))]]

    def cost(self, input_tokens: int, seen: Seen) -> float:
        """In tokens."""
        settings = self._settings
        credit = settings.device * seen.hbm + settings.host * seen.dram + settings.disk * seen.nvme
        return input_tokens - credit + seen.prefill_tokens
