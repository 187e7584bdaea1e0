"""The KV router of NVIDIA Dynamo (1.6.1, `--router-mode kv`, its default weights).

cost = prefill_load_scale * max(0, (active prefill tokens + prompt) / block - credit) + decode blocks + weight *
active requests, all in blocks; the credit is the cached part, less for lower tiers. The least cost wins, ties at
random. A pool that only decodes is chosen by load alone.
"""

from collections import Counter
from dataclasses import dataclass

from tandem.core.entropy import Entropy, below
from tandem.fleetsim.peers.ask import Peer, PeerAsk, least


@dataclass(frozen=True)
class DynamoSettings:
    """The router's defaults. `block_tokens` is the engine's block size."""

    prefill_load_scale: float = 1.0
    overlap_score_credit: float = 1.0
    host_cache_hit_weight: float = 0.75
    disk_cache_hit_weight: float = 0.25
    decode_active_request_weight: float = 0.0
    block_tokens: int = 16


def cost(
    settings: DynamoSettings,
    raw_prefill_blocks: float,
    device_blocks: float,
    decode_blocks: float,
    active_requests: int = 0,
    host_blocks: float = 0.0,
    disk_blocks: float = 0.0,
) -> float:
    """The formula itself, in blocks."""
    credit = settings.overlap_score_credit * device_blocks
    credit += settings.host_cache_hit_weight * host_blocks + settings.disk_cache_hit_weight * disk_blocks
    prefill = settings.prefill_load_scale * max(0.0, raw_prefill_blocks - credit)
    return prefill + decode_blocks + settings.decode_active_request_weight * active_requests


class DynamoKv(Peer):
    """Counts itself which blocks are in use where: those of its requests under way, shared ones once."""

    def __init__(
        self, workers: int, entropy: Entropy, *, decode_only: bool = False, settings: DynamoSettings | None = None
    ) -> None:
        self._settings = settings or DynamoSettings()
        self._entropy = entropy
        self._decode_only = decode_only
        self._active: tuple[Counter[int], ...] = tuple(Counter() for _ in range(workers))
        self._tokens = [0] * workers
        """In blocks in use, per worker."""
        self._requests: dict[int, tuple[tuple[int, int], ...]] = {}

    def choose(self, ask: PeerAsk) -> int:
        sized = tuple((name, ask.tokens(place + 1) - ask.tokens(place)) for place, name in enumerate(ask.blocks))
        cheapest = least([self._cost(ask, worker, sized) for worker in range(len(ask.seen))])
        chosen = cheapest[below(self._entropy, len(cheapest))]
        active = self._active[chosen]
        for name, tokens in sized:
            active[name] += 1
            if active[name] == 1:
                self._tokens[chosen] += tokens
        self._requests[ask.number] = sized
        return chosen

    def finished(self, number: int, chosen: int) -> None:
        active = self._active[chosen]
        for name, tokens in self._requests.pop(number):
            active[name] -= 1
            if active[name] == 0:
                del active[name]
                self._tokens[chosen] -= tokens

    def _cost(self, ask: PeerAsk, worker: int, sized: tuple[tuple[int, int], ...]) -> float:
        settings, seen, active = self._settings, ask.seen[worker], self._active[worker]
        block = settings.block_tokens
        new = sum(tokens for name, tokens in sized if name not in active)
        decode_blocks = (self._tokens[worker] + new) / block
        if self._decode_only:
            return cost(settings, 0.0, 0.0, decode_blocks, seen.in_flight)
        raw = (seen.prefill_tokens + ask.input_tokens) / block
        cached = (seen.hbm / block, seen.dram / block, seen.nvme / block)
        return cost(settings, raw, cached[0], decode_blocks, seen.in_flight, cached[1], cached[2])
