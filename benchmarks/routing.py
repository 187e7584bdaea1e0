"""Routing policies compete: ours, and those of other routers, on simulated fleets with the step times of real ones.

    python -m benchmarks.routing                 everything, 5 seeds; writes docs/routing.json and docs/routing.svg
    python -m benchmarks.routing --quick         short workloads, one seed, nothing written
    python -m benchmarks.routing --only R1 --policies "tandem,llm-d precise 2:1" --seeds 2
    python -m benchmarks.routing --chunking "ITL budget"   all workers as Tandem's are; 8192 or 2048: fixed chunks

Scenarios: `R1` and `37 % capacity`, the ladders of llm-d; `16 unified`, `8P8D` and both with `, tiers`, the Mooncake
conversation trace (needs --data); `decode-bound`. Every figure is the median over seeds; policies see the same
requests at the same times. Beside throughput it tells goodput: the share of offered requests that meet the
scenario's objective, ours over the best peer's by seed with a 95 % interval; no bar is set on it. It exits non-zero
when a bar is missed. The simulator is `benchmarks.fleet`; of our router
placement, cost model, worker views and block index are those of production.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import routing_judge as judge
from benchmarks import routing_report as report
from benchmarks.fleet.contenders import CHUNKING, OURS, OURSELVES
from benchmarks.fleet.scenarios import conversation
from benchmarks.rounds import Check, table, verdict
from benchmarks.routing_speed import speeds
from benchmarks.routing_tasks import (
    CONVERSATIONS,
    DECODE_BOUND,
    R1,
    SCENARIOS,
    RoutingTask,
    RunOutcome,
    Scenario,
    carry_out,
)

SEEDS: Final = 5
_ROOT: Final = Path(__file__).parent.parent
_DATA: Final = _ROOT.parent / "shared" / "data"
_SHOWN: Final = (
    *(OURS, "llm-d precise 2:1", "llm-d approximate", "sglang cache_aware", "vllm kv_aware", "dynamo kv"),
    *("hash 2nd block", "least loaded", "random"),
)


def planned(scenarios: Sequence[Scenario], options: argparse.Namespace) -> list[RoutingTask]:
    """All runs, the longest first, so that the last to end are short."""
    tasks = [
        (scenario.seconds, RoutingTask(scenario.name, policy, seed, options.data, options.quick, options.chunking))
        for scenario in scenarios
        for policy in scenario.policies
        if not options.policies or policy in options.policies
        for seed in range(options.seeds if options.quick else scenario.seeds(policy, options.seeds))
    ]
    tasks.sort(key=lambda each: (-each[0], each[1].scenario, each[1].seed, each[1].policy != OURS))
    return [task for _, task in tasks]


def carried_out(tasks: Sequence[RoutingTask], jobs: int) -> list[RunOutcome]:
    """Run them in `jobs` processes; says how far it is about every five seconds."""
    outcomes: list[RunOutcome] = []
    began = said = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for outcome in pool.imap_unordered(carry_out, tasks):
            outcomes.append(outcome)
            if time.monotonic() - said > 5 or len(outcomes) == len(tasks):
                said = time.monotonic()
                print(f"  {len(outcomes)} of {len(tasks)} runs, {said - began:.0f} s", flush=True)
    return outcomes


def judged(
    runs: Mapping[str, judge.Runs], found: report.Found, bounds: Mapping[str, float], *, published: bool
) -> list[Check]:
    """Every bar whose scenario was run with all its policies; `published`: the ladder is the whole one."""
    checks: list[Check] = []
    for scenario in SCENARIOS:
        policies = found.get(scenario.name, {})
        if set(policies) != set(scenario.policies):
            continue
        if scenario is R1 and published:
            checks += judge.reproduction(policies)
        if scenario is DECODE_BOUND:
            checks += judge.never_behind(scenario.name, runs[scenario.name], policies)
        if scenario is R1 or scenario in CONVERSATIONS:
            checks += judge.against_peers(scenario.name, runs[scenario.name], policies)
        if scenario in CONVERSATIONS:
            checks += judge.caching(scenario.name, policies, bounds[scenario.name])
    return checks


def by_scenario(outcomes: Sequence[RunOutcome]) -> dict[str, dict[str, list[RunOutcome]]]:
    """And by policy, in the order of the catalogue, each by seed."""
    runs: dict[str, dict[str, list[RunOutcome]]] = {}
    for scenario in SCENARIOS:
        for policy in scenario.policies:
            mine = [each for each in outcomes if (each.task.scenario, each.task.policy) == (scenario.name, policy)]
            if mine:
                mine.sort(key=lambda outcome: outcome.task.seed)
                runs.setdefault(scenario.name, {})[policy] = mine
    return runs


def speed(outcomes: Sequence[RunOutcome]) -> str:
    """Simulated requests per CPU second by policy, over all scenarios."""
    by_policy: dict[str, list[RunOutcome]] = {}
    for outcome in outcomes:
        by_policy.setdefault(outcome.task.policy, []).append(outcome)
    rows = []
    for policy, each in by_policy.items():
        rates = [outcome.figures.requests / outcome.cpu_s for outcome in each]
        rows.append((policy, f"{median(rates):,.0f}", f"{sum(outcome.cpu_s for outcome in each):.0f}"))
    rows.sort(key=lambda row: row[0] != OURS)
    return table(("simulated", "requests/CPU s", "CPU s in all"), rows)


def parsed() -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=_DATA, help="folder with traces/ (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=None, help=f"default {SEEDS}; with --quick 1")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", action="append", default=[], help="a scenario; may be repeated")
    parser.add_argument("--policies", type=lambda text: text.split(","), default=[], help="comma-separated")
    parser.add_argument("--chunking", choices=CHUNKING, help="how all workers cut prompts; nothing is written")
    parser.add_argument("--quick", action="store_true", help="short workloads, nothing is written")
    parser.add_argument("--json", type=Path, default=_ROOT / "docs" / "routing.json")
    parser.add_argument("--plot", type=Path, default=_ROOT / "docs" / "routing.svg")
    options = parser.parse_args()
    options.seeds = options.seeds or (1 if options.quick else SEEDS)
    known = [scenario.name for scenario in SCENARIOS]
    if unknown := [name for name in options.only if name not in known]:
        parser.error(f"there is no scenario {unknown[0]!r}; there are {', '.join(known)}")
    return options


def chosen(options: argparse.Namespace) -> list[Scenario]:
    """The scenarios that are asked for and have their data."""
    scenarios = [scenario for scenario in SCENARIOS if not options.only or scenario.name in options.only]
    if not (options.data / conversation.FILE).exists():
        left_out = [scenario.name for scenario in scenarios if scenario.needs_data]
        if left_out:
            print(f"NOT RUN: {', '.join(left_out)}: {options.data} has no {conversation.FILE} (--data)")
        scenarios = [scenario for scenario in scenarios if not scenario.needs_data]
    return scenarios


def main() -> int:
    """Simulate, print, judge, write."""
    options = parsed()
    scenarios = chosen(options)
    outcomes = carried_out(planned(scenarios, options), options.jobs)
    runs = by_scenario(outcomes)
    found = {
        scenario: {policy: judge.medians(each) for policy, each in of_policies.items()}
        for scenario, of_policies in runs.items()
    }
    bounds: dict[str, float] = {}
    in_slo: list[dict[str, object]] = []
    for scenario in scenarios:
        known = [outcome.bound for outcome in runs[scenario.name].get(OURS, ()) if outcome.bound is not None]
        if known:
            bounds[scenario.name] = median(known)
        print(f"\n{report.overview(scenario.name, found[scenario.name])}")
        if OURS in found[scenario.name] and any(name not in OURSELVES for name in found[scenario.name]):
            print(f"\n{report.by_rate(scenario.name, found[scenario.name])}")
            against = judge.goodput_against_best(runs[scenario.name])
            print(f"\n{report.goodput(scenario.name, found[scenario.name][OURS], against)}")
            in_slo += report.goodput_lines(scenario.name, against)
        if scenario.name in bounds:
            print(f"hit ratio of one LRU pool of all capacity: {bounds[scenario.name]:.3f}")
    print(f"\n{speed(outcomes)}\n")
    checks = judged(runs, found, bounds, published=not options.quick and not options.chunking)
    if not options.only:
        checks += speeds()
    whole = (
        not options.quick
        and not options.policies
        and not options.chunking
        and [scenario.name for scenario in scenarios] == [scenario.name for scenario in SCENARIOS]
    )
    if whole:
        slos = {scenario.name: scenario.slo.bounds for scenario in scenarios}
        setup = {"seeds": options.seeds, "one_pool_hit_ratio": bounds, "slo_s": slos}
        report.write_json(options.json, setup, found, checks, in_slo)
        report.plot(options.plot, found, R1.name, _SHOWN)
    return verdict(checks, "our router is not behind any of them")


if __name__ == "__main__":
    sys.exit(main())
