"""`tandem bench`: replay a workload, print what its users would feel, optionally search the capacity."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

import msgspec

from tandem.apps.bench.capacity import CapacitySearch, Trial
from tandem.apps.bench.outcome import Outcome
from tandem.apps.bench.plot import plot
from tandem.apps.bench.probe import find_model, find_style
from tandem.apps.bench.replay import Settings, replay
from tandem.apps.bench.report import Report, summarize
from tandem.apps.bench.schedule import at_rate, at_speed, jittered
from tandem.apps.bench.workload import Workload, take
from tandem.apps.cli.bench_options import Options, load, parse
from tandem.apps.cli.bench_progress import Progress
from tandem.apps.cli.bench_signals import Interruption
from tandem.apps.cli.bench_table import table
from tandem.apps.client.http import Client, Target, parse_target
from tandem.core.errors import TandemError
from tandem.core.slo import Slo

_PROBE_TIMEOUT_S = 60.0


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 1 when nothing succeeded, no rate met the objectives, or errors were not to be.

    SIGINT gives 130 and SIGTERM 143, after the report of what was offered until then.
    """
    options = parse(arguments)
    target = parse_target(options.url, options.key)
    return asyncio.run(_bench(target, prepared(options, load(options)), options))


async def _bench(target: Target, workload: Workload, options: Options) -> int:
    with Interruption() as interruption:
        try:
            settings, slo = await _settings(target, options)
        except asyncio.CancelledError:
            if interruption.signal is None:
                raise
            _say("bench: interrupted before the first request")
            return interruption.status
        options = replace(options, slo=slo)
        count, model = len(workload.items), settings.style.model
        _say(f"bench: {count} requests of {workload.name} to {model!r} at {options.url}")
        if options.find_capacity:
            return await _find_capacity(target, workload, settings, options, interruption)
        outcomes = await _replay(target, workload, settings, interruption)
    report = _report(workload.name, options, settings, outcomes, interruption)
    print(table(report))
    _write(options, report, outcomes)
    if interruption.signal is not None:
        return interruption.status
    failed = report.succeeded == 0 or (options.fail_on_error and bool(report.errors))
    return 1 if failed else 0


def prepared(options: Options, workload: Workload) -> Workload:
    """Cut to the requests asked for and put on the clock asked for; a closed loop has no clock of its own."""
    chosen = take(workload, options.requests, options.context)
    if not chosen.items:
        raise TandemError("bad_setting", f"no request of {workload.name} fits into --context {options.context}")
    if options.closed is not None:
        return chosen
    if options.jitter:
        chosen = jittered(chosen, options.seed)
    if options.rate is not None or not chosen.timed:
        return at_rate(chosen, options.rate or 1.0, options.seed)
    return at_speed(chosen, options.speed)


async def _settings(target: Target, options: Options) -> tuple[Settings, Slo]:
    """The request settings and the objectives for the answers: those of the command line, otherwise those of the
    server."""
    async with aclosing(Client(target)) as client:
        listed = await find_model(client, options.model, _PROBE_TIMEOUT_S)
        slo = options.slo if options.slo.bounds else listed.slo
        if options.find_capacity and not slo.bounds:
            raise TandemError(
                "bad_setting",
                "--find-capacity needs --slo, such as --slo ttft=2,itl=0.1: the server says nothing of it",
            )
        style, tokens_per_word = await find_style(
            client, listed.model, options.chat, options.text, options.vocabulary, _PROBE_TIMEOUT_S
        )
    settings = Settings(
        style=style,
        vocabulary=options.vocabulary,
        tokens_per_word=tokens_per_word,
        seed=options.seed,
        timeout_s=options.timeout_s,
        in_flight_max=options.in_flight_max,
        closed=options.closed,
    )
    return settings, slo


async def _replay(
    target: Target, workload: Workload, settings: Settings, interruption: Interruption
) -> list[Outcome]:
    """Every outcome; after an interruption those of the requests that were due until then."""
    heard: list[Outcome] = []
    with Progress(len(workload.items)) as progress:

        def hear(outcome: Outcome) -> None:
            heard.append(outcome)
            progress.add(outcome)

        try:
            return await replay(target, workload, settings, hear)
        except asyncio.CancelledError:
            if interruption.signal is None:
                raise
    return sorted(heard, key=lambda outcome: outcome.scheduled_s)


def _report(
    name: str, options: Options, settings: Settings, outcomes: Sequence[Outcome], interruption: Interruption
) -> Report:
    interrupted = interruption.signal is not None
    model = settings.style.model
    return summarize(name, options.url, model, outcomes, options.slo, settings.closed, interrupted)


async def _find_capacity(
    target: Target, workload: Workload, settings: Settings, options: Options, interruption: Interruption
) -> int:
    search = CapacitySearch(options.rate or 1.0, options.share, rate_max=len(workload.items) / options.trial_s)
    reports: list[Report] = []
    while interruption.signal is None and (rate := search.next_rate()) is not None:
        trial = trial_workload(workload, rate, options.trial_s, options.seed)
        contents = replace(settings, seed=trial_seed(settings.seed, len(reports)))
        outcomes = await _replay(target, trial, contents, interruption)
        report = _report(f"{workload.name}@{rate:.3g}/s", options, settings, outcomes, interruption)
        reports.append(report)
        _say(f"bench: {rate:7.3g}/s  {report.offered:5} requests  {report.goodput_share:6.1%} within the objectives")
        if not report.interrupted:
            search.record(Trial(rate, report.goodput_share, report.goodput_per_s))
    interrupted = interruption.signal is not None
    if options.json is not None:
        found = {
            "capacity_per_s": search.passed,
            "fails_at_per_s": search.failed,
            "interrupted": interrupted,
            "trials": reports,
        }
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2))
    print(f"interrupted; {search.verdict()}" if interrupted else search.verdict())
    if interrupted:
        return interruption.status
    return 0 if search.passed is not None else 1


def trial_seed(seed: int, trial: int) -> int:
    """The seed of a trial's contents, unlike those of other trials and of searches and replays with small seeds.

    A cache that another one has warmed would flatter the trial.
    """
    return ((seed + 1) << 16) + trial


def trial_workload(workload: Workload, rate: float, trial_s: float, seed: int) -> Workload:
    """The first requests of a workload, as many as fill `trial_s` at `rate` (at least 10, at most all), at that
    rate."""
    return at_rate(take(workload, max(10, round(rate * trial_s)), None), rate, seed)


def _write(options: Options, report: Report, outcomes: Sequence[Outcome]) -> None:
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    if options.plot is not None:
        plot(options.plot, f"{report.workload} on {report.model}", outcomes)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
