"""The router's own cost: CPU per streamed token, CPU per request, memory.

Processes, each pinned where there are two cores: the router alone on one; clients and scripted workers (which
speak the real link) on the other. A bare loop that sends the same bytes to as many sockets at the same pace,
and a loop that only tokenizes the same texts, take turns with the router on its core. CPU is the kernel's account of
all threads (`/proc/PID/task/*/schedstat`). While streaming the router's idle CPU is subtracted and stated; the bare
loop counts whole, as its waking up is part of the work.
"""

import argparse
import atexit
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

from benchmarks.rounds import ROUNDS, Check, median_ratio, verdict
from benchmarks.router_clients import ConnectionClients

STREAMS, STEPS_PER_S = 64, 50.0
TOKEN_LIMIT, REQUEST_LIMIT, RSS_LIMIT_MB = 1.6, 3.0, 150.0
CHARACTERS, REQUESTS, CONNECTIONS = 512, 1000, 64
_SETTLE_S = 1.0


@dataclass(frozen=True)
class Cores:
    """Where things run; None leaves it to the system."""

    measured: frozenset[int] | None
    others: frozenset[int] | None

    @classmethod
    def of_this_machine(cls) -> "Cores":
        cores = sorted(os.sched_getaffinity(0))
        return cls(frozenset(cores[:1]), frozenset(cores[1:])) if len(cores) > 1 else cls(None, None)


class BenchProcess:
    """A process of the benchmark, which does not outlive it; `line` is the first thing it said."""

    def __init__(self, arguments: Sequence[str], core: frozenset[int] | None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self.process.kill)
        if core is not None:
            os.sched_setaffinity(self.process.pid, core)
        self.line = self.next_line()

    def next_line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended with {self.process.wait()}")
        return line

    def ask(self, line: str) -> str:
        """Send a line and give the one that comes back."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.next_line()

    def cpu_s(self) -> float:
        """CPU seconds of all threads so far."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def rss_mb(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Router(BenchProcess):
    """A real router process over scripted workers."""

    def __init__(self, cores: Cores, kind: str, model: str, flags: Sequence[str]) -> None:
        served = ["--kind", kind, "--model", model, "--steps-per-s", str(STEPS_PER_S)]
        self.workers = BenchProcess(["benchmarks.router_workers", *served], cores.others)
        addresses = ",".join(json.loads(self.workers.line))
        common = ["--port", "0", "--events", "--log.level", "warning", "--workers", addresses]
        super().__init__(["router", *common, *flags], cores.measured)
        self.port = 0
        event = json.loads(self.line)
        while event["event"] != "ready":
            if event["event"] == "listening":
                self.port = int(event["address"].rpartition(":")[2])
            event = json.loads(self.next_line())
        time.sleep(_SETTLE_S)

    def stop(self) -> None:
        super().stop()
        self.workers.stop()


def post(path: str, body: dict[str, object]) -> bytes:
    """An HTTP/1.1 request."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
    return head.encode() + b"\r\n\r\n" + content


# ---- tokens ----


@dataclass(frozen=True)
class Flow:
    """What one window of streaming cost, per token."""

    cpu_us: float
    bytes_per_token: float


def flow(
    child: BenchProcess, port: int, clients: ConnectionClients, window_s: float, idle: float, size: int | None
) -> Flow:
    """Stream to all clients for a while. `size` is the bytes of a token where no events can be counted."""
    body = {
        "model": "simulated",
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "stream": True,
        "max_tokens": 100_000,
    }
    clients.open(port, STREAMS, post("/v1/chat/completions", body))
    time.sleep(_SETTLE_S)
    cpu, (received, events), began = child.cpu_s(), clients.counts(), time.monotonic()
    time.sleep(window_s)
    spent, lasted = child.cpu_s() - cpu, time.monotonic() - began
    received, events = (now - before for now, before in zip(clients.counts(), (received, events), strict=True))
    clients.close()
    time.sleep(_SETTLE_S / 2)
    tokens = events if size is None else received / size
    return Flow((spent - idle * lasted) / tokens * 1e6, received / tokens)


def idle_share(child: BenchProcess, window_s: float) -> float:
    """CPU seconds per second while nobody asks for anything."""
    cpu = child.cpu_s()
    time.sleep(window_s)
    return (child.cpu_s() - cpu) / window_s


def measure_tokens(
    cores: Cores, clients: ConnectionClients, rounds: int, window_s: float
) -> tuple[list[Check], float]:
    """Router against the bare loop; also the router's memory in MB."""
    router = Router(cores, "paced", "simulated", ["--engine", "simulated"])
    idle = idle_share(router, window_s)
    size = round(flow(router, router.port, clients, window_s, idle, None).bytes_per_token)
    bare = BenchProcess(["benchmarks.router_bare", "streams", "--bytes", str(size)], cores.measured)
    port = int(bare.line)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(flow(router, router.port, clients, window_s, idle, None).cpu_us)
        theirs.append(flow(bare, port, clients, window_s, 0.0, size).cpu_us)
    memory = router.rss_mb()
    router.stop()
    bare.stop()
    print(
        f"{STREAMS} streams, 2 workers, {STEPS_PER_S:g} tokens/s each, {size} bytes per token: "
        f"router {statistics.median(ours):.2f} us per token (idle {idle * 100:.2f} % of a core subtracted), "
        f"bare loop {statistics.median(theirs):.2f} us"
    )
    return [
        Check("router CPU per streamed token / bare loop", median_ratio(ours, theirs), TOKEN_LIMIT, False)
    ], memory


# ---- requests ----


def texts(count: int, seed: int) -> list[str]:
    """Texts of `CHARACTERS` characters: English prose, which is what Python's own documentation is. Different ones
    for every seed, so that nothing is known of them from before."""
    draw = random.Random(seed)
    prose = " ".join(" ".join(topics[topic] for topic in sorted(topics)).split())
    starts = (draw.randrange(len(prose) - CHARACTERS) for _ in range(count))
    return [prose[start : start + CHARACTERS] for start in starts]


def measure_requests(cores: Cores, clients: ConnectionClients, rounds: int) -> tuple[list[Check], float]:
    """Chat requests through P and D against tokenizing alone; also the router's memory in MB."""
    flags = ["--model", "demo", "--core.placement.prefer", "disaggregated"]
    router = Router(cores, "instant", "demo", flags)
    alone = BenchProcess(["benchmarks.router_bare", "tokenize"], cores.measured)
    ours, theirs = [], []
    for number in range(rounds + 1):
        prompts = texts(REQUESTS, number)
        asked = [_chat(prompt) for prompt in prompts]
        cpu = router.cpu_s()
        clients.ask(router.port, asked, CONNECTIONS)
        ours.append((router.cpu_s() - cpu) / REQUESTS * 1e6)
        theirs.append(float(alone.ask(json.dumps(prompts))) * 1e6)
    # The first round warms up.
    del ours[0], theirs[0]
    memory = router.rss_mb()
    router.stop()
    alone.stop()
    print(
        f"chat requests of {CHARACTERS} characters on {CONNECTIONS} connections, to prefill and decode, two tokens "
        f"back: router {statistics.median(ours):.0f} us per request, "
        f"tokenizing alone {statistics.median(theirs):.0f} us"
    )
    check = Check("router CPU per request / tokenizing alone", median_ratio(ours, theirs), REQUEST_LIMIT, False)
    return [check], memory


def _chat(prompt: str) -> bytes:
    body = {"model": "demo", "messages": [{"role": "user", "content": prompt}], "max_tokens": 2}
    return post("/v1/chat/completions", body)


def main() -> int:
    """Measure both and give the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--window-s", type=float, default=3.0)
    arguments = parser.parse_args()
    cores = Cores.of_this_machine()
    clients = ConnectionClients(cores.others)
    try:
        rounds = arguments.rounds
        checks, after_streams = measure_tokens(cores, clients, rounds, arguments.window_s)
        more, after_requests = measure_requests(cores, clients, rounds)
    finally:
        clients.stop()
    memory = Check("router memory", max(after_streams, after_requests), RSS_LIMIT_MB, False, "MB")
    return verdict([*checks, *more, memory], "every limit of the router")


if __name__ == "__main__":
    sys.exit(main())
