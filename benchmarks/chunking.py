"""Chunked prefill beside running sequences: inter-token latency held, and at what cost in throughput.

A closed loop of clients: each sends its next request when the last one has ended. Of every ten prompts one is 30
times as long as the mean of the others. The engine's adaptive budget competes with fixed chunk sizes on the same
requests; all run over one loaded model, in turns. The inter-token target is a multiple of the decode step alone at
this batch: the physical floor, below which no chunking can go. Exits non-zero when a limit is not met.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.rounds import ROUNDS, Check, alternate, median_ratio, percentile, table, verdict
from tandem.core.kv import pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.local import LocalEngine
from tandem.engine.protocol import BlockMemory, EngineInfo, EngineRequest, StepReport
from tandem.engine.scheduler.plan import Runner, Step, StepResult
from tandem.engine.scheduler.stall_detection import ProcessSample
from tandem.engine.settings import SchedulerSettings
from tandem.engine.torch.build import build_runner
from tandem.engine.torch.settings import TorchSettings
from tandem.process.system import SystemClock

MEAN_PROMPT: Final = 80
LONG_FACTOR: Final = 30
TARGET_STEPS: Final = 4.0
"""The inter-token target, in decode steps."""
HELD: Final = 1.5
SHARE: Final = 0.9
CHUNKS: Final = (16, 64, 256, 512, 2048)
ADAPTIVE: Final = "adaptive"
DECODE_ALONE: Final = "decode alone"
_RUN_S: Final = 300.0


@dataclass(frozen=True)
class PromptRequest:
    """What one client asks for."""

    prompt: bytes
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class ContenderRound:
    """One contender's round: gaps between tokens and times to the first one, seconds; tokens per second."""

    itl: tuple[float, ...]
    ttft: tuple[float, ...]
    tokens_per_s: float


class Lent:
    """A loaded `Runner` lent to several engines that work in turns; only the owner closes it."""

    def __init__(self, runner: Runner, info: EngineInfo) -> None:
        self._runner = runner
        self._info = info

    @property
    def memory(self) -> BlockMemory:
        return self._runner.memory

    def watch(self, seen: Callable[[ProcessSample], None]) -> None:
        """Those who borrow it measure, and are not watched."""

    async def load(self) -> EngineInfo:
        return self._info

    async def execute(self, step: Step) -> StepResult:
        return await self._runner.execute(step)

    async def close(self) -> None:
        """The owner does it."""


@dataclass
class _Stream:
    request: PromptRequest
    submitted: float
    times: list[float] = field(default_factory=list)


class ClosedLoopClients:
    """A closed loop of `width` clients on one engine."""

    def __init__(self, engine: LocalEngine, width: int) -> None:
        self._engine = engine
        self._width = width
        self._numbers = 0
        self._live: dict[int, _Stream] = {}
        self._ended: list[_Stream] = []
        self._queue: list[PromptRequest] = []
        self._idle = asyncio.Event()

    def report(self, report: StepReport) -> None:
        """The engine's listener."""
        now = time.perf_counter()
        assert not report.failed, report.failed
        for emitted in report.emitted:
            self._live[emitted.work_id].times.append(now)
        for ended in report.ended:
            self._ended.append(self._live.pop(ended.work_id))
            self._next()
        if not self._live:
            self._idle.set()

    async def run(self, requests: Sequence[PromptRequest]) -> ContenderRound:
        """All requests, `width` at a time."""
        self._queue, self._ended = list(reversed(requests)), []
        self._idle.clear()
        began = time.perf_counter()
        for _ in range(self._width):
            self._next()
        await asyncio.wait_for(self._idle.wait(), _RUN_S)
        seconds = time.perf_counter() - began
        tokens = sum(request.prompt_tokens + request.output_tokens for request in requests)
        gaps = [late - soon for stream in self._ended for soon, late in zip(stream.times, stream.times[1:])]  # noqa: B905
        return ContenderRound(
            tuple(gaps), tuple(stream.times[0] - stream.submitted for stream in self._ended), tokens / seconds
        )

    def _next(self) -> None:
        if self._queue:
            request = self._queue.pop()
            self._numbers += 1
            self._live[self._numbers] = _Stream(request, time.perf_counter())
            self._engine.submit(_work(self._numbers, request))


def _work(number: int, request: PromptRequest) -> EngineRequest:
    return EngineRequest(
        work_id=number,
        mode="local",
        prompt=request.prompt,
        branches=(ChildRequest(sequence=0, seed=number),),
        sampling=Sampling(temperature=0.0),
        stopping=Stopping(max_tokens=request.output_tokens, ignore_eos=True),
        root=b"benchmark-chunks",
        deadline=time.monotonic() + _RUN_S,
    )


def mix(count: int, outputs: int, vocabulary: int, draw: random.Random) -> list[PromptRequest]:
    """`count` requests; one of every ten, at a drawn place, is `LONG_FACTOR` times the mean of the others."""
    requests = []
    for start in range(0, count, 10):
        long = draw.randrange(10)
        for index in range(min(10, count - start)):
            size = draw.randint(MEAN_PROMPT // 2, MEAN_PROMPT * 3 // 2)
            requests.append(_request(LONG_FACTOR * MEAN_PROMPT if index == long else size, outputs, vocabulary, draw))
    return requests


def _request(size: int, outputs: int, vocabulary: int, draw: random.Random) -> PromptRequest:
    tokens = [draw.randrange(3, vocabulary) for _ in range(size)]
    return PromptRequest(pack_tokens(tokens), size, outputs + draw.randint(-outputs // 4, outputs // 4))


def fixed(chunk: int, width: int) -> SchedulerSettings:
    """Always `chunk` prompt tokens beside running sequences: a target nothing meets leaves the floor."""
    return SchedulerSettings(
        max_batched_tokens=chunk + width, min_prefill_tokens=chunk, itl_target_s=1e-9, prefix_cache=False
    )


def adaptive(target_s: float, width: int) -> SchedulerSettings:
    """The engine's own choice, with the same largest step as the largest fixed chunk."""
    return SchedulerSettings(max_batched_tokens=max(CHUNKS) + width, itl_target_s=target_s, prefix_cache=False)


class ChunkingBench:
    """One loaded model and an engine per contender."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._runner = build_runner(
            TorchSettings(model=arguments.model, dtype=arguments.dtype, threads=arguments.threads)
        )
        self._engines: list[LocalEngine] = []
        self._running: list[asyncio.Task[None]] = []
        self._info: EngineInfo | None = None

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "open() has not returned yet"
        return self._info

    async def open(self) -> None:
        self._info = await self._runner.load()

    async def clients(self, settings: SchedulerSettings) -> ClosedLoopClients:
        """Clients of a new engine over the loaded model."""
        engine = LocalEngine(Lent(self._runner, self.info), settings, SystemClock(), epoch=1)
        await engine.start()
        clients = ClosedLoopClients(engine, self._arguments.width)
        self._engines.append(engine)
        self._running.append(asyncio.create_task(engine.run(clients.report)))
        return clients

    async def close(self) -> None:
        for engine in self._engines:
            await engine.stop()
        await asyncio.gather(*self._running)
        await self._runner.close()


async def measure(arguments: argparse.Namespace) -> tuple[float, dict[str, list[ContenderRound]]]:
    """The target in seconds, and every contender's rounds."""
    bench = ChunkingBench(arguments)
    await bench.open()
    try:
        width, draw = arguments.width, random.Random(arguments.seed)
        requests = mix(arguments.requests, arguments.outputs, bench.info.vocab_size, draw)
        mean = sum(request.prompt_tokens for request in requests) // len(requests)
        alone = [_request(mean, 2 * arguments.outputs, bench.info.vocab_size, draw) for _ in range(width)]
        floor = await bench.clients(fixed(max(CHUNKS), width))
        steps = [statistics.median((await floor.run(alone)).itl) for _ in range(3)]
        target_s = TARGET_STEPS * min(steps)
        contenders: dict[str, Callable[[], Awaitable[ContenderRound]]] = {DECODE_ALONE: _turn(floor, alone)}
        for name, settings in _contenders(target_s, width, arguments.chunks).items():
            contenders[name] = _turn(await bench.clients(settings), requests)
        return target_s, await alternate(contenders, arguments.rounds)
    finally:
        await bench.close()


def _contenders(target_s: float, width: int, chunks: Sequence[int]) -> dict[str, SchedulerSettings]:
    return {ADAPTIVE: adaptive(target_s, width)} | {f"fixed {chunk}": fixed(chunk, width) for chunk in chunks}


def _turn(clients: ClosedLoopClients, requests: Sequence[PromptRequest]) -> Callable[[], Awaitable[ContenderRound]]:
    return lambda: clients.run(requests)


def show(target_s: float, results: dict[str, list[ContenderRound]]) -> None:
    """A line per contender, medians over rounds."""
    head = ("median of rounds", "ITL p50 ms", "p99 ms", "p99/target", "TTFT p50 ms", "p99 ms", "tokens/s")
    rows = []
    for name, runs in results.items():
        itl = [statistics.median(percentile(run.itl, share) for run in runs) for share in (0.5, 0.99)]
        ttft = [statistics.median(percentile(run.ttft, share) for run in runs) for share in (0.5, 0.99)]
        rate = statistics.median(run.tokens_per_s for run in runs)
        figures = [*(f"{value * 1e3:.1f}" for value in itl), f"{itl[1] / target_s:.2f}"]
        rows.append((name, *figures, *(f"{value * 1e3:.0f}" for value in ttft), f"{rate:.0f}"))
    print(table(head, rows))


def judge(target_s: float, results: dict[str, list[ContenderRound]]) -> list[Check]:
    """Latency of the adaptive budget against its target, its throughput against the best fixed chunk's."""
    ours = results[ADAPTIVE]
    others = {name: runs for name, runs in results.items() if name not in (ADAPTIVE, DECODE_ALONE)}
    rates = {name: [run.tokens_per_s for run in runs] for name, runs in others.items()}
    best = max(rates, key=lambda name: statistics.median(rates[name]))
    late = statistics.median(percentile(run.itl, 0.99) for run in ours) / target_s
    share = median_ratio([run.tokens_per_s for run in ours], rates[best])
    return [
        Check("ITL p99 / target", late, HELD, at_least=False),
        Check(f"throughput / best fixed chunk ({best})", share, SHARE, at_least=True),
    ]


def main() -> int:
    """Measure and give the verdict."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--width", type=int, default=16, help="clients, and so sequences, at a time")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--outputs", type=int, default=64, help="mean output tokens per request")
    parser.add_argument("--chunks", type=int, nargs="+", default=CHUNKS)
    parser.add_argument("--threads", type=int, default=max(1, cores - 1))
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"model {arguments.model} {arguments.dtype}, {arguments.threads} torch threads of {cores} cores; ", end="")
    print(f"{arguments.width} clients, {arguments.requests} requests a round, {arguments.rounds} rounds")
    print(f"prompts of {MEAN_PROMPT} tokens on average, every tenth of {LONG_FACTOR * MEAN_PROMPT}")
    target_s, results = asyncio.run(measure(arguments))
    print(f"ITL target {target_s * 1e3:.1f} ms: {TARGET_STEPS:g} x the decode step alone at this batch\n")
    show(target_s, results)
    print()
    return verdict(judge(target_s, results), "inter-token latency held beside long prompts")


if __name__ == "__main__":
    sys.exit(main())
