"""The router's edge: what one client does to the streams and probes of others.

`streams`: so many streams get a token in the same step; how long the event loop is held, by the thread's own clock
and by the wall (`tandem_loop_held_seconds`). `silent`: connections that say nothing, while `/health` is asked.
`bodies`: legal-sized bodies, one and eight at once, and the longest gap between tokens of other clients' streams. A
real router; workers are scripted, for `bodies` simulated engines.
"""

import argparse
import asyncio
import json
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psutil

from benchmarks.router import BenchProcess, post
from tandem.apps.chaos.live import LivePlatform, MetricSamples, parse_metrics, run_platform, scrape, total

HELD_MAX_S: Final = 0.02
_SETTLE_S: Final = 3.0
_PROBE_EVERY_S: Final = 0.1
_KINDS: Final = ("wall", "thread")
_FLAGS: Final = ("--engine", "simulated", "--preset", "h100-llama-3.1-70b-tp4", "--prefill", "1", "--decode", "1")


class EdgeRouter(BenchProcess):
    """A router process over two scripted workers that give every sequence a token so many times a second."""

    def __init__(self, steps_per_s: float) -> None:
        self.workers = BenchProcess(["benchmarks.router_workers", "--steps-per-s", str(steps_per_s)], None)
        flags = ["--engine", "simulated", "--port", "0", "--metrics_bind", "127.0.0.1:0", "--events"]
        flags += ["--max_streams", "8192", "--core.admission.queued_max", "8192"]
        addresses = ",".join(json.loads(self.workers.line))
        super().__init__(["router", *flags, "--log.level", "warning", "--workers", addresses], None)
        told: dict[str, Any] = {}
        event = json.loads(self.line)
        while event["event"] != "ready":
            told[event["event"]] = event.get("address", "")
            event = json.loads(self.next_line())
        self.port, self.probes = (int(told[name].rpartition(":")[2]) for name in ("listening", "metrics"))

    def stop(self) -> None:
        super().stop()
        self.workers.stop()


def held(before: MetricSamples, after: MetricSamples, clock: str) -> tuple[float, int, int]:
    """Upper bound of the longest hold between two pages, looks beyond `HELD_MAX_S`, and looks."""
    label = f'clock="{clock}"'
    longest, beyond, below = 0.0, 0, 0.0
    looks = round(total(after, "tandem_loop_held_seconds_count", label))
    looks -= round(total(before, "tandem_loop_held_seconds_count", label))
    for name, value in after.items():
        if name.startswith("tandem_loop_held_seconds_bucket") and label in name:
            bound = float(name.partition('le="')[2].partition('"')[0])
            upto = value - before.get(name, 0.0)
            if upto > below:
                longest = bound
            below = max(below, upto)
            if bound == HELD_MAX_S:
                beyond = looks - round(upto)
    return longest, beyond, looks


async def figures(port: int) -> MetricSamples:
    return parse_metrics(await scrape("127.0.0.1", port))


# ---- many streams ----


async def streams(count: int, steps_per_s: float, window_s: float) -> None:
    """Print how long the loop was held while `count` streams got a token in each step."""
    router = EdgeRouter(steps_per_s)
    try:
        body = {"model": "simulated", "messages": [{"role": "user", "content": "a"}], "stream": True}
        asked = post("/v1/chat/completions", {**body, "max_tokens": 100_000})
        reading = [asyncio.create_task(_drain(*await _ask(router.port, asked))) for _ in range(count)]
        await asyncio.sleep(_SETTLE_S)
        before = await figures(router.probes)
        await asyncio.sleep(window_s)
        after = await figures(router.probes)
        running = round(total(after, "tandem_requests_running"))
        print(f"{running} streams, {steps_per_s:g} steps/s, {window_s:g} s, router {router.rss_mb():.0f} MB")
        for clock in _KINDS:
            longest, beyond, looks = held(before, after, clock)
            print(f"  held by {clock}: at most {longest * 1e3:g} ms; {beyond} of {looks} looks beyond 20 ms")
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    finally:
        router.stop()


async def _ask(port: int, asked: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(asked)
    return reader, writer


async def _drain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await reader.read(1 << 16):
            pass
    finally:
        writer.close()


# ---- silent connections ----


async def silent(count: int, window_s: float) -> None:
    """Print how soon `/health` was answered while `count` connections were held open in silence."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    router = EdgeRouter(1.0)
    try:
        others = BenchProcess(["benchmarks.edge", "keep", "--port", str(router.port), "--count", str(count)], None)
        took: dict[str, list[float]] = {"probes": [], "public": []}
        refused = 0
        until = time.monotonic() + window_s
        while time.monotonic() < until:
            for name, port in (("probes", router.probes), ("public", router.port)):
                began = time.monotonic()
                status = await _health(port)
                took[name].append(time.monotonic() - began)
                assert status == 200 or name == "public", status
                refused += status != 200
            await asyncio.sleep(_PROBE_EVERY_S)
        after = await figures(router.probes)
        for name, times in took.items():
            print(f"{count} silent: {name} {len(times)} asked, longest {max(times) * 1e3:.0f} ms")
        print(f"  public port: {refused} refused by name; router {router.rss_mb():.0f} MB", end="; ")
        print(f"turned away {total(after, 'tandem_connections_refused_total'):.0f}")
        others.stop()
    finally:
        router.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def keep(port: int, count: int) -> None:
    """So many connections in silence, until killed; says when all have been tried."""
    kept = [asyncio.create_task(_keep(port)) for _ in range(count)]
    await asyncio.sleep(0)
    print("begun", flush=True)
    await asyncio.gather(*kept)


async def _keep(port: int) -> None:
    """A connection in silence, and the next one when it is closed."""
    while True:
        try:
            await _drain(*await asyncio.open_connection("127.0.0.1", port))
        except OSError:
            await asyncio.sleep(_PROBE_EVERY_S)


async def _health(port: int) -> int:
    asked = b"GET /health HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n"
    reader, writer = await _ask(port, asked)
    try:
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()


# ---- bodies ----


def bodies() -> dict[str, tuple[str, bytes]]:
    """Path and body by what they are; all under the bound of 8 MiB."""
    chat, complete = "/v1/chat/completions", "/v1/completions"
    turn = {"role": "user", "content": "a"}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    arguments = json.dumps({"a": [1] * 1_950_000})
    long_call = {**call, "function": {"name": "f", "arguments": arguments}}
    keys: dict[str, Any] = {f"k{number}": "" for number in range(550_000)}
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "220,000 messages": (chat, {"messages": [turn] * 220_000}),
        "70,000 turns with a tool call": (chat, {"messages": [called] * 70_000}),
        "2.6 million ids": (complete, {"prompt": [1] * 2_600_000}),
        "metadata of 550,000 entries": (chat, {"messages": [turn], "metadata": keys}),
        "550,000 unknown keys": (chat, {"messages": [turn], **keys}),
        "127 prompts of 20,000 ids": (complete, {"prompt": [[1] * 20_000] * 127}),
        "a tool call with 5.9 MB": (chat, {"messages": [turn, {**called, "tool_calls": [long_call]}]}),
        "7.8 MB of text": (chat, {"messages": [{"role": "user", "content": "word " * 1_560_000}]}),
    }
    packed = {name: (path, {"model": "simulated", **body}) for name, (path, body) in found.items()}
    return {name: (path, json.dumps(body, separators=(",", ":")).encode()) for name, (path, body) in packed.items()}


@dataclass
class StreamGaps:
    """Times between events of streams, while `on`."""

    on: bool = False
    seconds: list[float] = field(default_factory=list)

    def take(self) -> list[float]:
        """Those so far, longest last."""
        found, self.seconds = sorted(self.seconds), []
        return found

    async def read(self, port: int, asked: bytes) -> None:
        """Streams one after the other until cancelled."""
        while True:
            reader, writer = await _ask(port, asked)
            last = None
            try:
                while data := await reader.read(1 << 16):
                    now = time.monotonic()
                    if last is not None and self.on:
                        self.seconds.append(now - last)
                    last = now
                    if data.endswith(b"0\r\n\r\n"):
                        break
            finally:
                writer.close()


async def send_bodies(live: LivePlatform, window_s: float) -> None:
    """Print the longest gap of four streams for each body, one and eight at once. Bodies come from a process of their
    own, so that making them does not count."""
    ask = {"model": live.model, "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 4000}
    asked = post("/v1/chat/completions", {**ask, "ignore_eos": True})
    gaps = StreamGaps()
    reading = [asyncio.create_task(gaps.read(live.port, asked)) for _ in range(4)]
    await asyncio.sleep(_SETTLE_S)
    gaps.on = True
    await asyncio.sleep(window_s)
    idle = gaps.take()
    p999 = idle[int(len(idle) * 0.999)]
    print(f"idle: p50 {statistics.median(idle) * 1e3:.0f}, p99.9 {p999 * 1e3:.0f}, longest {idle[-1] * 1e3:.0f} ms")
    router = psutil.Process(live.pid(live.router))
    peak = router.memory_info().rss
    before = parse_metrics(await scrape(*_address(live)))
    sender = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.edge", "send", "--port", str(live.port), "--model", live.model),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert sender.stdin is not None
    assert sender.stdout is not None
    try:
        names = json.loads(await sender.stdout.readline())
        for name in names:
            row = []
            for at_once in (1, 8):
                gaps.take()
                sender.stdin.write(f"{at_once} {name}\n".encode())
                line = asyncio.create_task(sender.stdout.readline())
                while not line.done():
                    peak = max(peak, router.memory_info().rss)
                    await asyncio.wait([line], timeout=0.02)
                await asyncio.sleep(0.3)
                row.append(f"{gaps.take()[-1] * 1e3:.0f} ms ({line.result().decode().strip()})")
            print(f"  {name}: {', 8 at once '.join(row)}", flush=True)
    finally:
        sender.kill()
        await sender.wait()
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    after = parse_metrics(await scrape(*_address(live)))
    for clock in _KINDS:
        longest, beyond, looks = held(before, after, clock)
        print(f"  held by {clock}: at most {longest * 1e3:g} ms; {beyond} of {looks} looks beyond 20 ms")
    print(f"  router: peak {peak / 1e6:.0f} MB, now {router.memory_info().rss / 1e6:.0f} MB")


def _address(live: LivePlatform) -> tuple[str, int]:
    host, _, port = live.router.metrics.rpartition(":")
    return host, int(port)


def bodies_of(model: str) -> dict[str, bytes]:
    """Whole requests by name."""
    found = {}
    for name, (path, body) in bodies().items():
        content = body.replace(b'"model":"simulated"', b'"model":"%b"' % model.encode(), 1)
        head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(content)}\r\nconnection: close\r\n\r\n"
        found[name] = head.encode() + content
    return found


async def send(port: int, model: str) -> None:
    """Lines `COUNT NAME` on standard input: send that body so often at once, and tell the statuses."""
    requests = bodies_of(model)
    print(json.dumps(list(requests)), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        count, _, name = line.strip().partition(" ")
        began = time.monotonic()
        statuses = await asyncio.gather(*[_status(port, requests[name]) for _ in range(int(count))])
        told = ", ".join(sorted({str(status) for status in statuses}))
        print(f"{told} in {time.monotonic() - began:.1f} s", flush=True)


async def _status(port: int, request: bytes) -> int:
    reader, writer = await _ask(port, request)
    try:
        async with asyncio.timeout(60.0):
            return int((await reader.readline()).split()[1])
    finally:
        writer.close()


def main(arguments: Sequence[str]) -> int:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("streams", "silent", "bodies", "send", "keep"))
    parser.add_argument("--count", type=int, help="streams (4,500) or connections (10,000)")
    parser.add_argument("--steps-per-s", type=float, default=1.0)
    parser.add_argument("--window-s", type=float, default=20.0)
    parser.add_argument("--port", type=int, default=0, help="of `send`, which `bodies` starts")
    parser.add_argument("--model", default="simulated")
    given = parser.parse_args(arguments)
    match given.what:
        case "streams":
            asyncio.run(streams(given.count or 4500, given.steps_per_s, given.window_s))
        case "silent":
            asyncio.run(silent(given.count or 10_000, given.window_s))
        case "keep":
            asyncio.run(keep(given.port, given.count))
        case "send":
            asyncio.run(send(given.port, given.model))
        case _:
            run_platform(_FLAGS, lambda live: send_bodies(live, given.window_s))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
