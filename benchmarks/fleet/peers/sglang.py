"""`cache_aware` of sglang's router (sgl-model-gateway, 0.3.2): a tree of what was sent where, and a test of balance.

The tree knows text, not blocks, and what was routed, not what is cached: it is told at routing time and forgets only
by its own size. Characters are taken as proportional to tokens. Both pools have one where prompts are computed apart,
and a request counts on both of its workers until its answer has ended.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, Final

from benchmarks.fleet.peers.policy import Peer, PeerContext, least

_CHARACTERS_PER_TOKEN: Final = 4


@dataclass(frozen=True)
class CacheAwareSettings:
    """The defaults of the router's command line. `tree_tokens_max` per worker: 2^26 characters."""

    cache_threshold: float = 0.3
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5
    eviction_interval_s: float = 60.0
    tree_tokens_max: int = (1 << 26) // _CHARACTERS_PER_TOKEN


class CacheAware(Peer):
    """Imbalanced: the shortest queue. Else who was sent the longest prefix, if that is more than the threshold; else
    the least loaded."""

    in_flight_to_end: ClassVar[bool] = True

    def __init__(self, workers: int, settings: CacheAwareSettings | None = None) -> None:
        self._settings = settings or CacheAwareSettings()
        self._tenants: dict[int, dict[int, None]] = {}
        """Of every block, who was sent it, the last one last."""
        self._uses: tuple[OrderedDict[int, int], ...] = tuple(OrderedDict() for _ in range(workers))
        """Per worker, its blocks with their tokens, the least recently used first."""
        self._sizes = [0] * workers
        self._evict_at = self._settings.eviction_interval_s

    def choose(self, ask: PeerContext) -> int:
        self._evict(ask.now)
        loads = [seen.in_flight for seen in ask.seen]
        settings, most, fewest = self._settings, max(loads), min(loads)
        chosen = least(loads)[0]
        if not (most - fewest > settings.balance_abs_threshold and most > settings.balance_rel_threshold * fewest):
            matched, tenant = self._match(ask)
            if matched / ask.input_tokens > settings.cache_threshold:
                chosen = tenant
        self._insert(ask, chosen)
        return chosen

    def _match(self, ask: PeerContext) -> tuple[int, int]:
        """Tokens of the longest prefix known of anybody, and of whom."""
        count, tenant = 0, -1
        for block in ask.blocks:
            tenants = self._tenants.get(block)
            if not tenants:
                break
            count += 1
            tenant = next(reversed(tenants))
        return ask.tokens(count), tenant

    def _insert(self, ask: PeerContext, worker: int) -> None:
        """The tail is used before the head: leaves are forgotten first."""
        uses = self._uses[worker]
        for place in range(len(ask.blocks) - 1, -1, -1):
            block = ask.blocks[place]
            tenants = self._tenants.setdefault(block, {})
            tenants.pop(worker, None)
            tenants[worker] = None
            if block in uses:
                uses.move_to_end(block)
            else:
                uses[block] = ask.tokens(place + 1) - ask.tokens(place)
                self._sizes[worker] += uses[block]

    def _evict(self, now: float) -> None:
        if now < self._evict_at:
            return
        self._evict_at = now + self._settings.eviction_interval_s
        for worker, uses in enumerate(self._uses):
            while self._sizes[worker] > self._settings.tree_tokens_max:
                block, tokens = uses.popitem(last=False)
                self._sizes[worker] -= tokens
                self._tenants[block].pop(worker, None)
                if not self._tenants[block]:
                    del self._tenants[block]
