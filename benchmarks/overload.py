"""Twenty times more than a platform can do, for a minute: who is refused, how fast, what it costs, and what is left.

A small platform of simulated workers (`tandem up`, processes of their own) is measured at its capacity with a
closed loop, then offered 20 times that rate on a schedule that waits for nobody. Every request must end: answered,
or refused at once and typed. The router's memory must stay bounded, answers must go on at the rate of capacity, and
when it is over latency and blocks must be back where they were. Exits non-zero when a limit is not met.
"""

import argparse
import asyncio
import gc
import json
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import psutil

from benchmarks.rounds import Check, percentile, verdict
from benchmarks.samples import Curve, plot, rss_mb
from tandem.apps.chaos.live import LivePlatform, run_platform, total
from tandem.apps.client.answer import AnswerFailed, RequestRefused
from tandem.apps.client.http import Client
from tandem.apps.client.stream import whole_answer
from tandem.apps.client.wire import BadResponse

TIMES: Final = 20.0
SECONDS: Final = 60.0
REFUSAL_LIMIT_S: Final = 0.1
GROWTH_LIMIT_MB: Final = 64.0
SLOPE_LIMIT_MB: Final = 10.0
RECOVERY_LIMIT_S: Final = 5.0
GOODPUT_LIMIT: Final = 0.8
_TYPED: Final = frozenset(("queue_full", "over_quota", "deadline_exceeded", "no_workers", "draining", "worker_lost"))
_REFUSED: Final = frozenset(("queue_full", "over_quota"))
_PATIENCE_S: Final = 60.0
_CAPACITY_S: Final = 10.0
_IN_FLIGHT: Final = 12
_LOOK_S: Final = 0.25
_OUTPUT: Final = 16
_TEXT: Final = "The quick brown fox looks for the lantern that burns in the harbor at night. " * 7

SETTINGS: Final = {
    "TANDEM_SIMULATED__BASE_S": "0.02",
    "TANDEM_CORE__PLACEMENT__SEQUENCES_PER_WORKER_MAX": "8",
    "TANDEM_CORE__ADMISSION__QUEUED_MAX": "32",
    "TANDEM_FRONT__SLO__TTFT_S": "10",
}


@dataclass(frozen=True)
class RequestOutcome:
    """One request as its client saw it. `kind` is `answered`, an error code, or what went wrong instead."""

    due_s: float
    sent_s: float
    seconds: float
    kind: str


@dataclass
class OverloadResult:
    """All figures of a run; rates per second, memory in MB."""

    capacity: float = 0.0
    offered: float = 0.0
    planned: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)
    refusal_p50_s: float = 0.0
    refusal_p99_s: float = 0.0
    answered_p99_s: float = 0.0
    goodput: float = 0.0
    late_p99_s: float = 0.0
    """How far the generator was behind its schedule."""
    retry_after: int = 0
    """Seconds a refused client was told to wait."""
    calm_s: float = 0.0
    """A request's time on the idle platform."""
    recovered_s: float = 0.0
    freed_s: float = 0.0
    rss_before_mb: float = 0.0
    rss_max_mb: float = 0.0
    rss_slope_mb_per_min: float = 0.0
    memory: Curve = field(default_factory=Curve)
    outcomes: list[RequestOutcome] = field(default_factory=list)


class OverloadClients:
    """The clients of one run."""

    def __init__(self, live: LivePlatform, client: Client) -> None:
        self.live = live
        self._client = client
        self._random = random.Random(3)
        self._loop = asyncio.get_running_loop()
        self.began = self._loop.time()

    def now(self) -> float:
        return self._loop.time() - self.began

    def body(self) -> bytes:
        """A request of its own: no two share a prefix that is worth anything."""
        prompt = f"{self._random.randrange(10**9)} {_TEXT}"
        asked = {"model": self.live.model, "prompt": prompt, "max_tokens": _OUTPUT, "ignore_eos": True}
        return json.dumps(asked).encode()

    async def one(self, due_s: float) -> RequestOutcome:
        """A request from its sending to its end, whatever that is."""
        sent_s = self.now()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await whole_answer(self._client, "/v1/completions", self.body())
            kind = "answered"
        except AnswerFailed as failed:
            kind = failed.kind
        except TimeoutError:
            kind = "no end"
        except (OSError, BadResponse) as error:
            kind = f"broken: {type(error).__name__}"
        return RequestOutcome(due_s, sent_s, self.now() - sent_s, kind)

    async def closed(self, in_flight: int, seconds: float) -> float:
        """Answers per second with so many requests in flight at any time."""
        end, answered = self.now() + seconds, 0
        begin = self.now()

        async def client() -> None:
            nonlocal answered
            while self.now() < end:
                ended = await self.one(self.now())
                answered += ended.kind == "answered" and self.now() <= end

        await asyncio.gather(*(client() for _ in range(in_flight)))
        return answered / (end - begin)

    async def opened(self, rate: float, seconds: float) -> list[RequestOutcome]:
        """Requests on a schedule, each sent when it is due whatever became of the others."""
        begin = self.now()
        tasks: list[asyncio.Task[RequestOutcome]] = []
        for number in range(int(rate * seconds)):
            due_s = begin + number / rate
            if (wait_s := due_s - self.now()) > 0:
                await asyncio.sleep(wait_s)
            elif number % 20 == 0:
                await asyncio.sleep(0)
            tasks.append(asyncio.create_task(self.one(due_s)))
        return list(await asyncio.gather(*tasks))

    async def calm(self, count: int = 7) -> float:
        """The median time of requests that come one after the other."""
        return statistics.median([(await self.one(self.now())).seconds for _ in range(count)])


async def measure(live: LivePlatform, times: float, seconds: float) -> OverloadResult:
    """The whole course: calm, capacity, overload, recovery."""
    result = OverloadResult()
    router = psutil.Process(live.pid(live.router))
    async with aclosing(Client(live.platform.target)) as client:
        load = OverloadClients(live, client)
        result.calm_s = await load.calm()
        result.capacity = await load.closed(_IN_FLIGHT, _CAPACITY_S)
        free = await _free(live)
        result.rss_before_mb = rss_mb(router)
        print(f"capacity {result.capacity:.1f} requests/s; offering {times * result.capacity:.0f}/s", flush=True)
        looking = asyncio.create_task(_look(lambda: rss_mb(router), result.memory, load.now))
        telling = asyncio.create_task(_told_to_wait(live, seconds / 2, load.body()))
        # A collection of this process's garbage would be taken for a pause of the router.
        gc.collect()
        gc.disable()
        rate, begin = times * result.capacity, load.now()
        result.outcomes = await load.opened(rate, seconds)
        over = load.now()
        result.freed_s, result.recovered_s = await _recover(live, load, free, result.calm_s, begin + seconds)
        looking.cancel()
        result.retry_after = await telling
    _evaluate(result, rate, seconds, begin, over)
    return result


async def _look(figure: Callable[[], float], curve: Curve, now: Callable[[], float]) -> None:
    while True:
        curve.add(now(), figure())
        await asyncio.sleep(_LOOK_S)


async def _free(live: LivePlatform) -> float:
    """Free blocks of all workers once nothing changes any more."""
    last = -1.0
    for _ in range(100):
        await asyncio.sleep(0.1)
        pages = [await live.figures(worker) for worker in live.workers]
        now = sum(total(page, "tandem_kv_blocks", '"free"') for page in pages)
        if now == last:
            return now
        last = now
    raise RuntimeError("the platform does not come to rest")


async def _told_to_wait(live: LivePlatform, after_s: float, body: bytes) -> int:
    """The `Retry-After` of refusals in mid-overload; 0 when one carries none."""
    await asyncio.sleep(after_s)
    async with aclosing(Client(live.platform.target)) as client:
        for _ in range(50):
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await whole_answer(client, "/v1/completions", body)
            except RequestRefused as refused:
                return refused.retry_after_s or 0
    return 0


async def _recover(
    live: LivePlatform, load: OverloadClients, free: float, calm_s: float, over: float
) -> tuple[float, float]:
    """Seconds after the last offer until all blocks were free, and until a request took as long as before."""
    freed_s = recovered_s = _PATIENCE_S
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            while (await load.one(load.now())).seconds > 1.5 * calm_s + 0.05:
                pass
            recovered_s = load.now() - over
            while await _free(live) < free:
                pass
            freed_s = load.now() - over
    return freed_s, recovered_s


def _evaluate(result: OverloadResult, rate: float, seconds: float, begin: float, over: float) -> None:
    ended = result.outcomes
    result.planned = rate
    result.offered = len(ended) / max(seconds, ended[-1].sent_s - begin)
    result.kinds = dict(Counter(each.kind for each in ended))
    refusals = [each.seconds for each in ended if each.kind in _REFUSED] or [_PATIENCE_S]
    answers = [each.seconds for each in ended if each.kind == "answered"] or [_PATIENCE_S]
    result.refusal_p50_s, result.refusal_p99_s = statistics.median(refusals), percentile(refusals, 0.99)
    result.answered_p99_s = percentile(answers, 0.99)
    result.late_p99_s = percentile([each.sent_s - each.due_s for each in ended], 0.99)
    result.goodput = result.kinds.get("answered", 0) / (over - begin)
    under_load = result.memory.since(begin)
    result.rss_max_mb = max(under_load.values)
    result.rss_slope_mb_per_min = 60.0 * result.memory.since(begin + seconds / 3).slope


def checks_of(result: OverloadResult) -> list[Check]:
    """What must hold."""
    untyped = sum(count for kind, count in result.kinds.items() if kind != "answered" and kind not in _TYPED)
    growth = result.rss_max_mb - result.rss_before_mb
    return [
        Check("rate offered / rate planned", result.offered / result.planned, 0.95, True),
        Check("requests without an end, or with one that is not typed", untyped, 0, False),
        Check("refusal, p99", result.refusal_p99_s * 1e3, REFUSAL_LIMIT_S * 1e3, False, "ms"),
        Check("Retry-After of a refusal", result.retry_after, 1, True, "s"),
        Check("answers under overload / capacity", result.goodput / result.capacity, GOODPUT_LIMIT, True),
        Check("router memory above idle", growth, GROWTH_LIMIT_MB, False, "MB"),
        Check("router memory per minute of overload", result.rss_slope_mb_per_min, SLOPE_LIMIT_MB, False, "MB"),
        Check("latency as before after", result.recovered_s, RECOVERY_LIMIT_S, False, "s"),
        Check("all blocks free after", result.freed_s, RECOVERY_LIMIT_S, False, "s"),
    ]


def say(result: OverloadResult) -> None:
    """The figures in words."""
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(result.kinds.items()))
    print(
        f"offered {result.offered:.0f}/s ({result.offered / result.capacity:.1f} times capacity), sent late by at "
        f"most {result.late_p99_s * 1e3:.0f} ms (p99): {counted}\n"
        f"refusals p50 {result.refusal_p50_s * 1e3:.1f} ms, p99 {result.refusal_p99_s * 1e3:.1f} ms; answers "
        f"{result.goodput:.1f}/s, p99 {result.answered_p99_s:.2f} s; idle request {result.calm_s * 1e3:.0f} ms\n"
        f"router {result.rss_before_mb:.0f} MB before, at most {result.rss_max_mb:.0f} MB under overload, "
        f"{result.rss_slope_mb_per_min:+.2f} MB per minute in its last two thirds\n"
    )


def _per_second(result: OverloadResult, wanted: Callable[[str], bool]) -> Curve:
    counts = Counter(int(each.sent_s) for each in result.outcomes if wanted(each.kind))
    seconds = range(int(result.outcomes[0].sent_s), int(result.outcomes[-1].sent_s) + 1)
    return Curve([float(second) for second in seconds], [float(counts[second]) for second in seconds])


def draw(path: Path, result: OverloadResult) -> None:
    """Offered, answered and refused requests per second, latencies and memory over time."""
    rates = {
        "offered": _per_second(result, lambda _kind: True),
        "answered": _per_second(result, lambda kind: kind == "answered"),
        "refused": _per_second(result, lambda kind: kind in _REFUSED),
    }
    refused = [each for each in result.outcomes if each.kind in _REFUSED]
    times = Curve([each.sent_s for each in refused], [each.seconds * 1e3 for each in refused])
    panels = [
        ("requests/s", rates),
        ("refusal (ms)", {"refusal": times}),
        ("memory (MB)", {"router": result.memory}),
    ]
    plot(path, f"{result.offered / result.capacity:.0f} times capacity", panels)


def main() -> int:
    """Measure and give the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=float, default=TIMES, help="of the capacity to offer (default 20)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for how long (default 60)")
    parser.add_argument("--plot", type=Path, help="draw rates, refusals and memory over time into this file")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    flags = ["--engine", "simulated", "--prefill", "1", "--decode", "1"]
    result = run_platform(flags, partial(measure, times=arguments.times, seconds=arguments.seconds), SETTINGS)
    say(result)
    if arguments.plot is not None:
        draw(arguments.plot, result)
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.encode(asdict(result)))
    return verdict(checks_of(result), "overload is refused at once, and leaves nothing behind")


if __name__ == "__main__":
    sys.exit(main())
