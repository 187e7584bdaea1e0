"""Numbers that the scaling decision comes to at a constant rate, tried on the fleet simulator: step by step, with the
router's own placement, chunked prompts, KV memory and transfers. With them the SLO is held; one worker of either pool
fewer is tried, too.

`python -m benchmarks.autoscale_fleet`. It takes about half a minute of processor time.
"""

import math
import sys
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.autoscale_world import arrivals
from benchmarks.fleet.fleet import FleetSettings, roles, simulate
from benchmarks.fleet.metrics import quantile
from benchmarks.fleet.ours import OursDecider, OursSettings
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request, Stage, Workload
from benchmarks.rounds import Check, table
from control_plane.autoscale import DecodeFit, History, PoolLoad, PoolSpeed, ServiceLoad, decide
from tandem.core import slo as objectives
from tandem.engine.simulated.presets import Preset, preset
from tandem.spec.pool import Autoscaling, Pool
from tandem.spec.rollout import Slo
from tandem.spec.service import Spec

PRESET: Final = "h100-llama-3.1-70b-tp4"
TTFT_S: Final = 2.0
TPOT_S: Final = 0.03
PROMPT: Final = 3000
ANSWER: Final = 500
RATES: Final = (3.0, 20.0)
_SECONDS: Final = 240.0
_WARM_S: Final = 60.0
_BLOCK: Final = 16
_TOKEN_BYTES: Final = 327_680


@dataclass(frozen=True)
class FleetAttainment:
    """What a fleet of that size gave."""

    prefill: int
    decode: int
    held: float
    ttft_p99_s: float
    tpot_p99_s: float


def speeds(model: Preset) -> dict[str, PoolSpeed]:
    """What its workers would be measured at: a sequence that decodes attends to its prompt and half its answer."""
    step = StepTime.of(model.model)
    sequence_s = step.sequence_s + step.read_s * (PROMPT + ANSWER / 2)
    return {
        "prefill": PoolSpeed(step.token_s, step.context_s, cold_start_s=120.0),
        "decode": PoolSpeed(decode=DecodeFit(step.base_s, sequence_s, 64.0), cold_start_s=120.0),
    }


def decided(rate: float, measured: dict[str, PoolSpeed]) -> tuple[int, int]:
    """After a quarter of an hour at that rate."""
    scaling = Autoscaling(64, 1)
    pools = (Pool("prefill", "prefill", autoscaling=scaling), Pool("decode", "decode", autoscaling=scaling))
    spec = Spec(pools=pools, slo=Slo(ttft_ms=round(TTFT_S * 1e3), tpot_ms=round(TPOT_S * 1e3)))
    history, found = History(), (1, 1)
    for look in range(180):
        now = 5.0 * look
        requests = int(rate * now)
        load = ServiceLoad(
            pools={"prefill": PoolLoad(found[0], found[0]), "decode": PoolLoad(found[1], found[1])},
            sequences=int(rate * ANSWER * TPOT_S / 2),
            arrived_requests=requests,
            arrived_prompt_tokens=PROMPT * requests,
            output_tokens=ANSWER * requests,
            finished_requests=requests,
        )
        made = decide(spec, load, measured, replace(history, recommended={}), now)
        history, found = made.history, (made.pools["prefill"].replicas, made.pools["decode"].replicas)
    return found


def play(rate: float, prefill: int, decode: int, model: Preset) -> FleetAttainment:
    """Four minutes of that rate, of which the first does not count."""
    requests = tuple(
        Request(
            number,
            each.at,
            tuple(number * 4096 + block for block in range(math.ceil(each.prompt / _BLOCK))),
            _BLOCK,
            each.prompt,
            each.answer,
            each.answer,
        )
        for number, each in enumerate(arrivals(lambda now: rate, _SECONDS, 5, PROMPT, ANSWER))
    )
    worker = WorkerSettings(model.model.blocks * _BLOCK, _BLOCK, StepTime.of(model.model)).as_in_production(TPOT_S)
    ours = OursSettings(_TOKEN_BYTES).holding(objectives.Slo(TTFT_S, TPOT_S))
    fleet = FleetSettings(roles(prefill=prefill, decode=decode), worker, transfer_tokens_per_s=75_000.0)
    simulate(
        fleet,
        lambda knowledge: OursDecider(knowledge, ours, 1),
        Workload("constant", (Stage(rate, _SECONDS, requests),)),
    )
    counted = [request for request in requests if request.arrival_s >= _WARM_S]
    ttft = sorted(request.ttft_s for request in counted)
    tpot = [(each.end_s - each.first_s) / max(1, each.output_tokens - 1) for each in counted]
    both = sum(each.ttft_s <= TTFT_S and per <= TPOT_S for each, per in zip(counted, tpot, strict=True))
    return FleetAttainment(prefill, decode, both / len(counted), quantile(ttft, 0.99), quantile(sorted(tpot), 0.99))


def main() -> int:
    model = preset(PRESET)
    rows, checks = list[tuple[str, ...]](), list[Check]()
    for rate in RATES:
        prefill, decode = decided(rate, speeds(model))
        for each in ((prefill, decode), (prefill - 1, decode), (prefill, decode - 1)):
            if min(each) < 1:
                continue
            held = play(rate, *each, model)
            name = "decided" if each == (prefill, decode) else "one fewer"
            times = (f"{held.held:.2%}", f"{held.ttft_p99_s:.2f}", f"{held.tpot_p99_s * 1e3:.1f}")
            rows.append((f"{rate:g}", name, str(each[0]), str(each[1]), *times))
            if name == "decided":
                checks.append(Check(f"share that held the SLO at {rate:g}/s", held.held, 0.99, at_least=True))
    print(f"{PRESET}; SLO: TTFT {TTFT_S:g} s, TPOT {TPOT_S * 1e3:g} ms, for 99 of 100 requests")
    print(table(("requests/s", "workers", "prefill", "decode", "both held", "TTFT p99 s", "TPOT p99 ms"), rows))
    for check in checks:
        print(check.line())
    return 0 if all(check.met for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
