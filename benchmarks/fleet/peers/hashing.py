"""Consistent hashing of a prompt's head: equal heads go to the same worker, whatever it has to do.

Rendezvous hashing: of all workers the one with the greatest hash of (worker, key) takes the key.
"""

from hashlib import blake2b

from benchmarks.fleet.peers.policy import Peer, PeerContext


class HashBlock(Peer):
    """By the name of one block of the prompt, which stands for everything before it. Shorter prompts go by their
    last. The first block of many workloads is one system prompt for all: then the second spreads them."""

    def __init__(self, place: int) -> None:
        self._place = place
        self._known: dict[int, int] = {}

    def choose(self, ask: PeerContext) -> int:
        key = ask.blocks[min(self._place, len(ask.blocks) - 1)]
        chosen = self._known.get(key)
        if chosen is None:
            chosen = self._known[key] = max(range(len(ask.seen)), key=lambda worker: _draw(worker, key))
        return chosen


def _draw(worker: int, key: int) -> bytes:
    return blake2b(worker.to_bytes(4, "little") + key.to_bytes(16, "little"), digest_size=8).digest()
