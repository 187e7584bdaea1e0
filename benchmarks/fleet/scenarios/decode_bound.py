"""Short prompts and long answers: the work is decoding, and a router has nothing to win by prefixes, but can lose.

All prompts begin with the same 64 tokens, which a policy that goes by the longest prefix would follow to one worker;
one in ten repeats an earlier prompt. Prompts have 96 to 352 tokens, answers 500 to 1,500; eight workers of
Llama-3.1-70B (FP8) on four H100 each.
"""

from dataclasses import replace
from math import log
from typing import Final

from benchmarks.fleet.fleet import FleetSettings, roles
from benchmarks.fleet.ours import OursSettings
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request, Stage, Workload
from tandem.core.entropy import Entropy, SeededEntropy, below, unit
from tandem.engine.simulated.presets import preset

NAME: Final = "decode-bound"
MODEL: Final = "h100-llama-3.1-70b-tp4"
BLOCK_TOKENS: Final = 32
RATES: Final = (8.0, 16.0, 32.0, 48.0)
STAGE_S: Final = 60.0
MAX_TOKENS: Final = 2048
_WORKERS: Final = 8
_SHARED_BLOCKS: Final = 2
_REPEATS: Final = 0.1


def fleet() -> FleetSettings:
    """Its workers."""
    chosen = preset(MODEL)
    kv_tokens = chosen.model.blocks * chosen.model.block_tokens
    worker = WorkerSettings(kv_tokens, BLOCK_TOKENS, StepTime.of(chosen.model))
    return FleetSettings(roles(unified=_WORKERS), worker, 50e9 / chosen.kv_token_bytes)


def ours_settings() -> OursSettings:
    """Our router for it."""
    return OursSettings(preset(MODEL).kv_token_bytes)


def decode_bound(seed: int, rates: tuple[float, ...] = RATES, stage_s: float = STAGE_S) -> Workload:
    """A stage per rate."""
    entropy = SeededEntropy(seed, NAME)
    stages: list[Stage] = []
    past: list[Request] = []
    for rate in rates:
        requests, at_s = [], 0.0
        for _ in range(round(rate * stage_s)):
            at_s += -log(1 - unit(entropy)) / rate
            request = _request(entropy, len(past), at_s)
            if past and unit(entropy) < _REPEATS:
                before = past[below(entropy, len(past))]
                request = replace(request, blocks=before.blocks, input_tokens=before.input_tokens)
            past.append(request)
            requests.append(request)
        stages.append(Stage(rate, stage_s, tuple(requests)))
    return Workload(NAME, tuple(stages))


def _request(entropy: Entropy, number: int, at_s: float) -> Request:
    tokens = 96 + below(entropy, 257)
    count = -(-tokens // BLOCK_TOKENS)
    shared = tuple(range(_SHARED_BLOCKS))
    own = tuple((number + 1) << 8 | place for place in range(count - _SHARED_BLOCKS))
    return Request(number, at_s, shared + own, BLOCK_TOKENS, tokens, 500 + below(entropy, 1001), MAX_TOKENS)
