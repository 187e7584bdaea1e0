"""`tandem sim`: many seeds on all cores, a line of progress, and for a failure the seed that brings it back.

This is the shell around the simulation; nothing simulated runs in it.
"""

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tandem.sim.faults import FaultProfile
from tandem.sim.scenario import varied
from tandem.sim.story import shrink
from tandem.sim.traffic import TrafficProfile
from tandem.sim.world import Report, WorldSettings, simulate

_STORIES_MAX: Final = 3


@dataclass(frozen=True)
class SeedResult:
    """What a child process sends back: a report, or how the seed failed."""

    seed: int
    report: Report | None
    failure: str


def main(arguments: Sequence[str]) -> int:
    """Run the seeds; gives 0 when every promise held on every one of them."""
    options = _parser().parse_args(arguments)
    settings = _settings(options)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    began = time.monotonic()
    results = []
    with _workers(options.jobs) as pool:
        for result in pool.imap_unordered(partial(_one, settings), seeds):
            results.append(result)
            _progress(len(results), len(seeds), results)
    return _verdict(sorted(results, key=lambda result: result.seed), time.monotonic() - began, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem sim",
        description="Simulates whole platforms on virtual time, each seed with its own traffic, delays and faults, "
        "and checks after every few steps that nothing is lost, repeated, wrong or leaked.",
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--requests", type=int, default=60, help="requests per seed (default 60)")
    parser.add_argument("--kills", type=int, default=1, help="workers killed per seed (default 1)")
    parser.add_argument("--prefill", type=int, default=2, help="prefill workers (default 2; 0 for unified)")
    parser.add_argument("--decode", type=int, default=2, help="decode workers (default 2)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    parser.add_argument("--verbose", action="store_true", help="one line per seed")
    return parser


def _settings(options: argparse.Namespace) -> WorldSettings:
    settings = WorldSettings(prefill=options.prefill, decode=options.decode)
    traffic = replace(TrafficProfile(), requests=options.requests)
    return replace(settings, traffic=traffic, faults=replace(FaultProfile(), kills=options.kills))


def _one(settings: WorldSettings, seed: int) -> SeedResult:
    try:
        return SeedResult(seed, simulate(varied(settings, seed), seed), "")
    except Exception as error:  # noqa: BLE001 - whatever a seed dies of is its result
        where = traceback.extract_tb(error.__traceback__)[-1]
        return SeedResult(seed, None, f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})")


@contextmanager
def _workers(jobs: int) -> Iterator["multiprocessing.pool.Pool"]:
    context = multiprocessing.get_context("spawn")
    os.environ.setdefault("PYTHONHASHSEED", "0")
    with context.Pool(max(1, jobs), maxtasksperchild=64) as pool:
        yield pool


def _progress(done: int, total: int, results: Sequence[SeedResult]) -> None:
    if sys.stderr.isatty():
        failed = sum(1 for result in results if result.report is None)
        print(f"\r{done}/{total} seeds, {failed} failed", end="" if done < total else "\n", file=sys.stderr)


def _verdict(results: Sequence[SeedResult], wall_s: float, options: argparse.Namespace) -> int:
    failed = [result for result in results if result.report is None]
    reports = [result.report for result in results if result.report is not None]
    if options.verbose:
        for report in reports:
            print(_line(report))
    for result in failed:
        print(f"seed {result.seed} FAILED: {result.failure}")
        print(f"  again: {_again(options, result.seed)}")
    for result in failed[:_STORIES_MAX]:
        story = shrink(varied(_settings(options), result.seed), result.seed)
        print(f"seed {result.seed} {story or 'does not fail again, which is itself a failure of the simulation'}")
    ends = Counter(outcome.error or outcome.end for report in reports for outcome in report.outcomes)
    virtual_s = sum(report.virtual_s for report in reports)
    pause_s = max((outcome.longest_pause_s for report in reports for outcome in report.outcomes), default=0.0)
    requests = sum(ends.values())
    counted = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    print(
        f"{len(results)} seeds, {requests} requests ({counted}), "
        f"{sum(len(report.faults) for report in reports)} faults, "
        f"{sum(report.corrupted for report in reports)} blocks corrupted on their way, "
        f"{sum(report.handed_off for report in reports)} hand-offs, "
        f"{sum(report.refused for report in reports)} blocks refused and computed instead, "
        f"longest pause in a stream {pause_s:.2f} s"
    )
    print(f"{virtual_s:.0f} virtual seconds in {wall_s:.1f} s, {requests / max(wall_s, 1e-9):.0f} requests/s")
    print("FAILED" if failed else "OK: nothing lost, repeated, wrong or leaked")
    return 1 if failed else 0


def _again(options: argparse.Namespace, seed: int) -> str:
    """The command that brings a seed back."""
    shape = f"--requests {options.requests} --kills {options.kills}"
    return f"tandem sim --first-seed {seed} --seeds 1 {shape} --prefill {options.prefill} --decode {options.decode}"


def _line(report: Report) -> str:
    ends = Counter(outcome.end for outcome in report.outcomes)
    faults = ", ".join(str(fault) for fault in report.faults)
    return f"seed {report.seed}: {dict(ends)}; {faults}; {report.virtual_s:.1f} virtual s; trace {report.trace}"
