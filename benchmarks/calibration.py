"""The fleet simulator against published runs: simulated, published, their ratio, and which bars hold.

    python -m benchmarks.calibration                  both ladders and R2, 3 seeds
    python -m benchmarks.calibration --only R1 --policies random,precise --seeds 1

R1 and `37 % capacity` are llm-d's ladders under the policies of the published runs; one set of constants
(`benchmarks.fleet.scenarios.ladder.Stack`) serves both. It is fitted to their random and precise runs; the others are
held out. R2 is Mooncake's figure 5, the conversation trace (--data) on 8 prefill and 8 decode nodes of
eight A800; the split and the speed of the replay are not published, so that it is held in ratios and its level is
only shown. Bars: knees, and throughput below them, within 15 %; TTFT beyond it within 30 %. It exits non-zero
when one is missed or nothing was judged. Published gaps between tokens come from a client that counts every line of a
stream, empty ones included: twice their mean is TPOT, from which the constants of a step were read; it is not judged.
"""

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import calibration_judge as judge
from benchmarks import calibration_published as published
from benchmarks.calibration_judge import Bar, Point
from benchmarks.fleet.fleet import FleetSettings, roles, simulate
from benchmarks.fleet.metrics import RunMetrics
from benchmarks.fleet.peers.blind import LeastLoaded, Random
from benchmarks.fleet.peers.decider import PeerDecider
from benchmarks.fleet.peers.llm_d import Approximate, Scored, Weights
from benchmarks.fleet.peers.policy import Peer, PoolFacts
from benchmarks.fleet.peers.published import FirstPrecise, LeastToCompute, PooledDecider, PublishedDecider
from benchmarks.fleet.router import Knowledge
from benchmarks.fleet.scenarios import conversation, ladder
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.tiers import TierSettings
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.rounds import table
from tandem.apps.bench.mooncake import BLOCK_TOKENS
from tandem.core.entropy import Entropy, SeededEntropy
from tandem.engine.simulated.presets import preset

_DATA: Final = Path(__file__).parent.parent.parent / "shared" / "data"
_R2: Final = "R2"
_R2_MODEL: Final = "a800-llama-3-70b-tp8"
_R2_NODES: Final = conversation.ConversationShape(_R2, 0, 8, 8, True, (1.0,))
_R2_DRAM_TOKENS: Final = 3_000_000
_R2_DRAM_BYTES_PER_S: Final = 100e9
_R2_NETWORK_BYTES_PER_S: Final = 87e9
"""Of Mooncake's transfer engine with four links of 200 Gb/s."""

Make = Callable[[int, Entropy], Peer]
_LADDERS: Final = {ladder.R1.name: ladder.R1, ladder.SIBLING.name: ladder.SIBLING}
_PUBLISHED: Final = {ladder.R1.name: published.R1, ladder.SIBLING.name: published.SIBLING}
_FITTED: Final = ("random", "precise")
_POLICIES: Final[dict[str, dict[str, Make]]] = {
    ladder.R1.name: {
        "random": lambda workers, entropy: Random(entropy),
        "load-only": lambda workers, entropy: Scored(entropy, Weights(0, 1, 1)),
        "approximate": lambda workers, entropy: Approximate(workers, entropy, Weights(1, 1, 1)),
        "precise": lambda workers, entropy: FirstPrecise(entropy, Weights(3, 2, 2)),
    },
    ladder.SIBLING.name: {
        "random": lambda workers, entropy: Random(entropy),
        "load-only": lambda workers, entropy: Scored(entropy, Weights(0, 1, 1)),
        "approximate": lambda workers, entropy: Approximate(workers, entropy, Weights(2, 1, 1)),
        "precise": lambda workers, entropy: FirstPrecise(entropy, Weights(2, 1, 1)),
    },
    _R2: {
        "random": lambda workers, entropy: Random(entropy),
        "load-balancing": lambda workers, entropy: LeastToCompute(entropy),
        "local cache-aware": lambda workers, entropy: LeastToCompute(entropy, local=True),
        "global cache-aware": lambda workers, entropy: LeastToCompute(entropy, pooled=True),
    },
}


@dataclass(frozen=True)
class CalibrationTask:
    """One run."""

    scenario: str
    policy: str
    seed: int
    data: Path


def decider_of(scenario: str, policy: str, seed: int) -> Callable[[Knowledge], PeerDecider]:
    """The router of a published run."""
    entropy = SeededEntropy(seed, policy)
    make = _POLICIES[scenario][policy]
    kind = PooledDecider if policy == "global cache-aware" else PublishedDecider

    def computing(facts: PoolFacts) -> Peer:
        return make(facts.workers, entropy)

    return lambda knowledge: kind(knowledge, computing, computing, lambda facts: LeastLoaded(entropy))


def carry_out(task: CalibrationTask) -> tuple[CalibrationTask, RunMetrics]:
    """Simulate; deterministic."""
    decider = decider_of(task.scenario, task.policy, task.seed)
    if task.scenario == _R2:
        work = conversation.conversation(conversation.load(task.data), _R2_NODES, task.seed)
        return task, simulate(r2_fleet(), decider, work)
    shape = _LADDERS[task.scenario]
    return task, simulate(ladder.fleet(shape), decider, ladder.ladder(shape, task.seed))


def r2_fleet() -> FleetSettings:
    """Nodes of eight A800, whose DRAM holds three million tokens each."""
    chosen = preset(_R2_MODEL)
    size = chosen.kv_token_bytes
    worker = WorkerSettings(
        chosen.model.blocks * chosen.model.block_tokens,
        BLOCK_TOKENS,
        StepTime.of(chosen.model),
        tiers=(TierSettings("dram", _R2_DRAM_TOKENS, _R2_DRAM_BYTES_PER_S / size),),
    )
    return FleetSettings(roles(prefill=8, decode=8), worker, _R2_NETWORK_BYTES_PER_S / size)


def points(figures: RunMetrics, counted: float) -> list[Point]:
    """Of every stage, its tokens as the client counts them."""
    return [
        Point(stage.rate, stage.tokens_per_s * counted, stage.ttft_p90_s, stage.ttft_mean_s)
        for stage in figures.stages
    ]


def ladder_report(scenario: str, policy: str, runs: Sequence[RunMetrics]) -> list[Bar]:
    """Print one policy's rates and bars."""
    simulated = judge.medians([points(figures, _LADDERS[scenario].counted) for figures in runs])
    theirs = [Point(rate, *row) for rate, row in sorted(_PUBLISHED[scenario][policy].items())]
    fitted = ", constants are fitted to it" if policy in _FITTED else ", held out"
    print(f"\n{scenario}, {policy}{fitted}: simulated / published = ratio")
    rows = [
        (
            f"{a.rate:g}/s",
            _pair(a.tokens_per_s, b.tokens_per_s, ",.0f"),
            _pair(a.ttft_p90_s, b.ttft_p90_s, ".2f"),
            _pair(a.ttft_mean_s, b.ttft_mean_s, ".2f"),
        )
        for a, b in zip(simulated, theirs, strict=True)
    ]
    print(table(("rate", "tokens/s", "TTFT p90 s", "TTFT mean s"), rows))
    bars = judge.judged(simulated, theirs)
    return [replace(bar, name=f"{scenario}, {policy}, {bar.name}") for bar in bars]


def r2_report(found: dict[str, float]) -> list[Bar]:
    """Print mean TTFT by policy, and judge what is in ratio to random."""
    print(f"\n{_R2}, mean TTFT s: simulated / published = ratio (the level is shown, not judged)")
    rows = [(name, _pair(found[name], theirs, ".2f")) for name, theirs in published.R2.items()]
    print(table(("policy", "TTFT mean s"), rows))
    bars = judge.judged_ratios(found, published.R2, "random")
    return [replace(bar, name=f"{_R2}, {bar.name}") for bar in bars]


def _pair(mine: float, theirs: float, form: str) -> str:
    return f"{mine:{form}} / {theirs:{form}} = {mine / theirs:.2f}"


def parsed() -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=_DATA, help="folder with traces/ (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", action="append", default=[], choices=list(_POLICIES), help="may be repeated")
    parser.add_argument("--policies", type=lambda text: text.split(","), default=[], help="comma-separated")
    return parser.parse_args()


def main() -> int:
    """Simulate, print, judge."""
    options = parsed()
    scenarios = [name for name in _POLICIES if not options.only or name in options.only]
    if _R2 in scenarios and not (options.data / conversation.FILE).exists():
        print(f"NOT RUN: {_R2}: {options.data} has no {conversation.FILE} (--data)")
        scenarios.remove(_R2)
    tasks = [
        CalibrationTask(scenario, policy, seed, options.data)
        for scenario in scenarios
        for policy in _POLICIES[scenario]
        if not options.policies or policy in options.policies
        for seed in range(options.seeds)
    ]
    runs: dict[tuple[str, str], list[RunMetrics]] = {}
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for task, figures in pool.imap(carry_out, tasks):
            runs.setdefault((task.scenario, task.policy), []).append(figures)
    bars: list[Bar] = []
    for (scenario, policy), of_seeds in runs.items():
        if scenario != _R2:
            bars += ladder_report(scenario, policy, of_seeds)
    r2 = {policy: median(each.ttft_mean_s for each in runs[_R2, policy]) for name, policy in runs if name == _R2}
    if set(r2) == set(published.R2):
        bars += r2_report(r2)
    rows = [
        (
            bar.name,
            f"{bar.ratio:.2f}",
            bar.where,
            f"{bar.mean:.2f}",
            f"{bar.margin:.0%}",
            "yes" if bar.holds else "NO",
        )
        for bar in bars
    ]
    print(f"\n{table(('bar', 'worst ratio', 'where', 'mean ratio', 'margin', 'holds'), rows)}")
    return concluded(bars)


def concluded(bars: Sequence[Bar]) -> int:
    """Print how many bars hold; the process's exit status."""
    if not bars:
        print("\nNOT JUDGED: nothing was played that has a bar")
        return 1
    missed = sum(not bar.holds for bar in bars)
    print(f"\n{len(bars) - missed} of {len(bars)} bars hold")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
