"""Policies that know nothing of caches: random, round robin, fewest requests in flight."""

from benchmarks.fleet.peers.ask import Peer, PeerAsk, least
from tandem.core.entropy import Entropy, below


class Random(Peer):
    """Any worker."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def choose(self, ask: PeerAsk) -> int:
        return below(self._entropy, len(ask.seen))


class RoundRobin(Peer):
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, ask: PeerAsk) -> int:
        chosen = self._next % len(ask.seen)
        self._next += 1
        return chosen


class LeastLoaded(Peer):
    """Fewest requests in flight, ties at random."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def choose(self, ask: PeerAsk) -> int:
        ties = least([seen.in_flight for seen in ask.seen])
        return ties[below(self._entropy, len(ties))]
