"""The Mooncake conversation trace: long prompts, half of them turns of conversations that come back.

Arrivals were rounded to 3 s: they are spread evenly inside their bucket, anew for each seed. The trace is cut into
parts, each played faster than the one before, so that the fleet has to work; the order of requests, on which caches
depend, stays. Workers are Llama-3.1-70B (FP8) on four H100 each, whose context takes the longest prompts. Tiers, if
any: 1.5 M tokens of DRAM read at 100 GB/s and as much NVMe at 12 GB/s per worker; a token takes 320 KiB.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.fleet.fleet import FleetSettings, roles
from benchmarks.fleet.ours import OursSettings
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.tiers import TierSettings
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request, Stage, Workload
from tandem.apps.bench.mooncake import BLOCK_TOKENS, read_trace
from tandem.apps.bench.workload import Item
from tandem.apps.bench.workload import Workload as Trace
from tandem.core.entropy import SeededEntropy, unit
from tandem.engine.simulated.presets import preset

FILE: Final = "traces/mooncake_conversation_trace.jsonl.zst"
"""In the data folder."""
MODEL: Final = "h100-llama-3.1-70b-tp4"
MAX_TOKENS: Final = 4096
"""What clients ask for: routers do not know how long an answer becomes."""
TIER_TOKENS: Final = 1_500_000
_NETWORK_BYTES_PER_S: Final = 50e9


@dataclass(frozen=True)
class ConversationShape:
    """A fleet, and how many times faster than recorded the requests of each part come."""

    name: str
    unified: int
    prefill: int
    decode: int
    tiers: bool
    speeds: tuple[float, ...]


SHAPES: Final = (
    ConversationShape("16 unified", 16, 0, 0, False, (2.0, 4.0, 6.0)),
    ConversationShape("16 unified, tiers", 16, 0, 0, True, (2.0, 4.0, 6.0)),
    ConversationShape("8P8D", 0, 8, 8, False, (1.0, 2.0, 3.0)),
    ConversationShape("8P8D, tiers", 0, 8, 8, True, (1.0, 2.0, 3.0)),
)


def fleet(shape: ConversationShape) -> FleetSettings:
    """Its workers."""
    chosen = preset(MODEL)
    size = chosen.kv_token_bytes
    tiers = (
        TierSettings("dram", TIER_TOKENS, 100e9 / size),
        TierSettings("nvme", TIER_TOKENS, 12e9 / size),
    )
    kv_tokens = chosen.model.blocks * chosen.model.block_tokens
    step_time = StepTime.of(chosen.model)
    worker = WorkerSettings(kv_tokens, BLOCK_TOKENS, step_time, tiers=tiers if shape.tiers else ())
    return FleetSettings(roles(shape.unified, shape.prefill, shape.decode), worker, _NETWORK_BYTES_PER_S / size)


def ours_settings() -> OursSettings:
    """Our router for it."""
    return OursSettings(preset(MODEL).kv_token_bytes)


def load(data: Path) -> Trace:
    """The trace from the data folder. Raises `bad_setting` when it cannot be read."""
    return read_trace(data / FILE)


def conversation(trace: Trace, shape: ConversationShape, seed: int, limit: int | None = None) -> Workload:
    """The first `limit` requests of the trace, or all of them, a stage per speed."""
    entropy = SeededEntropy(seed, "conversation")
    items = trace.items[:limit]
    timed = sorted((item.arrival_s + trace.quantum_s * unit(entropy), place) for place, item in enumerate(items))
    size = -(-len(timed) // len(shape.speeds))
    stages = []
    for part, speed in enumerate(shape.speeds):
        of_part = timed[part * size : (part + 1) * size]
        begin_s = of_part[0][0]
        requests = tuple(
            _request(items[place], part * size + number, (at_s - begin_s) / speed)
            for number, (at_s, place) in enumerate(of_part)
        )
        duration_s = (of_part[-1][0] - begin_s) / speed
        stages.append(Stage(speed, duration_s, requests))
    return Workload(shape.name, tuple(stages))


def _request(item: Item, number: int, at_s: float) -> Request:
    blocks = tuple(piece.content for piece in item.pieces)
    return Request(number, at_s, blocks, BLOCK_TOKENS, item.input_tokens, item.output_tokens, MAX_TOKENS)


def capacity_tokens(shape: ConversationShape) -> int:
    """Of all pools and tiers together, of those that compute prompts: what lies on workers that only decode has been
    computed elsewhere."""
    worker = fleet(shape).worker
    return (shape.prefill or shape.unified) * (worker.kv_tokens + sum(tier.tokens for tier in worker.tiers))


def one_pool_hit_ratio(requests: Sequence[Request], capacity: int) -> float:
    """What a single LRU cache of so many tokens would reach, with every block in it as soon as it was asked for:
    leading prompt tokens found over all prompt tokens."""
    lru: OrderedDict[int, int] = OrderedDict()
    held = hits = 0
    for request in requests:
        count = 0
        while count < len(request.blocks) and request.blocks[count] in lru:
            count += 1
        hits += min(request.leading(count), request.input_tokens - 1)
        for place in range(len(request.blocks) - 1, -1, -1):
            name = request.blocks[place]
            if name in lru:
                lru.move_to_end(name)
            else:
                lru[name] = request.leading(place + 1) - request.leading(place)
                held += lru[name]
        while held > capacity:
            held -= lru.popitem(last=False)[1]
    return hits / sum(request.input_tokens for request in requests)
