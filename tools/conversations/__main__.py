"""`python -m tools.conversations`: conversations that return, on real processes, with every tier on.

The platform (torch, float32, demo model; one prefill and two decode workers, a store, Redis) has pools so small that
hardly anything stays in them, so that a conversation's earlier turns come back from DRAM, NVMe, a peer or the store.
Meanwhile every process is killed in turn, the router, the store and Redis included. Every answer must be what one
engine without any cache says. Exits non-zero when one is not, or when no token came from one of the tiers.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tandem.apps.chaos.live import LivePlatform, run_platform
from tools.conversations.client import ConversationClient, Result
from tools.conversations.plan import Conversation, draw, order
from tools.conversations.restarts import Redis, RestartInjector
from tools.conversations.truth import ExpectedTurn, tell
from tools.equality.models import demo

_AT_ONCE = 6
_SHOWN = 10


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    conversations: int
    turns: int
    strikes: int
    kv_memory: str
    dram_gb: float
    nvme_gb: float
    store_gb: float


def main() -> int:
    given = _parser().parse_args()
    options = Options(
        given.conversations, given.turns, given.strikes, given.kv_memory, given.dram_gb, given.nvme_gb, given.store_gb
    )
    subject = demo()
    conversations = draw(subject, options.conversations, options.turns)
    began = time.monotonic()
    progress = _Progress(options.conversations * options.turns)
    truth = asyncio.run(tell(subject, conversations, lambda count: progress.show("one engine, no cache", count)))
    with tempfile.TemporaryDirectory(prefix="tandem-conversations-") as folder:
        result, upsets = _platform(options, conversations, truth, Path(folder), progress)
    took_s = time.monotonic() - began
    return _report(options, result, upsets, took_s, given.json)


def _platform(
    options: Options,
    conversations: Sequence[Conversation],
    truth: Sequence[Sequence[ExpectedTurn]],
    folder: Path,
    progress: "_Progress",
) -> tuple[Result, dict[str, int]]:
    redis = Redis(folder)
    redis.start()
    if not redis.installed:
        print("without Redis: redis-server is not installed (Debian package redis-server)", file=sys.stderr)
    result = Result()
    flags = [
        *("--model", "demo", "--dtype", "float32", "--prefill", "1", "--decode", "2"),
        *("--kv-memory", options.kv_memory, "--dram-gb", str(options.dram_gb)),
        *("--nvme-dir", str(folder / "nvme"), "--nvme-gb", str(options.nvme_gb)),
        *("--store", str(options.store_gb)),
        *(("--redis", redis.url) if redis.installed else ()),
    ]

    async def work(live: LivePlatform) -> dict[str, int]:
        upsets = RestartInjector(live, redis)
        asker = ConversationClient(live, result)
        striking = asyncio.create_task(_strikes(options, upsets, result))
        try:
            await _converse(asker, conversations, truth, lambda: progress.show("all tiers", result.turns))
        finally:
            striking.cancel()
            await asyncio.gather(striking, return_exceptions=True)
            await asker.close()
        return upsets.restarts

    try:
        return result, run_platform(flags, work)
    finally:
        redis.kill()


async def _converse(
    asker: ConversationClient,
    conversations: Sequence[Conversation],
    truth: Sequence[Sequence[ExpectedTurn]],
    answered: Callable[[], None],
) -> None:
    """Every turn of all conversations: what one said before has partly been evicted by the others meanwhile."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(conversation: Conversation, turn: int) -> None:
        try:
            await asker.ask(conversation.turns[turn], truth[conversation.number][turn])
            answered()
        finally:
            limit.release()

    async with asyncio.TaskGroup() as group:
        for conversation, turn in order(conversations):
            await limit.acquire()
            group.create_task(one(conversation, turn))


async def _strikes(options: Options, upsets: RestartInjector, result: Result) -> None:
    """Kill something whenever another share of the turns has been answered."""
    every = options.conversations * options.turns // (options.strikes + 1)
    for strike in range(1, options.strikes + 1):
        while result.turns < strike * every:  # noqa: ASYNC110  (bounded by the run)
            await asyncio.sleep(0.05)
        await upsets.strike()


class _Progress:
    """A line now and then."""

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._next = 0.0

    def show(self, stage: str, count: int) -> None:
        if time.monotonic() >= self._next or count == self._turns:
            self._next = time.monotonic() + 10.0
            print(f"{stage}: {count} of {self._turns} turns", file=sys.stderr, flush=True)


def _report(options: Options, result: Result, restarts: dict[str, int], took_s: float, json: Path | None) -> int:
    found = {tier: result.found.get(tier, 0) for tier in ("hbm", "dram", "nvme", "peer", "store")}
    failures = [*result.wrong, *result.failed]
    if options.strikes:
        failures += [f"no token came from {tier}" for tier, tokens in found.items() if not tokens]
    for line in failures[:_SHOWN]:
        print(line)
    shares = ", ".join(f"{tier} {tokens / max(1, result.prompt_tokens):.1%}" for tier, tokens in found.items())
    print(f"prompt tokens {result.prompt_tokens}: {shares}")
    print(f"killed: {', '.join(f'{name} {count}x' for name, count in sorted(restarts.items())) or 'nothing'}")
    print(
        f"conversations: {'FAILED' if failures else 'OK'}: {options.conversations} of {options.turns} turns, "
        f"{result.turns} answers, {len(result.wrong)} wrong, {len(result.failed)} without an answer, "
        f"{result.asked_again} asked again, {took_s:.0f} s"
    )
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        figures = {"found": found, "restarts": restarts, "seconds": took_s, "turns": result.turns}
        json.write_bytes(msgspec.json.encode({**figures, "failures": failures}))
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.conversations", description=__doc__)
    parser.add_argument("--conversations", type=int, default=500)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--strikes", type=int, default=18, help="processes killed in the course (default %(default)s)"
    )
    parser.add_argument("--kv-memory", default="8Mi", help="KV pool of each worker (default %(default)s)")
    parser.add_argument("--dram-gb", type=float, default=0.03, help="DRAM tier of each worker (default %(default)s)")
    parser.add_argument("--nvme-gb", type=float, default=1.2, help="NVMe tier of each worker (default %(default)s)")
    parser.add_argument("--store-gb", type=float, default=0.05, help="memory of the store (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
