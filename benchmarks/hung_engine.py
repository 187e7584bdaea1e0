"""How soon a worker whose engine process is stopped gets nothing new, and what clients see of it.

`tandem up --engine torch --prefill 1 --decode 2` with the demo model, real processes; new prompts come all the time.
Round after round the engine process of a worker is stopped and continued. Told are, from the moment at which it
stops, when the router's page of workers says that it is out, the last attempt that was begun there, the longest that
any request took, and the longest gap between two tokens of streams that run beside; from the moment at which it goes
on, when the page says that it is ready; and how many answers differ from those of the same prompts before. Without
arguments both roles take turns: `python -m benchmarks.hung_engine`.
"""

import argparse
import asyncio
import statistics
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import psutil

from benchmarks.rounds import table
from tandem.apps.bench.completion import Style, complete, request_body
from tandem.apps.chaos.live import LivePlatform, run_platform
from tandem.apps.cli.router_client import send_request
from tandem.apps.client.http import Client, Target

_VICTIMS: Final = ("decode-1", "prefill-0")
_PROMPTS: Final = 16
_TOKENS: Final = 300
_ANSWER: Final = 16
_STREAMS: Final = 4
_STREAM_TOKENS: Final = 600
_PATIENCE_S: Final = 120.0
_LOOK_S: Final = 0.05
_WARM_S: Final = 10.0
_BEFORE_S: Final = 5.0


@dataclass(frozen=True)
class TimedRequest:
    """One request: when it was sent and answered, and when (wall clock) attempts began on which workers."""

    prompt: int
    sent: float
    answered: float
    text: str
    attempts: tuple[tuple[float, tuple[str, ...]], ...]


@dataclass
class StopRound:
    """What one stop came to. Times are of the wall clock."""

    victim: str
    stopped: float
    continued: float = 0.0
    out_s: float = 0.0
    back_s: float = 0.0
    asked: list[TimedRequest] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    """The longest gap of each stream that ran when it stopped, or began before it went on."""

    def _begun(self) -> list[float]:
        return [at for each in self.asked for at, workers in each.attempts if self.victim in workers]

    def last_s(self) -> float:
        """From the stop to the last attempt there."""
        return max((at - self.stopped for at in self._begun() if self.stopped <= at < self.continued), default=0.0)

    def slowest_s(self) -> float:
        """Of the requests that were under way while it was stopped."""
        own = [each for each in self.asked if each.answered >= self.stopped and each.sent < self.continued]
        return max(each.answered - each.sent for each in own)

    def gap_s(self) -> float:
        return max(self.gaps_s, default=0.0)


class PacedClients:
    """Ask for new prompts at an even pace."""

    def __init__(self, live: LivePlatform, every_s: float) -> None:
        self._target = Target(live.host, live.port, False, "")
        self._every_s = every_s
        self._numbers = 0
        self._running: set[asyncio.Task[None]] = set()
        self.asked: list[TimedRequest] = []
        self.streams: list[tuple[float, float, float]] = []
        """Of each stream, when it was asked for and ended, and its longest gap."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ask())
            for number in range(_STREAMS):
                group.create_task(self._stream(number))

    async def _stream(self, number: int) -> None:
        prompt = [7 + (41 * number + 13 * at) % 400 for at in range(_TOKENS)]
        body = request_body(Style("demo"), prompt, _STREAM_TOKENS)
        async with aclosing(Client(self._target)) as client:
            while True:
                sent = time.time()
                outcome = await complete(client, Style("demo"), body, 0.0, 0.0, _PATIENCE_S)
                if not outcome.ok:
                    raise RuntimeError(f"stream {number}: {outcome.error}")
                self.streams.append((sent, time.time(), max(outcome.gaps_s)))

    async def _ask(self) -> None:
        while True:
            task = asyncio.create_task(self._one(self._numbers))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            self._numbers += 1
            await asyncio.sleep(self._every_s)

    async def until(self, worker: str, *, ready: bool) -> float:
        """When the router's page of workers says so of one."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                _, page = await send_request(self._target, "GET", "/v1/workers")
                (state,) = [each["state"] for each in msgspec.json.decode(page)["data"] if each["id"] == worker]
                if (state == "ready") == ready:
                    return time.time()
                await asyncio.sleep(_LOOK_S)

    async def rest(self) -> None:
        """Until every request has been answered. Raises what one ended with."""
        await asyncio.gather(*self._running)

    async def _one(self, number: int) -> None:
        prompt = number % _PROMPTS
        body = {
            "model": "demo",
            "prompt": [5 + (37 * prompt + 11 * at) % 400 for at in range(_TOKENS)],
            "max_tokens": _ANSWER,
            "temperature": 0.0,
            "ignore_eos": True,
            # Nothing of it is in any cache.
            "cache_salt": str(number),
        }
        sent, page = time.time(), msgspec.json.encode(body)
        status, answer = await send_request(self._target, "POST", "/v1/completions", page, timeout_s=_PATIENCE_S)
        answered = time.time()
        if status != 200:
            raise RuntimeError(f"request {number}: {status} {answer!r}")
        found = msgspec.json.decode(answer)
        attempts = await self._attempts(found["id"])
        self.asked.append(TimedRequest(prompt, sent, answered, found["choices"][0]["text"], attempts))

    async def _attempts(self, request_id: str) -> tuple[tuple[float, tuple[str, ...]], ...]:
        _, page = await send_request(self._target, "GET", f"/v1/requests/{request_id}")
        spans: list[dict[str, Any]] = msgspec.json.decode(page)["spans"]
        workers = ("prefill", "decode")
        return tuple(
            (each["start_s"], tuple(each["attributes"][role] for role in workers if each["attributes"].get(role)))
            for each in spans
            if each["name"] == "attempt"
        )


def engine_process(live: LivePlatform, name: str) -> psutil.Process:
    """The process in which a worker's engine computes."""
    (member,) = [each for each in live.workers if each.name == name]
    (found,) = [
        child
        for child in psutil.Process(live.pid(member)).children()
        if "tandem.engine.torch.child" in child.cmdline()
    ]
    return found


async def measure(live: LivePlatform, options: argparse.Namespace) -> tuple[list[StopRound], int]:
    """Every round, and how many answers differ from the first of the same prompt."""
    clients = PacedClients(live, options.every)
    running = asyncio.create_task(clients.run())
    rounds = list[StopRound]()
    await asyncio.sleep(_WARM_S)
    for number in range(options.rounds):
        for victim in options.victims:
            # Not always at the same moment between two looks.
            await asyncio.sleep(_BEFORE_S + 0.1 * number)
            process = engine_process(live, victim)
            each = StopRound(victim, time.time())
            rounds.append(each)
            process.suspend()
            each.out_s = await clients.until(victim, ready=False) - each.stopped
            await asyncio.sleep(max(0.0, each.stopped + options.stopped - time.time()))
            each.continued = time.time()
            process.resume()
            each.back_s = await clients.until(victim, ready=True) - each.continued
    await asyncio.sleep(_BEFORE_S)
    running.cancel()
    await asyncio.wait((running,))
    await clients.rest()
    for each, after in zip(rounds, [*rounds[1:], None], strict=True):
        until = after.stopped if after is not None else float("inf")
        ran = [gap_s for sent, ended, gap_s in clients.streams if sent < each.continued and ended > each.stopped]
        each.gaps_s = ran
        each.asked = [one for one in clients.asked if one.answered >= each.stopped and one.sent < until]
    first = dict[int, str]()
    for one in sorted(clients.asked, key=lambda one: one.sent):
        first.setdefault(one.prompt, one.text)
    return rounds, sum(one.text != first[one.prompt] for one in clients.asked)


def report(rounds: list[StopRound], differ: int) -> str:
    """Medians and maxima by victim."""
    rows = []
    for victim in dict.fromkeys(each.victim for each in rounds):
        own = [each for each in rounds if each.victim == victim]
        cells = [victim, str(len(own)), str(sum(len(each.asked) for each in own))]
        columns = [(each.out_s, each.last_s(), each.slowest_s(), each.gap_s(), each.back_s) for each in own]
        for values in zip(*columns, strict=True):
            cells.append(f"{statistics.median(values):.2f} ({max(values):.2f})")
        rows.append(cells)
    head = ["stopped", "rounds", "requests", "out, s", "last attempt, s", "slowest request, s", "gap, s", "ready, s"]
    return f"{table(head, rows)}\nmedian (max); {differ} answers differ"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hung_engine", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stopped", type=float, default=10.0, help="seconds for which an engine is stopped")
    parser.add_argument("--every", type=float, default=0.2, help="seconds between two requests")
    parser.add_argument("--victims", nargs="+", default=list(_VICTIMS))
    options = parser.parse_args()
    flags = ["--engine", "torch", "--prefill", "1", "--decode", "2"]
    exact = {"TANDEM_TORCH__DTYPE": "float32"}
    print(report(*run_platform(flags, lambda live: measure(live, options), exact)))


if __name__ == "__main__":
    main()
