"""`tandem sim`: whole platforms on virtual time, with faults drawn from seeds or under a recorded trace."""

import argparse
import datetime
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Final

from tandem.apps.simulation.faults.drawing import FaultProfile
from tandem.apps.simulation.recorded import Recording, run_recording
from tandem.apps.simulation.seeds import Seed, read_kept
from tandem.apps.simulation.sweep import Sweep, run_sweep
from tandem.apps.simulation.traffic import TrafficProfile
from tandem.apps.simulation.world import WorldSettings
from tandem.core.errors import TandemError
from tandem.engine.simulated.presets import PRESETS

_FRESH_PER_DAY: Final = 100_000
_USUAL: Final = (60, 4)
"""Requests and workers that the traffic's usual span is for."""


def main(arguments: Sequence[str]) -> int:
    """Gives 0 when every promise held. Raises `bad_setting` for files that cannot be read."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.trace is not None:
        return run_recording(_recording(options))
    seeds = _seeds(options)
    if not seeds:
        parser.error("there is nothing to run: --seeds and --fresh are 0 and no seeds are kept")
    return run_sweep(Sweep(_settings(options), seeds, options.jobs, options.verbose, _again(options)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem sim",
        description="Simulates whole platforms on virtual time, each seed with its own traffic, delays and faults, "
        "and checks after every few steps that nothing is lost, repeated, wrong or leaked. With --trace: replays a "
        "recorded trace without faults and tells how soon its tokens came.",
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--fresh", type=int, default=0, help="so many more, other ones every day (default 0)")
    parser.add_argument("--kept", type=Path, help="run the seeds that stand first on the lines of this file, too")
    parser.add_argument("--requests", type=int, help="requests per seed (default 60), or of the trace (default all)")
    parser.add_argument("--kills", type=int, default=1, help="workers killed per seed (default 1)")
    parser.add_argument("--prefill", type=int, help="prefill workers (default 2, for a trace 8; 0 for unified)")
    parser.add_argument("--decode", type=int, help="decode workers (default 2, for a trace 8)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="worlds of one router, without stores, Redis and workers without events",
    )
    parser.add_argument("--verbose", action="store_true", help="one line per seed")
    trace = parser.add_argument_group("a recorded trace")
    trace.add_argument("--trace", type=Path, help="a trace in Mooncake's format, .jsonl or .jsonl.zst")
    trace.add_argument("--preset", choices=tuple(PRESETS), default="h100-llama-3.1-8b", help="step times of")
    trace.add_argument("--scale", type=Fraction, default=Fraction(1), help="lengths times this, such as 1/8")
    trace.add_argument("--speed", type=float, default=1.0, help="time between requests divided by this (default 1)")
    trace.add_argument("--link-gb-per-s", type=float, default=40.0, help="what one pull of KV gets (default 40)")
    trace.add_argument("--check-every", type=int, default=0, help="rounds between looks at the invariants; 0: never")
    return parser


def _recording(options: argparse.Namespace) -> Recording:
    for name in ("scale", "speed", "link_gb_per_s"):
        if getattr(options, name) <= 0:
            raise TandemError("bad_setting", f"--{name.replace('_', '-')} must be above 0", param=name)
    return Recording(
        trace=options.trace,
        preset=options.preset,
        prefill=8 if options.prefill is None else options.prefill,
        decode=8 if options.decode is None else options.decode,
        scale=float(options.scale),
        speed=options.speed,
        requests=options.requests,
        link_gb_per_s=options.link_gb_per_s,
        check_every=options.check_every,
        seed=options.first_seed,
    )


def _seeds(options: argparse.Namespace) -> tuple[Seed, ...]:
    """Fixed ones, kept ones and fresh ones, each once."""
    fixed = range(options.first_seed, options.first_seed + options.seeds)
    seeds = dict.fromkeys(Seed(number, options.plain) for number in fixed)
    if options.kept is not None:
        seeds |= dict.fromkeys(read_kept(options.kept))
    if options.fresh:
        start = datetime.date.today().toordinal() * _FRESH_PER_DAY
        print(f"fresh seeds of today: {start} to {start + options.fresh - 1}")
        seeds |= dict.fromkeys(Seed(number, options.plain) for number in range(start, start + options.fresh))
    return tuple(seeds)


def _settings(options: argparse.Namespace) -> WorldSettings:
    settings = WorldSettings()
    prefill = settings.prefill if options.prefill is None else options.prefill
    decode = settings.decode if options.decode is None else options.decode
    requests = _USUAL[0] if options.requests is None else options.requests
    # More requests come over a longer time, unless there are more workers for them.
    longer = max(1.0, requests / _USUAL[0] * _USUAL[1] / (prefill + decode))
    traffic = replace(TrafficProfile(), requests=requests, span_s=TrafficProfile.span_s * longer)
    faults = replace(FaultProfile(), kills=options.kills, span_s=FaultProfile.span_s * longer)
    return replace(settings, prefill=prefill, decode=decode, traffic=traffic, faults=faults)


def _again(options: argparse.Namespace) -> str:
    """The command that reproduces a seed, without the seed itself."""
    named = {name: getattr(options, name) for name in ("requests", "kills", "prefill", "decode")}
    return shlex.join(
        [
            "tandem",
            "sim",
            *(part for name, value in named.items() if value is not None for part in (f"--{name}", f"{value}")),
        ]
    )
