"""What the bench of a split with real processes plays: a model that is slow enough for two cores, generated traffic,
and what the simulator expects of every split. Nothing here depends on the machine.

All times of the model are `SLOW` times those of the preset, and so are the bounds: the shares of work and the steps
per answer stay what they are, while what processes take beside it counts for less.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Final

from benchmarks.fleet.contenders import AUTO, OURS, decider_of
from benchmarks.fleet.fleet import FleetSettings, roles, simulate
from benchmarks.fleet.goodput import Window, judge
from benchmarks.fleet.metrics import quantile
from benchmarks.fleet.scenarios.generated import BLOCK_TOKENS, MODEL, generated, ours_settings, traffic
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request, Stage
from benchmarks.fleet.workload import Workload as Simulated
from benchmarks.goodput_runs import unit_rate
from tandem.apps.bench.outcome import Outcome
from tandem.apps.bench.workload import Item, Workload, cut
from tandem.core.slo import Latency, Slo
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.presets import preset

SLOW: Final = 4.0
WORKERS: Final = 4
TPOT_MS: Final = 25
"""The bound of the model at its own speed."""
SLO: Final = Slo(ttft_s=2.0 * SLOW, tpot_s=TPOT_MS / 1e3 * SLOW)
KINDS: Final = ("bimodal", "prompt_heavy", "answer_heavy")
SCALES: Final = (0.4, 0.5, 0.6, 0.7, 0.8)
"""Loads that are tried, as shares of the work of so many workers (`benchmarks.goodput_runs.unit_rate`)."""
GAIN_MIN: Final = 0.03
"""A kind is played where the best split is expected to hold the SLO for so much more of the requests than unified
workers do,"""
BEST_MIN: Final = 0.97
"""and for at least so much of them."""
_TRANSFER_TOKENS_PER_S: Final = 5e6
"""Blocks of the simulated model are small, and travel through shared memory."""
_FIELDS: Final = (
    "context_tokens",
    "blocks",
    "block_tokens",
    "base_s",
    "sequence_s",
    "token_s",
    "context_s",
    "read_s",
)


@dataclass(frozen=True)
class PoolLayout:
    """Workers by role."""

    name: str
    pools: Mapping[str, int]


UNIFIED: Final = PoolLayout("4 unified", {"unified": WORKERS})
FIXED: Final = (
    UNIFIED,
    *(PoolLayout(f"{k}P{WORKERS - k}D", {"prefill": k, "decode": WORKERS - k}) for k in (1, 2, 3)),
)
CHOSEN: Final = PoolLayout("4 auto", {"auto": WORKERS})
WAYS: Final = (*FIXED, CHOSEN)


@dataclass(frozen=True)
class LoadCell:
    """One load of the bench; times in seconds, `scale` as in `SCALES`."""

    kind: str
    scale: float
    seed: int
    warm_up_s: float
    measured_s: float


@dataclass(frozen=True)
class SplitMetrics:
    """What one run came to: `attainment` of those `offered`, 0 to 1."""

    offered: int
    attainment: float
    ttft_p90_s: float
    tpot_p90_s: float
    itl_p99_s: float


def model() -> SimulatedModel:
    """The preset's, `SLOW` times as slow."""
    base = preset(MODEL).model
    tokens = base.blocks * base.block_tokens
    return replace(
        base,
        block_tokens=BLOCK_TOKENS,
        blocks=tokens // BLOCK_TOKENS,
        **{name: getattr(base, name) * SLOW for name in _FIELDS if name.endswith("_s")},
    )


def environment() -> dict[str, str]:
    """What tells worker processes of the model."""
    values = asdict(model())
    return {f"TANDEM_SIMULATED__{name.upper()}": str(values[name]) for name in _FIELDS}


@lru_cache(maxsize=64)
def _drawn(cell: LoadCell) -> tuple[Request, ...]:
    rate = cell.scale * unit_rate(cell.kind, WORKERS, TPOT_MS, cell.seed) / SLOW
    made = generated(traffic(cell.kind), cell.seed, rate, cell.warm_up_s + cell.measured_s)
    return tuple(made.workload.requests)


def requests_of(cell: LoadCell) -> tuple[Request, ...]:
    """Fresh requests: clients say how long the answer is to be, as those of `tandem bench` do."""
    return tuple(
        Request(each.number, each.arrival_s, each.blocks, BLOCK_TOKENS, each.input_tokens, each.output_tokens,
                each.output_tokens)
        for each in _drawn(cell)
    )  # fmt: skip


def workload_of(cell: LoadCell) -> Workload:
    """The same requests for real processes."""
    items = tuple(
        Item(each.arrival_s, cut(each.blocks, each.input_tokens, BLOCK_TOKENS, 1.0), each.output_tokens)
        for each in _drawn(cell)
    )
    return Workload(cell.kind, items)


def predicted(cell: LoadCell, way: PoolLayout) -> SplitMetrics:
    """What the simulator expects."""
    slow = model()
    assert SLO.step_s is not None
    worker = WorkerSettings(slow.blocks * slow.block_tokens, BLOCK_TOKENS, StepTime.of(slow))
    fleet = FleetSettings(roles(**way.pools), worker.as_in_production(SLO.step_s), _TRANSFER_TOKENS_PER_S)
    requests = requests_of(cell)
    settings = ours_settings().holding(SLO)
    simulate(
        fleet,
        decider_of(AUTO if way is CHOSEN else OURS, settings, cell.seed),
        Simulated(cell.kind, (Stage(1.0, cell.measured_s, requests),)),
    )
    found = judge(requests, SLO, Window(cell.warm_up_s, cell.warm_up_s + cell.measured_s))
    return SplitMetrics(found.offered, found.attainment, found.ttft.p90_s, found.tpot.p90_s, found.itl.p99_s)


def measured(cell: LoadCell, outcomes: Sequence[Outcome]) -> SplitMetrics:
    """What clients of real processes saw, of the requests that were due after the warm-up."""
    counted = [each for each in outcomes if each.scheduled_s >= cell.warm_up_s]
    ended = [each for each in counted if each.ok]
    met = [each for each in ended if SLO.met_by(Latency(each.ttft_s, each.e2e_s, each.tpot_s))]
    gaps = sorted(gap for each in ended for gap in each.gaps_s)
    return SplitMetrics(
        offered=len(counted),
        attainment=len(met) / len(counted) if counted else 0.0,
        ttft_p90_s=_quantile([each.ttft_s for each in ended], 0.9),
        tpot_p90_s=_quantile([each.tpot_s for each in ended if each.tpot_s is not None], 0.9),
        itl_p99_s=_quantile(gaps, 0.99),
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return quantile(sorted(values), share) if values else 0.0
