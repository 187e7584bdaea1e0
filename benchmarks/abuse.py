"""Fifty honest streams beside an abuser at every bound of the router's edge: what they notice of it.

`tandem up` with simulated workers and an API key file; honest streams and abusers are tenants of their own. A round
is the streams alone and then the same beside the abusers, within a minute or so. Exits non-zero when a limit is not
met.
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from benchmarks.abuse_clients import KINDS, Abusers
from benchmarks.rounds import Check, percentile, table, verdict
from benchmarks.samples import rss_mb
from tandem.apps.bench.completion import Style, complete, request_body
from tandem.apps.bench.outcome import Outcome
from tandem.apps.chaos.live import LivePlatform, run_platform
from tandem.apps.cli.ports import free_port
from tandem.apps.client.http import Client, Target

ROUNDS: Final = 3
STREAMS: Final = 50
TIMES_LIMIT: Final = 2.0
GAP_LIMIT_S: Final = 0.05
RSS_LIMIT_MB: Final = 400.0
GROWTH_LIMIT_MB: Final = 16.0
_TOKENS: Final = 800
_BEFORE_S: Final = 1.0
_PATIENCE_S: Final = 120.0
_SETTLE_S: Final = 2.0
_LOOK_S: Final = 0.05
_KEYS: Final = {"salt_key": "salt of the abuse benchmark", "keys": {"honest-key": "honest", "abuser-key": "abuser"}}


@dataclass
class StreamPhase:
    """The streams of half a round."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def gaps_s(self) -> list[float]:
        return [gap for outcome in self.outcomes for gap in outcome.gaps_s] or [_PATIENCE_S]

    @property
    def failures(self) -> list[str]:
        return [str(outcome.error) for outcome in self.outcomes if not outcome.ok]


@dataclass
class AbuseRound:
    """Streams alone and beside abusers, and how the abusers were answered."""

    idle: StreamPhase
    abused: StreamPhase
    answered: dict[str, int]
    rss_max_mb: float

    @property
    def times(self) -> float:
        """p99 of the gaps beside abusers over the same alone."""
        return percentile(self.abused.gaps_s, 0.99) / percentile(self.idle.gaps_s, 0.99)

    @property
    def over_s(self) -> float:
        """The longest gap beyond the idle p99.9."""
        return max(self.abused.gaps_s) - percentile(self.idle.gaps_s, 0.999)


async def measure(
    live: LivePlatform, grpc_port: int, rounds: Sequence[Sequence[str]], streams: int
) -> tuple[list[AbuseRound], float]:
    """Rounds with these kinds of abuse, and by how many MB large gRPC calls made the router grow before them."""
    router = psutil.Process(live.pid(live.router))
    abusers = Abusers(live.port, grpc_port, live.model, "abuser-key")
    found: list[AbuseRound] = []
    memory: list[float] = []

    async def look() -> None:
        while True:
            memory.append(rss_mb(router))
            await asyncio.sleep(_LOOK_S)

    looking = asyncio.create_task(look())
    gc.collect()
    gc.disable()  # a collection here would be taken for a pause of the router
    try:
        await _streams(live, streams)
        before = rss_mb(router)
        memory.clear()
        print(await asyncio.to_thread(abusers.large_calls))
        await asyncio.sleep(_SETTLE_S)
        growth = max(memory) - before
        for kinds in rounds:
            idle = await _streams(live, streams)
            memory.clear()
            running = asyncio.create_task(_streams(live, streams))
            await asyncio.sleep(_BEFORE_S)  # abusers fill the bound of connections; these hold theirs
            abusers.start(kinds)
            abused = await running
            answered = await asyncio.to_thread(abusers.stop)
            await asyncio.sleep(_SETTLE_S)
            found.append(AbuseRound(idle, abused, answered, max(memory)))
            gc.collect()
    finally:
        looking.cancel()
        abusers.end()
    return found, growth


async def _streams(live: LivePlatform, count: int) -> StreamPhase:
    """Prompts differ and answers are long; all at once."""
    style = Style(live.model)
    target = Target(live.host, live.port, False, "", "honest-key")

    async def one(number: int) -> Outcome:
        body = request_body(style, [9 + number] * 64, _TOKENS)
        return await complete(client, style, body, 0.0, 0.0, _PATIENCE_S)

    async with aclosing(Client(target)) as client:
        return StreamPhase(list(await asyncio.gather(*(one(number) for number in range(count)))))


def tell_each(found: Sequence[AbuseRound]) -> None:
    """What each kind of abuse does alone."""
    rows = [
        (
            kind,
            f"{each.times:.2f}",
            f"{each.over_s * 1e3:.0f}",
            f"{each.rss_max_mb:.0f}",
            str(len(each.abused.failures)),
        )
        for kind, each in zip(KINDS, found, strict=True)
    ]
    print(table(("abuse", "p99 / idle", "longest above idle p99.9, ms", "router MB", "failed"), rows))


def report(found: list[AbuseRound], growth_mb: float) -> list[Check]:
    """Print the rounds; what must hold."""
    rows = []
    for each in found:
        idle, abused = each.idle.gaps_s, each.abused.gaps_s
        figures = (percentile(idle, 0.99), percentile(idle, 0.999), max(idle), percentile(abused, 0.99), max(abused))
        failed = str(len(each.idle.failures) + len(each.abused.failures))
        rows.append((*(f"{value * 1e3:.0f}" for value in figures), failed, f"{each.rss_max_mb:.0f}"))
    heads = ("idle p99 ms", "p99.9", "longest", "abused p99 ms", "longest", "failed", "router MB")
    print(table(heads, rows) + "\n")
    answered = sum((Counter(each.answered) for each in found), Counter[str]())
    print(", ".join(f"{count} {what}" for what, count in sorted(answered.items())) + "\n")
    failures = [why for each in found for why in (*each.idle.failures, *each.abused.failures)]
    for why, count in Counter(failures).items():
        print(f"{count} honest streams: {why}")
    return [
        Check("honest streams that failed", len(failures), 0, False),
        Check(
            "p99 between tokens / idle, median", statistics.median(each.times for each in found), TIMES_LIMIT, False
        ),
        Check(
            "longest gap above the idle p99.9, most",
            max(each.over_s for each in found) * 1e3,
            GAP_LIMIT_S * 1e3,
            False,
            "ms",
        ),
        Check("60 gRPC calls of 60 MB without a key", growth_mb, GROWTH_LIMIT_MB, False, "MB"),
        Check("router memory, most", max(each.rss_max_mb for each in found), RSS_LIMIT_MB, False, "MB"),
    ]


def main() -> int:
    """Measure and give the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--each", action="store_true", help="a round for each kind of abuse, told and not judged")
    arguments = parser.parse_args()
    rounds = [(kind,) for kind in KINDS] if arguments.each else [KINDS] * arguments.rounds
    grpc_port = free_port("127.0.0.1")
    flags = ["--engine", "simulated", "--preset", "h100-llama-3.1-70b-tp4", "--prefill", "1", "--decode", "1"]
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.json"
        keys.write_text(json.dumps(_KEYS))
        work = partial(measure, grpc_port=grpc_port, rounds=rounds, streams=arguments.streams)
        found = run_platform([*flags, "--grpc-port", str(grpc_port)], work, {"TANDEM_API_KEYS": str(keys)})
    if arguments.each:
        tell_each(found[0])
        return 0
    return verdict(report(*found), "an abuser at every bound is not noticed by others")


if __name__ == "__main__":
    sys.exit(main())
