"""The KV router of NVIDIA Dynamo (1.6, `--router-mode kv`, its default weights).

cost = prefill_load_scale * max(0, (active prefill tokens + prompt) / block - credit) + decode blocks + weight *
active requests, all in blocks; the credit is the cached part, less for lower tiers. The least cost wins, ties at
random. Beside prefill workers there are two routers: that of the prefill workers does not track active blocks, so
their part is 0; that of the decode workers gives no credit, takes every request's blocks for its own and does not
count prompts. With conditional disaggregation, which is off unless it is asked for, the decode worker that the whole
formula would choose keeps a prompt of which it lacks little, in tokens and as a share of it; and where it does not,
the decode workers' router gives its credit after all: max(0, decode blocks - credit) + weight * active requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.fleet.peers.policy import CandidateView, Peer, PeerContext, least
from tandem.core.entropy import Entropy, below


@dataclass(frozen=True)
class DynamoSettings:
    """The router's defaults. `block_tokens` is the engine's block size. A decode worker keeps a prompt of which it
    lacks less than `local_tokens` and less than `local_share`, if disaggregation is conditional."""

    prefill_load_scale: float = 1.0
    overlap_score_credit: float = 1.0
    host_cache_hit_weight: float = 0.75
    disk_cache_hit_weight: float = 0.25
    decode_active_request_weight: float = 0.0
    block_tokens: int = 16
    local_tokens: int = 2048
    local_share: float = 0.7


def credit(settings: DynamoSettings, device: float, host: float = 0.0, disk: float = 0.0) -> float:
    """What is cached counts for, in the unit of the arguments."""
    lower = settings.host_cache_hit_weight * host + settings.disk_cache_hit_weight * disk
    return settings.overlap_score_credit * device + lower


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
    credit_blocks = credit(settings, device_blocks, host_blocks, disk_blocks)
    prefill = settings.prefill_load_scale * max(0.0, raw_prefill_blocks - credit_blocks)
    return prefill + decode_blocks + settings.decode_active_request_weight * active_requests


def stays_local(settings: DynamoSettings, input_tokens: int, cached: int) -> bool:
    """Whether a decode worker that has `cached` tokens of a prompt in its pool computes the rest, if disaggregation
    is conditional."""
    lacking = max(0, input_tokens - cached)
    return lacking < settings.local_tokens and lacking / max(1, input_tokens) < settings.local_share


class DynamoKv(Peer):
    """Workers that do both. Counts itself which blocks are in use where: those of its requests under way, shared ones
    once."""

    def __init__(self, workers: int, entropy: Entropy, settings: DynamoSettings | None = None) -> None:
        self._settings = settings or DynamoSettings()
        self._entropy = entropy
        self._active: tuple[dict[int, int], ...] = tuple({} for _ in range(workers))
        """Blocks in use, per worker, with how many requests use each."""
        self._tokens = [0] * workers
        """In blocks in use, per worker."""
        self._requests: dict[int, tuple[Sequence[int], int, int]] = {}
        """Blocks of requests under way, how many tokens they have, and how many less than that the last one."""

    def choose(self, ask: PeerContext) -> int:
        names, size = ask.blocks, ask.block_tokens
        short = len(names) * size - ask.input_tokens
        new = [_new_tokens(active, names, size, short) for active in self._active]
        costs = [
            _whole_cost(self._settings, ask, seen, self._tokens[worker] + new[worker])
            for worker, seen in enumerate(ask.seen)
        ]
        cheapest = least(costs)
        chosen = cheapest[below(self._entropy, len(cheapest))]
        active = self._active[chosen]
        for name in names:
            active[name] = active.get(name, 0) + 1
        self._tokens[chosen] += new[chosen]
        self._requests[ask.number] = names, size, short
        return chosen

    def finished(self, number: int, chosen: int) -> None:
        names, size, short = self._requests.pop(number)
        active = self._active[chosen]
        for name in names:
            if active[name] == 1:
                del active[name]
            else:
                active[name] -= 1
        self._tokens[chosen] -= _new_tokens(active, names, size, short)


def _new_tokens(active: Mapping[int, int], names: Sequence[int], size: int, short: int) -> int:
    """Tokens of the blocks that are not in use, the last of which is `short` of `size`."""
    lacking = len(names) - sum(map(active.__contains__, names))
    return lacking * size - (short if lacking and names[-1] not in active else 0)


class DynamoPrefill(Peer):
    """Workers that compute prompts for others: prompts waiting there, and what is cached."""

    def __init__(self, entropy: Entropy, settings: DynamoSettings | None = None) -> None:
        self._settings = settings or DynamoSettings()
        self._entropy = entropy

    def choose(self, ask: PeerContext) -> int:
        costs = [_whole_cost(self._settings, ask, seen, 0) for seen in ask.seen]
        cheapest = least(costs)
        return cheapest[below(self._entropy, len(cheapest))]


class DynamoDecode(Peer):
    """Workers that decode what others have prefilled: prompt tokens of the requests there. With `conditional`
    disaggregation they may keep prompts."""

    def __init__(
        self, workers: int, entropy: Entropy, settings: DynamoSettings | None = None, *, conditional: bool = False
    ) -> None:
        self._settings = settings or DynamoSettings()
        self._entropy = entropy
        self._conditional = conditional
        self._tokens = [0] * workers
        """Of the prompts of requests under way, per worker."""
        self._requests: dict[int, int] = {}
        self._keeps = False
        """Whether the last choice computes the prompt itself."""

    def choose(self, ask: PeerContext) -> int:
        chosen = self._peeked(ask) if self._conditional else -1
        self._keeps = chosen >= 0
        if chosen < 0:
            cheapest = least([self._cost(ask, worker) for worker in range(len(ask.seen))])
            chosen = cheapest[below(self._entropy, len(cheapest))]
        self._tokens[chosen] += ask.input_tokens
        self._requests[ask.number] = ask.input_tokens
        return chosen

    def local(self, ask: PeerContext, chosen: int) -> bool:
        return self._keeps

    def finished(self, number: int, chosen: int) -> None:
        self._tokens[chosen] -= self._requests.pop(number)

    def _peeked(self, ask: PeerContext) -> int:
        """The worker that keeps the prompt; -1 if none does."""
        tokens = self._tokens
        costs = [
            _whole_cost(self._settings, ask, seen, tokens[worker] + ask.input_tokens)
            for worker, seen in enumerate(ask.seen)
        ]
        cheapest = least(costs)
        chosen = cheapest[below(self._entropy, len(cheapest))]
        return chosen if stays_local(self._settings, ask.input_tokens, ask.seen[chosen].hbm) else -1

    def _cost(self, ask: PeerContext, worker: int) -> float:
        settings, seen = self._settings, ask.seen[worker]
        tokens = float(self._tokens[worker] + ask.input_tokens)
        if self._conditional:
            tokens = max(0.0, tokens - credit(settings, seen.hbm, seen.dram, seen.nvme))
        return tokens / settings.block_tokens + settings.decode_active_request_weight * seen.in_flight


def _whole_cost(settings: DynamoSettings, ask: PeerContext, seen: CandidateView, decode_tokens: int) -> float:
    """Of a worker, with `decode_tokens` in blocks in use if it gets the request."""
    block = settings.block_tokens
    raw = (seen.prefill_tokens + ask.input_tokens) / block
    cached = (seen.hbm / block, seen.dram / block, seen.nvme / block)
    return cost(settings, raw, cached[0], decode_tokens / block, seen.in_flight, cached[1], cached[2])
