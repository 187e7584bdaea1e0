"""Runs many seeds on all cores, shows a line of progress, and gives for each failure the seed that reproduces it.

This is the shell around the simulation; nothing simulated runs in it.
"""

import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from tandem.apps.simulation.garbage import collect_rarely
from tandem.apps.simulation.progress import ProgressLine
from tandem.apps.simulation.scenario import varied
from tandem.apps.simulation.seeds import Seed
from tandem.apps.simulation.shrinking import shrink
from tandem.apps.simulation.summary import Summary, summary_of, table
from tandem.apps.simulation.world import Report, WorldSettings, simulate

_STORIES_MAX: Final = 3
_SEEDS_PER_CHILD: Final = 256


@dataclass(frozen=True)
class SeedResult:
    """The result of one seed, sent back by a child process: the seed's sums and a line about it, or how it failed."""

    seed: Seed
    summary: Summary | None
    line: str


@dataclass(frozen=True)
class Sweep:
    """The seeds to run, and how to run them. `again` is the beginning of the command that runs one of them once
    more."""

    settings: WorldSettings
    seeds: tuple[Seed, ...]
    jobs: int
    verbose: bool
    again: str


def run_sweep(sweep: Sweep) -> int:
    """Run the seeds and print what they come to; gives 0 when every promise held on every one of them."""
    began, line, total = time.monotonic(), ProgressLine(), Summary()
    failed: list[SeedResult] = []
    with _children(sweep.jobs) as pool:
        for done, result in enumerate(pool.imap_unordered(partial(_one, sweep.settings), sweep.seeds), start=1):
            if result.summary is None:
                failed.append(result)
            else:
                total.add(result.summary)
            if line.due:
                line.show(_so_far(done, len(sweep.seeds), total, len(failed), time.monotonic() - began))
            if sweep.verbose:
                print(result.line)
    line.close()
    wall_s = time.monotonic() - began
    _tell_failures(sweep, sorted(failed, key=lambda result: result.seed))
    print(table(total, wall_s))
    print("FAILED" if failed else "OK: nothing lost, repeated, wrong or leaked")
    return 1 if failed else 0


def _so_far(done: int, seeds: int, total: Summary, failed: int, wall_s: float) -> str:
    rate = total.requests / max(wall_s, 1e-9)
    left_s = wall_s / done * (seeds - done)
    return f"{done}/{seeds} seeds, {total.requests} requests, {rate:.0f}/s, {failed} failed, {left_s:.0f} s to go"


def _one(settings: WorldSettings, seed: Seed) -> SeedResult:
    try:
        report = simulate(varied(settings, seed.number, plain=seed.plain), seed.number)
    except Exception as error:  # noqa: BLE001 - whatever a seed dies of is its result
        where = traceback.extract_tb(error.__traceback__)[-1]
        return SeedResult(seed, None, f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})")
    return SeedResult(seed, summary_of(report), _line(report))


@contextmanager
def _children(jobs: int) -> Iterator["multiprocessing.pool.Pool"]:
    context = multiprocessing.get_context("spawn")
    os.environ.setdefault("PYTHONHASHSEED", "0")
    with context.Pool(max(1, jobs), collect_rarely, maxtasksperchild=_SEEDS_PER_CHILD) as pool:
        yield pool


def _tell_failures(sweep: Sweep, failed: Sequence[SeedResult]) -> None:
    for result in failed:
        print(f"seed {result.seed} FAILED: {result.line}")
        plain = " --plain" if result.seed.plain else ""
        print(f"  again: {sweep.again} --first-seed {result.seed.number} --seeds 1{plain}")
    for result in failed[:_STORIES_MAX]:
        world = varied(sweep.settings, result.seed.number, plain=result.seed.plain)
        story = shrink(world, result.seed.number)
        print(f"seed {result.seed} {story or 'does not fail again, which is itself a failure of the simulation'}")


def _line(report: Report) -> str:
    ends = Counter(outcome.end for outcome in report.outcomes)
    faults = ", ".join(str(fault) for fault in report.faults)
    return f"seed {report.seed}: {dict(ends)}; {faults}; {report.virtual_s:.1f} virtual s; trace {report.trace}"
