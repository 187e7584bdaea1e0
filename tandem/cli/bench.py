"""`tandem bench`: replay a workload, print what its users would feel, optionally search the capacity."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

import msgspec

from tandem.bench.capacity import CapacitySearch, Trial
from tandem.bench.client import Client, Target, parse_target
from tandem.bench.outcome import Outcome
from tandem.bench.plot import plot
from tandem.bench.probe import find_style, only_model
from tandem.bench.replay import Settings, replay
from tandem.bench.report import Report, summarize
from tandem.bench.schedule import at_rate, at_speed, jittered
from tandem.bench.workload import Workload, take
from tandem.cli.bench_options import Options, load, parse
from tandem.cli.bench_progress import Progress
from tandem.cli.bench_table import table
from tandem.core.errors import TandemError

_PROBE_TIMEOUT_S = 60.0


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 1 when nothing succeeded, no rate met the objectives, or errors were not to be."""
    options = parse(arguments)
    if options.find_capacity and not options.slo.bounds:
        raise TandemError("bad_setting", "--find-capacity needs --slo, such as --slo ttft=2,itl=0.1")
    return asyncio.run(_bench(options))


async def _bench(options: Options) -> int:
    target = parse_target(options.url, options.key)
    workload = prepared(options, load(options))
    settings = await _settings(target, options)
    _say(f"bench: {len(workload.items)} requests of {workload.name} to {settings.style.model!r} at {options.url}")
    if options.find_capacity:
        return await _find_capacity(target, workload, settings, options)
    outcomes = await _replay(target, workload, settings)
    report = summarize(workload.name, options.url, settings.style.model, outcomes, options.slo)
    print(table(report))
    _write(options, report, outcomes)
    failed = report.succeeded == 0 or (options.fail_on_error and bool(report.errors))
    return 1 if failed else 0


def prepared(options: Options, workload: Workload) -> Workload:
    """Cut to the requests asked for and put on the clock asked for."""
    chosen = take(workload, options.requests, options.context)
    if not chosen.items:
        raise TandemError("bad_setting", f"no request of {workload.name} fits into --context {options.context}")
    if options.jitter:
        chosen = jittered(chosen, options.seed)
    if options.rate is not None or not chosen.timed:
        return at_rate(chosen, options.rate or 1.0, options.seed)
    return at_speed(chosen, options.speed)


async def _settings(target: Target, options: Options) -> Settings:
    async with aclosing(Client(target)) as client:
        model = options.model or await only_model(client, _PROBE_TIMEOUT_S)
        style, tokens_per_word = await find_style(
            client, model, options.chat, options.text, options.vocabulary, _PROBE_TIMEOUT_S
        )
    return Settings(
        style, options.vocabulary, tokens_per_word, options.seed, options.timeout_s, options.in_flight_max
    )


async def _replay(target: Target, workload: Workload, settings: Settings) -> list[Outcome]:
    with Progress(len(workload.items)) as progress:
        return await replay(target, workload, settings, progress.add)


async def _find_capacity(target: Target, workload: Workload, settings: Settings, options: Options) -> int:
    search = CapacitySearch(options.rate or 1.0, options.share, rate_max=len(workload.items) / options.trial_s)
    reports: list[Report] = []
    while (rate := search.next_rate()) is not None:
        trial = trial_workload(workload, rate, options.trial_s, options.seed)
        # Each trial has contents of its own: a cache warmed by the last one would flatter it.
        outcomes = await _replay(target, trial, replace(settings, seed=settings.seed + 1 + len(reports)))
        report = summarize(f"{workload.name}@{rate:.3g}/s", options.url, settings.style.model, outcomes, options.slo)
        reports.append(report)
        search.record(Trial(rate, report.goodput_share, report.goodput_per_s))
        _say(f"bench: {rate:7.3g}/s  {len(outcomes):5} requests  {report.goodput_share:6.1%} within the objectives")
    if options.json is not None:
        found = {"capacity_per_s": search.passed, "fails_at_per_s": search.failed, "trials": reports}
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2))
    print(search.verdict())
    return 0 if search.passed is not None else 1


def trial_workload(workload: Workload, rate: float, trial_s: float, seed: int) -> Workload:
    """As many of the first requests as fill `trial_s` at `rate` (at least 10, at most all), at that rate."""
    return at_rate(take(workload, max(10, round(rate * trial_s)), None), rate, seed)


def _write(options: Options, report: Report, outcomes: Sequence[Outcome]) -> None:
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    if options.plot is not None:
        plot(options.plot, f"{report.workload} on {report.model}", outcomes)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
