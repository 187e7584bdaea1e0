"""`tandem sim --trace FILE`: a recorded trace through a simulated platform, and how soon its tokens came.

This is the shell around the simulation; nothing simulated runs in it.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from router.settings import RouterSettings
from tandem.apps.bench.content import TokenRange, prompt_tokens
from tandem.apps.bench.distribution import distribution
from tandem.apps.bench.mooncake import read_trace
from tandem.apps.bench.schedule import at_speed, jittered
from tandem.apps.bench.workload import Piece, Scale, Workload, take
from tandem.apps.simulation.garbage import collect_rarely
from tandem.apps.simulation.network import NetworkProfile
from tandem.apps.simulation.platform import Shape, named_workers
from tandem.apps.simulation.progress import ProgressLine
from tandem.apps.simulation.replay import Arrival, Replayed, ReplaySettings, Tally, replay
from tandem.apps.simulation.summary import aligned
from tandem.core.kv import pack_tokens
from tandem.core.simple_tokenizer import BYTE_IDS
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.presets import preset

_PIECES_KEPT: Final = 8192
"""Prompts' pieces kept in memory: 2 KiB each for Mooncake's blocks of 512 tokens."""


@dataclass(frozen=True)
class Recording:
    """A trace to replay and the platform to replay it on. `scale` shortens prompts and answers, `speed` the time
    between requests; `link_gb_per_s` is the bandwidth of one pull of KV; with `check_every` 0 no invariant is
    checked."""

    trace: Path
    preset: str
    prefill: int
    decode: int
    scale: float = 1.0
    speed: float = 1.0
    requests: int | None = None
    link_gb_per_s: float = 40.0
    check_every: int = 0
    seed: int = 0


def run_recording(recording: Recording) -> int:
    """Replay it and print the figures; gives 0. Raises `bad_setting`, and whatever breaks when invariants are on."""
    chosen = preset(recording.preset)
    whole = read_trace(recording.trace, Scale(recording.scale, recording.scale))
    workload = take(whole, recording.requests, chosen.model.context_tokens)
    workload = at_speed(jittered(workload, recording.seed), recording.speed)
    network = NetworkProfile(bytes_per_s=chosen.simulated_rate(recording.link_gb_per_s * 1e9))
    workers = named_workers(recording.prefill, recording.decode)
    shape = Shape(workers, chosen.model, SchedulerSettings(), RouterSettings(), network)
    print(_heading(recording, workload, len(whole.items)))
    collect_rarely()
    line, began, began_cpu = ProgressLine(), time.monotonic(), time.process_time()

    def progress(tally: Tally, now: float) -> None:
        if line.due:
            rate = tally.ended / (time.monotonic() - began)
            line.show(f"{tally.ended}/{len(workload.items)} requests, {rate:.0f}/s, virtual time {now:.0f} s")

    settings = ReplaySettings(shape, check_every=recording.check_every)
    done = replay(settings, _arrivals(workload, chosen.model.vocab), recording.seed, progress)
    line.close()
    print(_figures(done, time.monotonic() - began, time.process_time() - began_cpu))
    return 0


def _arrivals(workload: Workload, vocab: int) -> Iterator[Arrival]:
    """Prompts are made when they are due: all of a trace at once would fill the memory."""

    @lru_cache(maxsize=_PIECES_KEPT)
    def packed(piece: Piece) -> bytes:
        return pack_tokens(prompt_tokens((piece,), TokenRange(BYTE_IDS, vocab), 0))

    for item in workload.items:
        yield Arrival(item.arrival_s, b"".join(packed(piece) for piece in item.pieces), item.output_tokens)


def _heading(recording: Recording, workload: Workload, read: int) -> str:
    roles = (
        f"{recording.prefill} prefill and {recording.decode} decode" if recording.prefill else str(recording.decode)
    )
    checked = f"checked every {recording.check_every} rounds" if recording.check_every else "off"
    return (
        f"{workload.name}: {len(workload.items)} of {read} requests, lengths x {recording.scale:g}, "
        f"speed x {recording.speed:g}, on {roles} workers of {recording.preset}; invariants {checked}"
    )


def _figures(done: Replayed, wall_s: float, cpu_s: float) -> str:
    tally = done.tally
    rows = [("requests", f"{tally.ended:,}")]
    rows += [(f"  {end}", f"{count:,}") for end, count in sorted(tally.ends.items())]
    rows += [
        ("prompt tokens", f"{tally.prompt_tokens:,}"),
        ("  not computed again", f"{tally.cached_tokens / max(1, tally.prompt_tokens):.1%}"),
        ("output tokens", f"{tally.output_tokens:,}"),
        ("handed off from prefill to decode", f"{done.handed_off:,}"),
    ]
    for name, values in (("TTFT", tally.ttft_s), ("ITL", tally.gaps_s)):
        found = distribution(values)
        if found is not None:
            figures = ((f"p{share}", figure) for share, figure in ((50, found.p50), (90, found.p90), (99, found.p99)))
            rows += [(f"{name} {share}", f"{figure * 1e3:,.1f} ms") for share, figure in figures]
    rows += [
        ("virtual time", f"{done.virtual_s:,.0f} s"),
        ("real time", f"{wall_s:.1f} s"),
        ("virtual seconds per second", f"{done.virtual_s / wall_s:,.1f}"),
        ("requests per second", f"{tally.ended / wall_s:,.0f}"),
        ("requests per CPU second", f"{tally.ended / cpu_s:,.0f}"),
    ]
    return aligned(rows)
