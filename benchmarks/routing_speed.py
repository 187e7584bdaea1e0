"""How fast the fleet simulator is: requests per CPU second, 512 prompt tokens in, 64 out, 16 workers.

The load of `benchmarks.simulator`, which runs the whole platform; here a worker is its scheduler, pool and step
times, and the router its placement.
"""

import time
from typing import Final

from benchmarks.fleet.fleet import DeciderOf, FleetSettings, roles, simulate
from benchmarks.fleet.ours import OursSettings, ours
from benchmarks.fleet.peers.catalogue import peer
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request, Stage, Workload
from benchmarks.rounds import Check
from tandem.engine.simulated.presets import preset

REQUESTS: Final = 6_000
_PER_S: Final = 600.0
_PRESET: Final = "h100-llama-3.1-8b"
_BLOCK_TOKENS: Final = 64
_LIMIT: Final = 2_000.0
_FLEETS: Final = {"16 unified": roles(unified=16), "8 prefill, 8 decode": roles(prefill=8, decode=8)}


def speeds() -> list[Check]:
    """One check per fleet, with the cheapest policy; what our own costs besides is told in the same unit."""
    checks = []
    for name, of_workers in _FLEETS.items():
        least, tandem = (_rate(of_workers, decider) for decider in (peer("least loaded", 0), _ours()))
        print(f"simulated requests per CPU second, {name}, our policy: {tandem:,.0f}")
        checks.append(Check(f"simulated requests per CPU second, {name}, least loaded", least, _LIMIT, True))
    return checks


def _ours() -> DeciderOf:
    return ours(OursSettings(preset(_PRESET).kv_token_bytes), 0)


def _rate(of_workers: tuple[str, ...], decider: DeciderOf) -> float:
    chosen = preset(_PRESET)
    kv_tokens = chosen.model.blocks * chosen.model.block_tokens
    settings = FleetSettings(of_workers, WorkerSettings(kv_tokens, _BLOCK_TOKENS, StepTime.of(chosen.model)))
    blocks = 512 // _BLOCK_TOKENS
    requests = tuple(
        Request(
            number, number / _PER_S, tuple(number << 8 | place for place in range(blocks)), _BLOCK_TOKENS, 512, 64, 64
        )
        for number in range(REQUESTS)
    )
    workload = Workload("speed", (Stage(_PER_S, REQUESTS / _PER_S, requests),))
    began = time.process_time()
    simulate(settings, decider, workload)
    return REQUESTS / (time.process_time() - began)
