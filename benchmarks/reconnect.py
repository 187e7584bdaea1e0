"""A router that is killed while 5,000 clients reconnect: who is turned away and how, and when it serves again.

`tandem up` with simulated workers; the router is killed with SIGKILL and its supervisor starts it again, alone and
then under clients of another process that connect and ask again every second. Once connected everybody is owed an
answer: 200, or 503 with `Retry-After`. Exits non-zero when a limit is not met.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import statistics
import sys
from collections import Counter
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Final

from benchmarks.rounds import Check, table, verdict
from tandem.apps.chaos.live import LivePlatform, run_platform

ROUNDS: Final = 5
CLIENTS: Final = 5_000
SLOWER_LIMIT_S: Final = 2.0
_ATTEMPT_S: Final = 20.0
_READY_S: Final = 90.0
_LOOK_S: Final = 0.05
_BETWEEN_S: Final = 3.0


class Crowd:
    """Clients in a process of their own, each connecting again after every answer or refused connection."""

    def __init__(self, port: int, model: str, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, port, model, count), daemon=True)
        self._process.start()
        self._pipe.recv()

    def go(self) -> None:
        """Begin to connect."""
        self._pipe.send("go")

    def stop(self) -> dict[str, int]:
        """End them; how often they got what."""
        self._pipe.send("stop")
        answered: dict[str, int] = self._pipe.recv()
        self._process.join()
        return answered


def _run(pipe: Connection, port: int, model: str, count: int) -> None:
    os.nice(5)
    asyncio.run(_crowd(pipe, port, model, count))


async def _crowd(pipe: Connection, port: int, model: str, count: int) -> None:
    pipe.send("ready")
    pipe.recv()
    answered: Counter[str] = Counter()
    body = json.dumps({"model": model, "prompt": [5, 6, 7, 8], "max_tokens": 1}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nhost: crowd\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"

    async def client(number: int) -> None:
        await asyncio.sleep(number / count)
        while True:
            answered[await _attempt(port, request % (len(body), body))] += 1
            await asyncio.sleep(1.0)

    tasks = [asyncio.create_task(client(number)) for number in range(count)]
    while not pipe.poll():  # noqa: ASYNC110  (a pipe to another process)
        await asyncio.sleep(_LOOK_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    pipe.recv()
    pipe.send(dict(answered))


async def _attempt(port: int, request: bytes) -> str:
    """One connection, request and answer; a router that does not listen is `no router`."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return "no router"
    try:
        async with asyncio.timeout(_ATTEMPT_S):
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
    except TimeoutError:
        return "no answer"
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        return type(error).__name__
    finally:
        writer.transport.abort()
    status = head[9:12].decode()
    return status if status != "503" or b"\r\nretry-after:" in head else "503 without Retry-After"


async def measure(live: LivePlatform, clients: int, rounds: int) -> tuple[list[float], list[float], Counter[str]]:
    """Seconds of starts, alone and under clients, and what these got."""
    alone, crowded, answered = [], [], Counter[str]()
    for _ in range(rounds):
        alone.append(await _restart(live))
        crowd = await asyncio.to_thread(Crowd, live.port, live.model, clients)
        crowded.append(await _restart(live, crowd))
        await asyncio.sleep(_BETWEEN_S)
        answered.update(await asyncio.to_thread(crowd.stop))
        await asyncio.sleep(_BETWEEN_S)
    return alone, crowded, answered


async def _restart(live: LivePlatform, crowd: Crowd | None = None) -> float:
    """Kill the router; seconds from the start of its next process until that is ready. How long a supervisor waits
    before it starts what ends often is not counted."""
    loop, before = asyncio.get_running_loop(), live.router.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    if crowd is not None:
        crowd.go()
    async with asyncio.timeout(_READY_S):
        while live.router.pid == before:  # noqa: ASYNC110  (another process)
            await asyncio.sleep(_LOOK_S)
        began = loop.time()
        while not await _is_ready(live):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
    return loop.time() - began


async def _is_ready(live: LivePlatform) -> bool:
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(5.0):
            reader, writer = await asyncio.open_connection(live.host, live.port)
            try:
                writer.write(b"GET /ready HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")
                return (await reader.readline())[9:12] == b"200"
            finally:
                writer.transport.abort()
    return False


def report(alone: list[float], crowded: list[float], answered: Counter[str]) -> list[Check]:
    """Print the figures; what must hold."""
    rows = [
        (name, *(f"{each:.2f}" for each in sorted(seconds)))
        for name, seconds in (("alone", alone), ("under clients", crowded))
    ]
    print(table(("router ready after, s", *(str(each + 1) for each in range(len(alone)))), rows) + "\n")
    print(", ".join(f"{count} {what}" for what, count in answered.most_common()) + "\n")
    typed = ("200", "503", "no router")
    broken = sum(count for what, count in answered.items() if what not in typed)
    slower = statistics.median(crowded) - statistics.median(alone)
    return [
        Check("ready later than alone, median", slower, SLOWER_LIMIT_S, False, "s"),
        Check("connections without a typed answer", broken, 0, False),
    ]


def main() -> int:
    """Measure and give the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    flags = ["--engine", "simulated", "--prefill", "1", "--decode", "1"]
    found = run_platform(flags, partial(measure, clients=arguments.clients, rounds=arguments.rounds))
    return verdict(report(*found), "a router that comes back is not held up by those who wait for it")


if __name__ == "__main__":
    sys.exit(main())
