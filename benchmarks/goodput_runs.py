"""One run of the goodput bench: a contender on a fleet, judged by every bound on TPOT.

The traffic of a run depends on its seed and its load alone, so contenders see the same requests at the same times.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Final

from benchmarks.fleet.auto import AutoDecider
from benchmarks.fleet.contenders import AUTO, EQUAL_TERMS, OURS, decider_of
from benchmarks.fleet.fleet import DeciderOf, Fleet, FleetSettings, roles
from benchmarks.fleet.goodput import BUCKET_S, Bucket, Judged, Window, judge
from benchmarks.fleet.scenarios import generated, sessions
from benchmarks.fleet.scenarios.draws import Surge
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.workload import Request, Workload
from benchmarks.goodput_cells import (
    CLOSED,
    MEASURED_S,
    REQUESTS_MIN,
    SURGE_S,
    TPOTS_MS,
    TTFT_S,
    WARM_UP_S,
    Run,
)
from benchmarks.goodput_code import codes
from router.settings import PlacementSettings
from tandem.core.slo import Slo

_SAMPLE_S: Final = 120.0
_SAMPLE_RATE: Final = 10.0
_SAMPLE_SESSIONS: Final = 40
_ABLATED: Final[Mapping[str, Mapping[str, object]]] = {
    "tandem without interference": {"interference": 0.0},
    "tandem without its first token": {"without": ("first token",)},
    "tandem without its stream": {"without": ("stream",)},
    "tandem without streams beside": {"without": ("streams beside",)},
    "tandem without prompts behind": {"without": ("prompts behind",)},
    "tandem without objectives": {"without": ("first token", "stream", "streams beside", "prompts behind")},
    "tandem without promises": {"promise_s": 0.0},
    "tandem with one pair": {"candidates_max": 1},
}
"""Parts of the price that can be left out, and how."""
ABLATIONS: Final = (EQUAL_TERMS, *_ABLATED)
_CODES: Final = codes()
"""Taken when this process imported all that a run depends on: the files may change later."""


SplitRow = tuple[float, int, float | None, int]
"""From when on (s), how many workers take prompts for others, what steps may take (ms; None for the workers' own
target), and how many workers have changed kind so far."""


@dataclass(frozen=True)
class RunResult:
    """What a run came to, by the code whose hash is `code`. `judged` and `buckets` (of 5 s, by arrival) are by the
    bound on TPOT in ms; `begin_s` is when the first bucket begins, `changes_s` when traffic changed or a surge
    ended. `held` are the splits that there were where it follows the load."""

    run: Run
    requests: int
    cpu_s: float
    judged: Mapping[int, Mapping[str, float]]
    buckets: Mapping[int, Sequence[tuple[int, int]]]
    begin_s: float
    changes_s: tuple[float, ...]
    code: str
    held: tuple[SplitRow, ...] = ()

    def attainment(self, tpot_ms: int) -> float:
        return self.judged[tpot_ms]["attainment"]

    def compared(self, tpot_ms: int) -> float:
        """What contenders are compared by. In a closed loop that is requests in the objective per second: who
        answers slowly is offered less, and would be excused by a share."""
        return self.judged[tpot_ms]["goodput_per_s"] if self.run.traffic in CLOSED else self.attainment(tpot_ms)

    def by_arrival(self, tpot_ms: int) -> tuple[Bucket, ...]:
        """Its buckets, empty where they were not kept."""
        return tuple(
            Bucket(self.begin_s + BUCKET_S * place, offered, met)
            for place, (offered, met) in enumerate(self.buckets.get(tpot_ms, ()))
        )


def carry_out(run: Run) -> RunResult:
    """Simulate. Deterministic but for `cpu_s`."""
    workload, surge, changes_s = traffic_of(run)
    settings = fleet_of(run)
    began = time.process_time()
    fleet = Fleet(settings, policy_of(run))
    fleet.run(workload)
    cpu_s = time.process_time() - began
    requests = workload.requests
    window = Window(WARM_UP_S * run.length, max((request.arrival_s for request in requests), default=0.0))
    bounds_ms = sorted({*TPOTS_MS, run.tpot_ms})
    verdicts = {tpot_ms: judge(requests, slo(tpot_ms), window) for tpot_ms in bounds_ms}
    kept = {tpot_ms: each.by_arrival for tpot_ms, each in verdicts.items() if changes_s or surge is not None}
    return RunResult(
        run=run,
        requests=len(requests),
        cpu_s=cpu_s,
        judged={tpot_ms: _figures(each, window) for tpot_ms, each in verdicts.items()},
        buckets={tpot_ms: [(each.offered, each.met) for each in buckets] for tpot_ms, buckets in kept.items()},
        begin_s=window.begin_s,
        changes_s=changes_s if surge is None else (surge.end_s,),
        code=_CODES.of(run.contender),
        held=held_by(fleet),
    )


def held_by(fleet: Fleet) -> tuple[SplitRow, ...]:
    """The splits of a fleet whose split follows the load."""
    if not isinstance(fleet.decider, AutoDecider):
        return ()
    return tuple(
        (round(each.at_s, 3), each.prefills, None if each.itl_s is None else round(1e3 * each.itl_s, 3), each.moves)
        for each in fleet.decider.history
    )


def slo(tpot_ms: int) -> Slo:
    """What a request has to meet."""
    return Slo(ttft_s=TTFT_S, tpot_s=tpot_ms / 1e3)


def fleet_of(run: Run) -> FleetSettings:
    """Its workers."""
    of_workers = roles(auto=run.workers) if run.contender == AUTO else roles(unified=run.workers)
    if run.prefills:
        of_workers = roles(prefill=run.prefills, decode=run.workers - run.prefills)
    return generated.fleet(of_workers, itl_target_s=run.itl_ms / 1e3)


def policy_of(run: Run) -> DeciderOf:
    """Its policy: ours whole, ours without a part, or a peer's. Ours is told of the objective that it is
    judged by."""
    settings = generated.ours_settings().holding(slo(run.tpot_ms))
    if run.contender not in _ABLATED:
        return decider_of(run.contender, settings, run.seed)
    changed: PlacementSettings = replace(settings.placement, **_ABLATED[run.contender])  # type: ignore[arg-type]
    return decider_of(OURS, replace(settings, placement=changed), run.seed)


def traffic_of(run: Run) -> tuple[Workload, Surge | None, tuple[float, ...]]:
    """(its requests, the overload in them, when the traffic changes)."""
    rate = run.scale * unit_rate(run.traffic, run.workers, run.tpot_ms, run.seed)
    warm_up_s, measured_s, surge_s = WARM_UP_S * run.length, MEASURED_S * run.length, SURGE_S * run.length
    requests_min = REQUESTS_MIN * run.length
    surge = Surge(warm_up_s, warm_up_s + surge_s, run.surge) if run.surge != 1.0 else None
    if run.traffic == sessions.NAME:
        measured_s += surge_s if surge is not None else 0.0
        count = max(1, round(rate))
        loop = sessions.agents(run.seed, count, warm_up_s + measured_s, int(requests_min), surge)
        return loop, surge, ()
    if surge is not None:
        measured_s = surge_s + max(surge_s, (requests_min - rate * run.surge * surge_s) / rate)
    measured_s = max(measured_s, requests_min / rate)
    made = generated.generated(generated.traffic(run.traffic), run.seed, rate, warm_up_s + measured_s, surge)
    return made.workload, surge, made.changes_s if run.traffic == "shifting" else ()


@lru_cache(maxsize=256)
def unit_rate(traffic: str, workers: int, tpot_ms: int, seed: int) -> float:
    """A guess at the requests a second (of agents: the sessions at a time) that so many workers carry: what a seed's
    requests take of a worker's time if every prefix is computed once, and every step takes as long as TPOT allows.

    It makes seeds comparable, whose mixes differ by more than the loads of cells do; how much of it a fleet really
    carries is measured.
    """
    settings = generated.fleet(roles(unified=1))
    time_of = settings.worker.step_time
    if traffic == sessions.NAME:
        requests, turns_s = _ideal_sessions(seed, tpot_ms / 1e3)
    else:
        made = generated.generated(generated.traffic(traffic), seed, _SAMPLE_RATE, WARM_UP_S + MEASURED_S)
        requests, turns_s = made.workload.requests, 1.0
    return workers * turns_s / (work_s(requests, time_of, tpot_ms / 1e3) / len(requests))


def work_s(requests: Sequence[Request], time_of: StepTime, tpot_s: float) -> float:
    """Seconds of one worker: prompts whose blocks were not in an earlier one, and of each answer's tokens their share
    of steps that take `tpot_s`."""
    seen: set[int] = set()
    total = 0.0
    for request in requests:
        known = 0
        while known < len(request.blocks) and request.blocks[known] in seen:
            known += 1
        seen.update(request.blocks, request.answer)
        start = min(request.leading(known), request.input_tokens - 1)
        total += time_of.prompt(start, request.input_tokens - start)
        context = request.input_tokens + request.output_tokens / 2
        each_s = time_of.sequence_s + time_of.read_s * context
        rows = max(1.0, (tpot_s - time_of.base_s) / each_s)
        total += request.output_tokens * tpot_s / rows
    return total


def _ideal_sessions(seed: int, tpot_s: float) -> tuple[Sequence[Request], float]:
    """Sessions that are answered at the bound, and how many seconds there are in the mean between a session's
    requests."""
    source = sessions.Sessions(seed, _SAMPLE_SESSIONS, _SAMPLE_S)
    answering: list[tuple[float, int, Request]] = []
    while True:
        next_s = source.next_s
        if answering and (next_s is None or answering[0][0] <= next_s):
            now, _, request = answering.pop(0)
            request.end_s = now
            source.ended(request, now)
        elif next_s is not None:
            request = source.take()
            answering.append((next_s + tpot_s * request.output_tokens, request.number, request))
            answering.sort(key=lambda each: each[:2])
        else:
            return source.requests, _SAMPLE_S * _SAMPLE_SESSIONS / len(source.requests)


def _figures(judged: Judged, window: Window) -> dict[str, float]:
    """Flat, for a line of JSON."""
    figures: dict[str, float] = {
        "attainment": judged.attainment,
        "offered": judged.offered,
        "offered_per_s": judged.offered / max(window.end_s - window.begin_s, 1e-9),
        "ended": judged.ended,
        "met": judged.met,
        "cancelled": judged.cancelled,
        "goodput_per_s": judged.goodput_per_s,
        "tokens_per_s": judged.tokens_per_s,
    }
    for name, quantiles in (("ttft", judged.ttft), ("tpot", judged.tpot), ("itl", judged.itl)):
        figures |= {f"{name}_{key}": value for key, value in asdict(quantiles).items()}
    return {name: float(figure) for name, figure in figures.items()}
