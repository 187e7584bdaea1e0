"""The simulator's speed: requests per CPU second on one core, 512 prompt tokens in, 64 out, 16 workers.

The router, dispatch, workers, scheduler, leases, fetches, links' queues and index are those of production, the step
times those of a preset, all prompts different. Off: invariants, comparing answers with the truth, the digest over
what clients see. Everything else is as in `tandem sim`. One process, one thread; CPU time is the process's own, with
the platform's start in it. Both platforms take turns; the figures are medians over rounds.

What a request costs depends on how many share a step, so on how many come: a fleet that is hardly used takes most of
its time for steps of one or two sequences. Requests come at some 70 % of the rate at which each platform gives first
tokens when all come at once (970 and 1,310 a second with this preset), as on a fleet that is sized for its traffic;
`--rate` tries another one.
"""

import argparse
import gc
import statistics
import sys
import time
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.rounds import ROUNDS, Check, table, verdict
from router.settings import RouterSettings
from tandem.apps.simulation.garbage import collect_rarely
from tandem.apps.simulation.network import NetworkProfile
from tandem.apps.simulation.platform import Shape, named_workers
from tandem.apps.simulation.replay import Arrival, ReplaySettings, replay
from tandem.core.entropy import SeededEntropy, below
from tandem.core.kv import pack_tokens
from tandem.core.simple_tokenizer import BYTE_IDS
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.presets import preset

PROMPT_TOKENS, OUTPUT_TOKENS, REQUESTS = 512, 64, 2000
PRESET: Final = "h100-llama-3.1-8b"
BLOCKS: Final = 8192
LINK_BYTES_PER_S: Final = 40e9
LIMIT: Final = 1000.0


@dataclass(frozen=True)
class PlatformLoad:
    """Workers, and how fast requests come to them, per virtual second."""

    prefill: int
    decode: int
    requests_per_s: float


PLATFORMS: Final = {"8 prefill, 8 decode": PlatformLoad(8, 8, 680.0), "16 unified": PlatformLoad(0, 16, 920.0)}


@dataclass(frozen=True)
class ReplayRound:
    """One replay: its requests and virtual seconds per CPU second."""

    requests_per_s: float
    virtual_per_s: float
    handed_off: int


def arrivals(requests: int, requests_per_s: float) -> tuple[Arrival, ...]:
    """Evenly spaced requests that share no prefix."""
    entropy, words = SeededEntropy(0, "simulator"), preset(PRESET).model.vocab - BYTE_IDS
    return tuple(
        Arrival(
            number / requests_per_s,
            pack_tokens([BYTE_IDS + below(entropy, words) for _ in range(PROMPT_TOKENS)]),
            OUTPUT_TOKENS,
        )
        for number in range(requests)
    )


def settings(prefill: int, decode: int, stream_interval: int = 1) -> ReplaySettings:
    """Everything that is not needed for tokens to come is off."""
    chosen = preset(PRESET)
    network = NetworkProfile(bytes_per_s=chosen.simulated_rate(LINK_BYTES_PER_S))
    model = replace(chosen.model, blocks=BLOCKS)
    workers = named_workers(prefill, decode)
    shape = Shape(workers, model, SchedulerSettings(), RouterSettings(), network, stream_interval=stream_interval)
    return ReplaySettings(shape, check_every=0)


def measured(settings: ReplaySettings, traffic: tuple[Arrival, ...]) -> ReplayRound:
    """Replay once. Every request must be answered in full."""
    gc.collect()
    began = time.process_time()
    done = replay(settings, traffic)
    cpu_s = time.process_time() - began
    assert done.tally.ends == {"done": len(traffic)}, dict(done.tally.ends)
    assert done.tally.output_tokens == len(traffic) * OUTPUT_TOKENS
    return ReplayRound(len(traffic) / cpu_s, done.virtual_s / cpu_s, done.handed_off)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="per round")
    parser.add_argument("--rate", type=float, help="requests per virtual second (default: what suits each platform)")
    parser.add_argument("--stream-interval", type=int, default=1, help="`host.stream_interval` of the workers")
    arguments = parser.parse_args()
    rates = {name: arguments.rate or platform.requests_per_s for name, platform in PLATFORMS.items()}
    traffic = {name: arrivals(arguments.requests, rate) for name, rate in rates.items()}
    collect_rarely()
    rounds: dict[str, list[ReplayRound]] = {name: [] for name in PLATFORMS}
    for turn in range(1 + arguments.rounds):
        for name, platform in PLATFORMS.items():
            found = measured(settings(platform.prefill, platform.decode, arguments.stream_interval), traffic[name])
            # The first round fills the caches of the text of words.
            if turn:
                rounds[name].append(found)
    rows, checks = [], []
    for name, each in rounds.items():
        rate = statistics.median(one.requests_per_s for one in each)
        virtual = statistics.median(one.virtual_per_s for one in each)
        rows.append(
            (name, f"{rates[name]:g}", f"{rate:.0f}", f"{virtual:.2f}", f"{each[0].handed_off}/{arguments.requests}")
        )
        checks.append(Check(f"simulated requests per CPU second, {name}", rate, LIMIT, at_least=True))
    told = (
        f"tokens told every {arguments.stream_interval} steps"
        if arguments.stream_interval > 1
        else "every token told"
    )
    print(f"{PROMPT_TOKENS} in, {OUTPUT_TOKENS} out, {PRESET}, {told}")
    print(table(("workers", "requests/virtual s", "requests/CPU s", "virtual s/CPU s", "handed off"), rows))
    return verdict(checks, "the simulator is as fast as it has to be")


if __name__ == "__main__":
    sys.exit(main())
