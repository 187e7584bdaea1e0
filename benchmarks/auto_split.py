"""A split that follows the load, with real processes: router, workers, sockets, leases and the real clock; only the
model's steps are waited for instead of computed.

`python -m benchmarks.auto_split [--rounds N] [--kinds KIND…] [--demo]`. Four `auto` workers against four unified
ones and every fixed split of four, one after the other in every round, on generated traffic where the simulator
expects a split to gain. With the standard five rounds of two kinds it takes about four hours. What a fleet that
begins unified piles up before its router has seen enough belongs to the warm-up. `--demo` plays the torch demo with
one prefill and one decode worker beside two unified ones, which is reported and not judged.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from benchmarks.auto_split_cells import (
    BEST_MIN,
    CHOSEN,
    GAIN_MIN,
    KINDS,
    SCALES,
    SLO,
    SLOW,
    UNIFIED,
    WAYS,
    LoadCell,
    PoolLayout,
    SplitMetrics,
    environment,
    measured,
    predicted,
    workload_of,
)
from benchmarks.rounds import Check, table
from tandem.apps.bench.completion import Style
from tandem.apps.bench.content import TokenRange
from tandem.apps.bench.outcome import Outcome
from tandem.apps.bench.replay import Settings, replay
from tandem.apps.bench.schedule import at_rate
from tandem.apps.bench.synthetic import parse_mix, synthetic
from tandem.apps.bench.workload import Workload
from tandem.apps.chaos.live import LivePlatform, run_platform
from tandem.apps.cli.fleet_summary import headline
from tandem.apps.cli.router_client import fleet_outlooks
from tandem.core.errors import TandemError

ATTAINMENT_MIN: Final = 0.97
ITL_MAX: Final = 0.7
APART_MAX: Final = 0.15
_TIMEOUT_S: Final = 600.0
_START_S: Final = 180.0
_DEMO_MIX: Final = "300:32@3,1200:24@1"
_DEMO_REQUESTS: Final = 80
_DEMO_RATE: Final = 1.0


@dataclass(frozen=True)
class Played:
    """One way on one load: what each round came to, and what the simulator expects."""

    rounds: tuple[SplitMetrics, ...]
    expected: SplitMetrics

    @property
    def attainment(self) -> float:
        return statistics.median(each.attainment for each in self.rounds)

    @property
    def itl_p99_s(self) -> float:
        return statistics.median(each.itl_p99_s for each in self.rounds)


def chosen_cell(
    kind: str, seed: int, warm_up_s: float, measured_s: float
) -> tuple[LoadCell, dict[str, SplitMetrics]] | None:
    """The load of a kind at which a split is expected to gain most, and what is expected of every way; None where it
    gains nowhere.

    Of several loads that the best split holds the highest is left out: at it nothing is left to work off what a
    fleet that begins unified has piled up.
    """
    held: list[tuple[float, LoadCell, dict[str, SplitMetrics]]] = []
    for scale in SCALES:
        cell = LoadCell(kind, scale, seed, warm_up_s, measured_s)
        fixed = {way.name: predicted(cell, way) for way in WAYS if way is not CHOSEN}
        most = max(each.attainment for each in fixed.values())
        if most >= BEST_MIN:
            held.append((most - fixed[UNIFIED.name].attainment, cell, fixed))
    if not held:
        return None
    gain, cell, fixed = max(held[:-1] or held, key=lambda each: each[0])
    return None if gain < GAIN_MIN else (cell, {**fixed, CHOSEN.name: predicted(cell, CHOSEN)})


def service(way: PoolLayout, engine: str = "simulated") -> dict[str, object]:
    """A file for `tandem up`."""
    pools = [{"name": role, "role": role, "replicas": count} for role, count in way.pools.items()]
    slo = {f"{name}Ms": round(bound * 1e3) for name, bound in SLO.bounds.items()}
    spec = {"engine": {"type": engine}, "pools": pools, "slo": slo}
    return {"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService", "metadata": {"name": "bench"}, "spec": spec}


def run(way: PoolLayout, workload: Workload, engine: str, environ: Mapping[str, str]) -> list[Outcome]:
    """Start a platform, play the workload and stop everything; tells how `auto` workers stood at the end."""

    async def work(live: LivePlatform) -> list[Outcome]:
        settings = Settings(Style(live.model), TokenRange(), timeout_s=_TIMEOUT_S)
        outcomes = await replay(live.platform.target, workload, settings, lambda _outcome: None)
        if way is CHOSEN:
            await _tell_split(live)
        return outcomes

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "service.yaml"
        file.write_text(yaml.safe_dump(service(way, engine)))
        return run_platform([str(file)], work, environ, _START_S)


async def _tell_split(live: LivePlatform) -> None:
    try:
        for outlook in await fleet_outlooks(live.platform.target):
            say(f"      {headline(outlook)}; {outlook.moves} moves; {outlook.why}")
    except TandemError as error:
        say(f"      the split cannot be told: {error.message}")


def rounds_of(cell: LoadCell, rounds: int) -> dict[str, list[SplitMetrics]]:
    """What every way came to in each round; every other round goes backwards."""
    found: dict[str, list[SplitMetrics]] = {way.name: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS if number % 2 else reversed(WAYS):
            figures = measured(cell, run(way, workload_of(cell), "simulated", environment()))
            found[way.name].append(figures)
            say(f"  round {number + 1} {way.name:10} {shown(figures)}")
    return found


def shown(figures: SplitMetrics) -> str:
    """In one line."""
    times = f"TTFT p90 {figures.ttft_p90_s:.2f} s, TPOT p90 {figures.tpot_p90_s * 1e3:.0f} ms"
    return f"{figures.attainment:6.1%} of {figures.offered}, {times}, ITL p99 {figures.itl_p99_s * 1e3:.0f} ms"


def checks_of(cell: LoadCell, played: Mapping[str, Played]) -> list[Check]:
    """The bars of one load."""
    ours, whole = played[CHOSEN.name], played[UNIFIED.name]
    best = max((each for name, each in played.items() if name != CHOSEN.name), key=lambda each: each.attainment)
    checks = [Check(f"{cell.kind}: auto / best", _ratio(ours.attainment, best.attainment), ATTAINMENT_MIN, True)]
    if ours.expected.itl_p99_s <= ITL_MAX * whole.expected.itl_p99_s:
        name = f"{cell.kind}: ITL p99, auto / unified"
        checks.append(Check(name, _ratio(ours.itl_p99_s, whole.itl_p99_s), ITL_MAX, False))
    apart = max(abs(each.attainment - each.expected.attainment) for each in played.values())
    checks.append(Check(f"{cell.kind}: attainment, real and simulated apart", apart, APART_MAX, False))
    return checks


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else float("inf")


def report(cell: LoadCell, played: Mapping[str, Played]) -> str:
    """A table of one load: medians over the rounds, and what the simulator expects."""
    rows = [
        (
            name,
            f"{each.attainment:.1%}",
            f"{each.expected.attainment:.1%}",
            f"{statistics.median(one.ttft_p90_s for one in each.rounds):.2f}",
            f"{each.expected.ttft_p90_s:.2f}",
            f"{each.itl_p99_s * 1e3:.0f}",
            f"{each.expected.itl_p99_s * 1e3:.0f}",
        )
        for name, each in played.items()
    ]
    columns = ("workers", "SLO held", "simulated", "TTFT p90 s", "simulated", "ITL p99 ms", "simulated")
    return f"{cell.kind} at {cell.scale:g}, {played[UNIFIED.name].rounds[0].offered} requests\n{table(columns, rows)}"


def demo() -> None:
    """The torch demo on one prefill and one decode worker beside two unified ones: reported alone."""
    workload = at_rate(synthetic(parse_mix(_DEMO_MIX), _DEMO_REQUESTS, 0, 0), _DEMO_RATE, 0)
    cell = LoadCell("torch demo", 0.0, 0, 0.0, 0.0)
    for way in (PoolLayout("1P1D", {"prefill": 1, "decode": 1}), PoolLayout("2 unified", {"unified": 2})):
        say(f"torch demo {way.name:10} {shown(measured(cell, run(way, workload, 'torch', {})))}")


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when a bar is not met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto_split", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warm-up", type=float, default=120.0, metavar="S", help="seconds that do not count")
    parser.add_argument("--seconds", type=float, default=120.0, metavar="S", help="seconds of traffic that count")
    parser.add_argument("--demo", action="store_true", help="play the torch demo, and nothing else")
    given = parser.parse_args(arguments)
    if given.demo:
        demo()
        return 0
    bounds = ", ".join(f"{name.upper()} {bound:g} s" for name, bound in SLO.bounds.items())
    say(f"a model {SLOW:g} times as slow as the preset; SLO: {bounds}")
    checks: list[Check] = []
    for kind in given.kinds:
        chosen = chosen_cell(kind, given.seed, given.warm_up, given.seconds)
        if chosen is None:
            say(f"{kind}: no split is expected to gain, so it is not played")
            continue
        cell, expected = chosen
        said = ", ".join(f"{name} {each.attainment:.1%}" for name, each in expected.items())
        say(f"{kind} at {cell.scale:g}: expected {said}")
        found = rounds_of(cell, given.rounds)
        played = {way.name: Played(tuple(found[way.name]), expected[way.name]) for way in WAYS}
        say(report(cell, played))
        checks += checks_of(cell, played)
    for check in checks:
        say(f"{check.line()}{'' if check.met else '  NOT MET'}")
    if not checks:
        say("NOT JUDGED: no kind was played")
    return 0 if checks and all(check.met for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
