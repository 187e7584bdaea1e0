"""Goodput of fixed splits of a fleet, of our router and of others, on traffic that nobody has tuned for.

    python -m benchmarks.goodput                 all cells; writes docs/goodput.json and docs/goodput.svg
    python -m benchmarks.goodput --ci            four short cells, nothing written
    python -m benchmarks.goodput --traffic agents --workers 8 --loads 0.8,0.95 --seeds 1 --without peers,ablations

A cell is a kind of traffic, 8 or 16 workers, a share of their capacity and a bound on TPOT. Goodput counts requests
that were offered and met TTFT and TPOT. Every split of the fleet into prefill and decode workers runs with one seed,
the best three with five, and so does a split that follows the load; peers and our router without a part of its
price run in twelve cells. The capacity is the
goodput knee of the best split; it is kept in a file and measured again when the simulator has changed. Results are
kept as they come: an interrupted bench reports what it has, and the same command goes on. It begins with those of
the same code that came with it (`benchmarks/goodput_results.jsonl.gz`). It exits non-zero when a
bar is missed or could not be judged (without peers, with one seed), and with 130 when it was interrupted.
"""

import argparse
import gzip
import multiprocessing
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from benchmarks import goodput_auto
from benchmarks import goodput_capacity as capacity
from benchmarks import goodput_judge as judge
from benchmarks import goodput_plan as plan
from benchmarks import goodput_report as report
from benchmarks.goodput_cells import LOADS, PEERS, SHARES, SIZES, TPOTS_MS, TRAFFICS, Cell, Options, Run
from benchmarks.goodput_code import codes, settings_hash
from benchmarks.goodput_results import ResultsFile
from benchmarks.goodput_runs import RunResult, carry_out
from benchmarks.rounds import verdict
from tandem.core.errors import TandemError

_ROOT: Final = Path(__file__).parent.parent
_CAPACITIES: Final = Path(__file__).parent / "goodput_capacity.json"
_KEPT: Final = Path(__file__).parent / "goodput_results.jsonl.gz"
"""Results that came with the code; where they are of other code they are of no use."""
_CI: Final = (
    Cell("bimodal", 8, 0.95, 50),
    Cell("answer_heavy", 8, 1.1, 25),
    Cell("agents", 8, 0.8, 50),
    Cell("shifting", 8, 0.95, 25),
)
_CI_OPTIONS: Final = Options(
    shares=(0.0, 0.5), sizes=(8,), loads=(0.8, 0.95, 1.1), peers=PEERS[:1], ablations=False, seeds=1, length=0.15
)
_CI_SCALES: Final = {"bimodal": 0.8, "answer_heavy": 0.9, "agents": 0.7, "shifting": 0.45}
"""The capacities that short cells are taken to have: they measure none."""

Next = Callable[[], Iterator[Run]]
T = TypeVar("T")


class GoodputBench:
    """Runs what is wanted in so many processes; what comes in may change what is wanted."""

    def __init__(self, file: ResultsFile, jobs: int) -> None:
        self._file = file
        self._jobs = jobs
        self._began = self._said = time.monotonic()
        self._done = 0

    def carry_out(self, wanted: Next, stage: str) -> None:
        """Until nothing is wanted any more. `wanted` gives runs in the order in which they should begin."""
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._jobs, mp_context=context, initializer=_deaf) as pool:
            under_way: dict[Future[RunResult], Run] = {}
            try:
                while True:
                    self._submit(pool, wanted, under_way)
                    if not under_way:
                        break
                    ended, _ = wait(under_way, return_when=FIRST_COMPLETED)
                    for future in ended:
                        del under_way[future]
                        self._file.add(future.result())
                        self._done += 1
                        self._tell(stage)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        self._tell(stage, now=True)

    def _submit(self, pool: ProcessPoolExecutor, wanted: Next, under_way: dict[Future[RunResult], Run]) -> None:
        busy = set(under_way.values())
        if len(busy) >= 2 * self._jobs:
            return
        for run in wanted():
            if run not in busy and run not in self._file.results:
                under_way[pool.submit(carry_out, run)] = run
                busy.add(run)
                if len(busy) >= 2 * self._jobs:
                    return

    def _tell(self, stage: str, *, now: bool = False) -> None:
        if now or time.monotonic() - self._said > 10:
            self._said = time.monotonic()
            print(f"  {stage}: {self._done} runs, {self._said - self._began:.0f} s", file=sys.stderr, flush=True)


def _deaf() -> None:
    """A terminal tells all processes of an interruption; the runs under way are let end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def measured(
    options: Options, cells: Sequence[Cell], bench: GoodputBench, file: ResultsFile, path: Path
) -> dict[capacity.Key, capacity.Capacity]:
    """The capacities that the cells need: those of the file, and what it lacks by searching."""
    settings = settings_hash()
    known = capacity.read(path, settings)
    lacking = [key for key in plan.keys_of(cells) if key not in known]
    if lacking:
        # A capacity is that of the best of all splits, whatever else is asked for.
        whole = replace(options, shares=SHARES, itl=1.0)

        def wanted() -> Iterator[Run]:
            for key in lacking:
                yield from plan.probes_wanted(whole, key, file.results)

        bench.carry_out(wanted, "capacities")
        for key in lacking:
            splits = whole.splits(key[1])
            known[key] = capacity.capacity_of(plan.points_of(whole, key, file.results), splits)
        capacity.write(path, settings, known)
    return known


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--ci", action="store_true", help="four short cells, nothing is written or judged")
    parser.add_argument("--traffic", type=_listed(str), default=TRAFFICS, help=f"of {', '.join(TRAFFICS)}")
    parser.add_argument("--workers", type=_listed(int), default=SIZES, help="sizes of fleets")
    parser.add_argument("--loads", type=_listed(float), default=LOADS, help="shares of the capacity")
    parser.add_argument("--tpot", type=_listed(int), default=TPOTS_MS, help="bounds in ms")
    parser.add_argument("--splits", type=_listed(float), default=SHARES, help="shares of prefill workers")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--itl", type=float, default=1.0, help="the workers' ITL target as a share of TPOT")
    parser.add_argument("--length", type=float, default=1.0, help="of a cell's 30 s and 90 s, for a quick look")
    parser.add_argument("--without", type=_listed(str), default=(), help="peers, ablations, auto")
    parser.add_argument("--results", type=Path, default=_ROOT / "build" / "goodput.jsonl")
    parser.add_argument("--capacities", type=Path, default=_CAPACITIES)
    parser.add_argument("--json", type=Path, default=None, help="default: docs/goodput.json when all was run")
    parser.add_argument("--plot", type=Path, default=None, help="default: docs/goodput.svg when all was run")
    options = parser.parse_args(arguments)
    for name, given, known in (
        ("traffic", options.traffic, TRAFFICS),
        ("tpot", options.tpot, TPOTS_MS),
        ("without", options.without, ("peers", "ablations", "auto")),
    ):
        if unknown := [each for each in given if each not in known]:
            parser.error(f"--{name}: there is no {unknown[0]!r}; there are {', '.join(map(str, known))}")
    return options


def _listed(of: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    return lambda text: tuple(of(each) for each in text.split(","))


def options_of(chosen: argparse.Namespace) -> Options:
    """What is run."""
    return Options(
        traffics=chosen.traffic,
        sizes=chosen.workers,
        loads=chosen.loads,
        tpots_ms=chosen.tpot,
        shares=chosen.splits,
        peers=() if "peers" in chosen.without else PEERS,
        auto="auto" not in chosen.without,
        ablations="ablations" not in chosen.without,
        seeds=chosen.seeds,
        length=chosen.length,
        itl=chosen.itl,
    )


def told(
    options: Options,
    cells: Sequence[Cell],
    known: dict[capacity.Key, capacity.Capacity],
    file: ResultsFile,
) -> list[judge.Found]:
    """Print what was found so far."""
    found = judge.found_in(options, cells, known, file.results)
    print(report.splits(found))
    for text in (report.autos(judge.autos(found)), report.contests(found), report.recoveries(found)):
        if "\n" in text:
            print(f"\n{text}")
    runs = file.results.values()
    print(f"\n{len(runs)} runs in the file, {sum(each.cpu_s for each in runs):.0f} CPU s")
    return found


def ci(chosen: argparse.Namespace) -> int:
    """Four short cells from traffic to report, in a file of their own; nothing is judged."""
    file = ResultsFile(chosen.results.with_name("goodput-ci.jsonl"), codes())
    known = {
        (cell.traffic, cell.workers, cell.tpot_ms): capacity.Capacity(_CI_SCALES[cell.traffic], 0) for cell in _CI
    }
    _cells(_CI_OPTIONS, _CI, known, GoodputBench(file, chosen.jobs), file)
    found = told(_CI_OPTIONS, _CI, known, file)
    if chosen.json is not None:
        report.write_json(chosen.json, {"ci": True}, known, found, [])
    return 0 if len(judge.autos(found)) == len(_CI) else 1


def _cells(
    options: Options,
    cells: Sequence[Cell],
    known: dict[capacity.Key, capacity.Capacity],
    bench: GoodputBench,
    file: ResultsFile,
) -> None:
    def wanted() -> Iterator[Run]:
        for cell in cells:
            scale = known[cell.traffic, cell.workers, cell.tpot_ms].scale
            yield from plan.wanted(options, cell, scale, file.results)

    bench.carry_out(wanted, "cells")


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, print, judge, write."""
    chosen = parsed(arguments)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return ci(chosen) if chosen.ci else whole(chosen)
    finally:
        signal.signal(signal.SIGTERM, before)


def _begin_with(kept: Path, results: Path) -> None:
    """Results that came with the code, where there are none yet. Raises `bad_setting` when they cannot be read."""
    if results.exists() or not kept.exists():
        return
    try:
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_bytes(gzip.decompress(kept.read_bytes()))
    except (OSError, EOFError, zlib.error) as error:
        raise TandemError("bad_setting", f"{kept} cannot be unpacked to {results}: {error}") from error


def whole(chosen: argparse.Namespace) -> int:
    """All that was asked for; what there is when interrupted."""
    options = options_of(chosen)
    cells = options.cells()
    _begin_with(_KEPT, chosen.results)
    file = ResultsFile(chosen.results, codes())
    bench = GoodputBench(file, chosen.jobs)
    known: dict[capacity.Key, capacity.Capacity] = {}
    try:
        known = measured(options, cells, bench, file, chosen.capacities)
        _cells(options, cells, known, bench, file)
    except KeyboardInterrupt:
        told(options, cells, known or capacity.read(chosen.capacities, settings_hash()), file)
        print(f"INTERRUPTED: the same command goes on from {file.path}")
        return 130
    found = told(options, cells, known, file)
    checks, unjudged = judge.checks(found), judge.unjudged(found)
    unjudged += goodput_auto.unjudged(judge.autos(found)) if options.auto else []
    complete = options == Options()
    json_path = chosen.json or (_ROOT / "docs" / "goodput.json" if complete else None)
    plot_path = chosen.plot or (_ROOT / "docs" / "goodput.svg" if complete else None)
    if json_path is not None:
        setup = {"seeds": options.seeds, "ttft_s": 2.0, "settings": settings_hash(), "itl": options.itl}
        setup["not_judged"] = unjudged
        report.write_json(json_path, setup, known, found, checks)
    if plot_path is not None:
        report.plot(plot_path, found)
    return verdict(
        checks, "our router is not behind the best peer, nor a split that follows the load behind the best", unjudged
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TandemError as error:
        sys.exit(f"goodput: {error}")
