"""The shared index in Redis: one look-up of 512 chunks, memory per chunk, and publishing; on a real redis-server.

The server is started for the measurement, on a Unix socket, without persistence. `--chunks` names (200,000 by
default) are published by four holders, each name by one to four of them. A look-up is for 512 names that two holders
have; the limit next to it is a bare PING on the same connection. Memory is what INFO counts, the records of holders
and Redis' own tables in it.
"""

import argparse
import asyncio
import contextlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from benchmarks.rounds import ROUNDS, Check, percentile, table, verdict
from kv_transfer.index.redis_client import redis_client
from kv_transfer.index.redis_index import NAMES_MAX, RedisIndex
from kv_transfer.index.redis_publisher import RedisPublisher
from kv_transfer.index.redis_settings import RedisSettings
from tandem.core.kv import NAME_BYTES, Layout
from tandem.core.messages import PROTOCOL_VERSION, Hello
from tandem.core.metrics import NullMeter
from tandem.process.system import SystemClock

HOLDERS: Final = 4
LOOK_UP_MS: Final = 5.0
MEMORY_B: Final = 200.0
START_S: Final = 10.0


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A redis-server of our own; its URL."""
    with tempfile.TemporaryDirectory() as directory:
        socket = Path(directory) / "redis.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", directory]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            give_up = time.monotonic() + START_S
            while not socket.exists() and time.monotonic() < give_up:
                time.sleep(0.01)
            try:
                yield f"unix://{socket}"
            finally:
                process.terminate()


def hello(number: int) -> Hello:
    """How a holder introduces itself."""
    layout = Layout("torch", "plain", "bfloat16", 2, 32, 16, 8, 128)
    name, addresses = f"worker-{number}", (f"shm://worker-{number}", f"tcp://10.0.0.{number}:7000")
    return Hello(
        PROTOCOL_VERSION, name, 1, "unified", "m", "0" * 64, "r1", layout, bytes(16), 9000, 131072, (2,), addresses
    )


class Holder:
    """Keeps a list of names and publishes it."""

    def __init__(self, number: int, names: tuple[bytes, ...], settings: RedisSettings) -> None:
        held: Mapping[str, Sequence[bytes]] = {"hbm": names[: len(names) // 2], "dram": names[len(names) // 2 :]}
        self.names = names
        connect = redis_client(settings)
        self.publisher = RedisPublisher(settings, hello(number), lambda: held, SystemClock(), NullMeter(), connect)


@contextlib.asynccontextmanager
async def running(*parts: RedisPublisher | RedisIndex) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(part.run()) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure(url: str, chunks: int, rounds: int) -> list[Check]:
    """Publish, look up, compare. Prints the table."""
    settings, draw = RedisSettings(url, look_up_s=1.0), random.Random(1)
    names = [draw.randbytes(NAME_BYTES) for _ in range(chunks)]
    admin: Redis = Redis.from_url(url)
    before = int((await admin.info("memory"))["used_memory"])
    # Every name has at least one holder, and the first chunks of prompts two.
    chosen: list[list[bytes]] = [[] for _ in range(HOLDERS)]
    for at, name in enumerate(names):
        for holder in draw.sample(range(HOLDERS), max(draw.randint(1, HOLDERS), 2 if at < chunks // 2 else 1)):
            chosen[holder].append(name)
    prompt = tuple(chosen[0][:NAMES_MAX])
    holders = [Holder(number, tuple(each), settings) for number, each in enumerate(chosen)]
    index = RedisIndex(settings, NullMeter(), redis_client(settings))
    published = sum(len(holder.names) for holder in holders)
    began = time.perf_counter()
    async with running(index, *(holder.publisher for holder in holders)):
        while not all(holder.publisher.settled for holder in holders) or not index.usable:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        took_s = time.perf_counter() - began
        memory = (int((await admin.info("memory"))["used_memory"]) - before) / chunks
        looked, pinged = [], []
        await admin.config_resetstat()
        for _ in range(20 * rounds):
            began = time.perf_counter()
            found = await index.longest(prompt)
            looked.append((time.perf_counter() - began) * 1e3)
            assert found["worker-0"].held.total == NAMES_MAX
            began = time.perf_counter()
            await admin.ping()
            pinged.append((time.perf_counter() - began) * 1e3)
        spent = (await admin.info("commandstats"))["cmdstat_evalsha"]
    await admin.aclose()
    rows = [
        (f"look-up of {NAMES_MAX} chunks, ms", f"{statistics.median(looked):.3f}", f"{percentile(looked, 0.99):.3f}"),
        ("of that inside Redis, ms, mean", f"{spent['usec_per_call'] / 1e3:.3f}", ""),
        ("bare PING, ms", f"{statistics.median(pinged):.3f}", f"{percentile(pinged, 0.99):.3f}"),
    ]
    print(f"{chunks:,} chunks, {published:,} entries of {HOLDERS} holders, published at {published / took_s:,.0f}/s")
    print(table(("", "median", "p99"), rows))
    return [
        Check(f"look-up of {NAMES_MAX} chunks in one round trip", statistics.median(looked), LOOK_UP_MS, False, "ms"),
        Check("Redis memory per chunk", memory, MEMORY_B, False, "B"),
    ]


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--chunks", type=int, default=200_000)
    arguments = parser.parse_args()
    if shutil.which("redis-server") is None:
        print("redis-server is not installed: nothing to measure")
        return 0
    with server() as url:
        checks = asyncio.run(measure(url, arguments.chunks, arguments.rounds))
    return verdict(checks, "the shared index is as fast and as small as it has to be")


if __name__ == "__main__":
    sys.exit(main())
