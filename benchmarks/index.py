"""The router's index of blocks: look-up, memory per block, events per second, and the longest pause.

The table holds `--blocks` random names (10 million by default), each on 1 to 6 of 64 workers, at random, a tenth in
DRAM and a tenth on NVMe. Look-ups are for 8,192 names (128k tokens in blocks of 16): one worker has all of them in
its pool, one all of them across three tiers, eight the first half. They were stored in chunks of 512 tokens, as
prefill brings them, between those of others; or, as nothing does, in random order. Events are what engine steps
bring: most deltas have one or two names, some hundreds, coalesced per tick of 64 workers' steps. The limit next to a
look-up is a bare gather of as many rows from a table of the same size. Times are of CPU, so that neighbours on the
machine do not count.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import psutil

from benchmarks.rounds import ROUNDS, Check, percentile, table, verdict
from kv_transfer.index.compact_index import CompactIndex
from router.fleet.kv_feed import Change, KvFeed
from tandem.core.kv import NAME_BYTES, BlockNames
from tandem.core.messages import KvDelta, KvSnapshot

WORKERS, PROMPT = 64, 8192
LOOK_UP_MS: Final = 1.0
MEMORY_B: Final = 200.0
KEVENTS_PER_S: Final = 300.0
PAUSE_MS: Final = 2.0
_PIECE: Final = 500
_TICKS: Final = 400
_CHUNK: Final = 32
_TIERS: Final = ("hbm",) * 8 + ("dram", "nvme")


@dataclass(frozen=True)
class Tick:
    """The deltas of one turn of the loop: (worker, stored, removed)."""

    deltas: tuple[tuple[int, bytes, bytes], ...]

    @property
    def events(self) -> int:
        return sum(len(stored) + len(removed) for _, stored, removed in self.deltas) // NAME_BYTES


def drawn(random: np.random.Generator, count: int) -> bytes:
    """Packed random names."""
    return random.bytes(count * NAME_BYTES)


def fill(index: CompactIndex, blocks: int, random: np.random.Generator) -> list[float]:
    """Put `blocks` names in, with their holders; the milliseconds of each call."""
    times = []
    for _ in range(blocks // _PIECE):
        names = drawn(random, _PIECE)
        for worker in random.integers(0, WORKERS, random.integers(1, 7)).tolist():
            began = time.thread_time()
            index.change(f"w{worker}", names, b"", _TIERS[worker % 10])
            times.append((time.thread_time() - began) * 1e3)
    return times


def prompts(index: CompactIndex, random: np.random.Generator, count: int, in_order: bool) -> list[BlockNames]:
    """Names of prompts, of each of which ten workers have a good part. They come in turns, a chunk of each."""
    packed = [drawn(random, PROMPT) for _ in range(count)]
    for start in range(0, PROMPT, _CHUNK):
        for each in packed:
            chunk = each[start * NAME_BYTES : (start + _CHUNK) * NAME_BYTES]
            if not in_order:
                places = random.permutation(PROMPT)[:_CHUNK].tolist()
                chunk = b"".join(each[at * NAME_BYTES : (at + 1) * NAME_BYTES] for at in places)
            index.change("w0", chunk, b"")
    third = PROMPT // 3 * NAME_BYTES
    for each in packed:
        for tier, part in (("hbm", each[:third]), ("dram", each[third : 2 * third]), ("nvme", each[2 * third :])):
            index.change("w1", part, b"", tier)
        index.change("w0", each, b"")
        for worker in range(2, 10):
            index.change(f"w{worker}", each[: PROMPT // 2 * NAME_BYTES], b"")
    return [BlockNames(each) for each in packed]


def timed_ms(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1e3


def look_ups(index: CompactIndex, random: np.random.Generator, rounds: int, in_order: bool) -> list[float]:
    """Milliseconds of look-ups of prompts not looked at before."""
    asked = prompts(index, random, rounds, in_order)
    index.longest(asked[0][:1])
    times = [timed_ms(lambda names=names: index.longest(names)) for names in asked]  # type: ignore[misc]
    found = index.longest(asked[0])
    assert found["w0"].hbm == PROMPT
    assert found["w1"].total == PROMPT
    assert found["w1"].dram + found["w1"].nvme == PROMPT - PROMPT // 3
    return times


def gathers(random: np.random.Generator, rounds: int) -> list[float]:
    """Milliseconds of bare gathers of as many rows."""
    rows = np.ones((1 << 24, 5), dtype=np.uint64)
    places = [random.integers(0, len(rows), PROMPT) for _ in range(rounds)]
    return [timed_ms(lambda at=at: np.take(rows, at, axis=0)) for at in places]  # type: ignore[misc]


def ticks(random: np.random.Generator) -> tuple[Tick, ...]:
    """What 64 workers tell while they serve. What one has stored it removes some ticks later."""
    kept: list[list[bytes]] = [[] for _ in range(WORKERS)]
    made = []
    for _ in range(_TICKS):
        deltas = []
        for worker in range(WORKERS):
            if random.random() > 0.5:
                continue
            count = int(random.integers(100, 500)) if random.random() < 0.02 else int(random.integers(1, 3))
            stored = drawn(random, count)
            kept[worker].append(stored)
            removed = kept[worker].pop(0) if len(kept[worker]) > 20 else b""
            deltas.append((worker, stored, removed))
        made.append(Tick(tuple(deltas)))
    return tuple(made)


def events(index: CompactIndex, random: np.random.Generator, through_feeds: bool) -> tuple[float, float]:
    """Events per second of CPU, and the longest tick in ms. A look-up ends each tick, as placement would."""
    made = ticks(random)
    feeds = [KvFeed(1) for _ in range(WORKERS)]
    counts = [0] * WORKERS
    for feed in feeds:
        feed.take(KvSnapshot(1, 0, b"", True))
    names = [f"w{worker}" for worker in range(WORKERS)]
    unknown = [drawn(random, 1)]
    worst = 0.0
    began = time.process_time()
    for tick in made:
        tick_began = time.thread_time()
        for worker, stored, removed in tick.deltas:
            if through_feeds:
                counts[worker] += 1
                for action in feeds[worker].take(KvDelta(1, counts[worker], stored, removed)):
                    assert isinstance(action, Change)
                    index.change(names[worker], action.stored, action.removed, action.tier)
            else:
                index.change(names[worker], stored, removed)
        index.longest(unknown)
        worst = max(worst, time.thread_time() - tick_began)
    return sum(tick.events for tick in made) / (time.process_time() - began), worst * 1e3


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--blocks", type=int, default=10_000_000)
    arguments = parser.parse_args()
    random = np.random.default_rng(5)
    index, process = CompactIndex(int.from_bytes(random.bytes(16), "little")), psutil.Process()
    # What numpy sets up on first use is not the index's.
    fill(CompactIndex(1), 20_000, random)
    gc.collect()
    before = process.memory_info().rss
    calls = fill(index, arguments.blocks, random)
    blocks = len(index)
    memory = (process.memory_info().rss - before) / blocks
    ours = look_ups(index, random, 6 * arguments.rounds, in_order=True)
    scattered = look_ups(index, random, 6 * arguments.rounds, in_order=False)
    bare = gathers(random, 6 * arguments.rounds)
    rates = [events(index, random, through_feeds=False) for _ in range(arguments.rounds)]
    fed = [events(index, random, through_feeds=True) for _ in range(arguments.rounds)]
    index.drop("w0")
    turns = []
    more = True
    while more:
        began = time.thread_time()
        more = index.tend()
        turns.append((time.thread_time() - began) * 1e3)
    rate = statistics.median(each for each, _ in rates)
    rows = [
        ("look-up of 8,192 names, ms", f"{statistics.median(ours):.3f}", f"{percentile(ours, 0.99):.3f}"),
        (
            "the same, stored in random order, ms",
            f"{statistics.median(scattered):.3f}",
            f"{percentile(scattered, 0.99):.3f}",
        ),
        ("bare gather of 8,192 rows, ms", f"{statistics.median(bare):.3f}", f"{percentile(bare, 0.99):.3f}"),
        ("a call that brings 500 names, ms", f"{statistics.median(calls):.3f}", f"{percentile(calls, 0.99):.3f}"),
        ("a tick of events with a look-up, ms", "", f"{statistics.median(worst for _, worst in rates):.3f}"),
        (
            "a slice of clearing a lost worker, ms",
            f"{statistics.median(turns):.3f}",
            f"{percentile(turns, 0.99):.3f}",
        ),
    ]
    print(f"{blocks:,} blocks, {WORKERS} workers")
    print(table(("", "median", "p99 or worst"), rows))
    print(f"events through feeds as well: {statistics.median(each for each, _ in fed):,.0f} per CPU second")
    checks = [
        Check("look-up of a 128k-token prompt", statistics.median(ours), LOOK_UP_MS, at_least=False, unit="ms"),
        Check("router memory per block", memory, MEMORY_B, at_least=False, unit="B"),
        Check("thousand block events per CPU second", rate / 1e3, KEVENTS_PER_S, at_least=True),
        Check("call that brings 500 names, p99", percentile(calls, 0.99), PAUSE_MS, at_least=False, unit="ms"),
        Check("slice of clearing a lost worker, p99", percentile(turns, 0.99), PAUSE_MS, at_least=False, unit="ms"),
    ]
    return verdict(checks, "the index is as fast and as small as it has to be")


if __name__ == "__main__":
    sys.exit(main())
