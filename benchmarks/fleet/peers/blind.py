"""Policies that know nothing of caches: random, round robin, fewest requests in flight."""

from benchmarks.fleet.peers.policy import Peer, PeerContext, least
from tandem.core.entropy import Entropy, below


class Random(Peer):
    """Any worker."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def choose(self, ask: PeerContext) -> int:
        return below(self._entropy, len(ask.seen))


class RoundRobin(Peer):
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, ask: PeerContext) -> int:
        chosen = self._next % len(ask.seen)
        self._next += 1
        return chosen


class LeastLoaded(Peer):
    """Fewest requests in flight, ties at random."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def choose(self, ask: PeerContext) -> int:
        ties = least([seen.in_flight for seen in ask.seen])
        return ties[below(self._entropy, len(ties))]
