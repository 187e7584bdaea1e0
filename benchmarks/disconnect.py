"""How soon a client's disconnect frees everything: blocks and slots on prefill and decode, its place in the router.

A whole platform (`tandem up`) runs as processes. One request at a time gets into a stage and its client leaves;
from then on the metrics pages of all processes are read every few milliseconds until nothing of the request is
held. Reading the pages takes some milliseconds itself, which count. Exits non-zero when of a hundred disconnects the
slowest but one takes longer than 200 ms or one engine step, whichever is longer.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio

from benchmarks.rounds import Check, percentile, table, verdict
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc as stubs
from tandem.apps.chaos.live import LivePlatform, MetricSamples, run_platform, total
from tandem.apps.cli.ports import free_port

ROUNDS: Final = 20
LIMIT_S: Final = 0.2
_POLL_S: Final = 0.005
_GIVE_UP_S: Final = 5.0
_HOLD_S: Final = 20.0
_RUNNING_MAX: Final = 4
_HELD_MAX: Final = 6
"""A decode worker runs so many sequences at once and holds so many with those that wait; the rest queue in the
router."""

_OCCUPANT_TOKENS: Final = 1800
"""What an occupant asks for: it must not end before it is told to."""

Leave = Callable[[], None]
HeldResources = tuple[float, ...]
SETTINGS: Final = {
    "TANDEM_SCHEDULER__MAX_SEQUENCES": str(_RUNNING_MAX),
    "TANDEM_CORE__PLACEMENT__SEQUENCES_PER_WORKER_MAX": str(_HELD_MAX),
    "TANDEM_CORE__PLACEMENT__PREFER": "disaggregated",
    "TANDEM_SIMULATED__TOKEN_S": "0.0002",
    "TANDEM_SIMULATED__BASE_S": "0.01",
    "TANDEM_DEADLINES__QUEUE_S": "120",
    "TANDEM_CORE__DEADLINES__QUEUE_S": "120",
}


@dataclass
class Samples:
    """What one stage gave: seconds until everything was free, and how often the request was over too early."""

    seconds: list[float] = field(default_factory=list)
    missed: int = 0


class DisconnectBench:
    """One platform under measurement."""

    def __init__(self, live: LivePlatform, engine: str, grpc_port: int, seed: int = 5) -> None:
        self.live = live
        self.random = random.Random(seed)
        self.long_tokens = 6000 if engine == "simulated" else 1500
        self.long_s = 1.0
        """How long the long prompt takes to its first token."""
        self._output_max = 2000 if engine == "simulated" else 400
        self._grpc_port = grpc_port

    # -- asking --

    def prompt(self, tokens: int) -> list[int]:
        """One that nobody has seen before."""
        return [self.random.randrange(300, 900) for _ in range(tokens)]

    async def ask(
        self, tokens: int, *, stream: bool = True, output: int | None = None
    ) -> tuple[asyncio.StreamReader, Leave]:
        """A request under way, and the way to leave it: some clients close, some reset."""
        asked: dict[str, Any] = {
            "model": self.live.model,
            "prompt": self.prompt(tokens),
            "stream": stream,
            "max_tokens": output or self._output_max,
            "ignore_eos": True,
        }
        body = json.dumps(asked).encode()
        reader, writer = await asyncio.open_connection(self.live.host, self.live.port)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        resets = self.random.random() < 0.5
        return reader, lambda: writer.transport.abort() if resets else writer.close()

    async def call(self, tokens: int) -> tuple["grpc.aio.UnaryStreamCall[Any, Any]", Leave]:
        """The same over gRPC; leaving is cancelling the call."""
        channel = grpc.aio.insecure_channel(f"{self.live.host}:{self._grpc_port}")
        parameters = pb.Parameters(max_tokens=self._output_max, ignore_eos=True)
        asked = pb.GenerateRequest(
            model=self.live.model, token_ids=pb.TokenIds(ids=self.prompt(tokens)), parameters=parameters
        )
        call = stubs.InferenceStub(channel).Generate(asked)  # type: ignore[no-untyped-call]
        return call, call.cancel

    # -- looking --

    async def held(self, *, blocks: bool) -> HeldResources:
        """What is held now, as numbers that must come back to what they were; `blocks` counts free ones as well."""
        router, *workers = await self._pages()
        found = [total(router, "tandem_requests_running")]
        for worker in workers:
            found += [total(worker, "tandem_sequences", state) for state in ("running", "waiting")]
            found.append(total(worker, "tandem_kv_blocks", "exported"))
            found += [total(worker, "tandem_kv_blocks", '"free"')] * blocks
        return tuple(found)

    async def _pages(self) -> list[MetricSamples]:
        members = (self.live.router, *self.live.workers)
        return list(await asyncio.gather(*(self.live.figures(member) for member in members)))

    async def until(self, met: Callable[[HeldResources], bool], *, blocks: bool, within_s: float) -> float | None:
        """Seconds until a look at everything pleases, or None."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < within_s:
            if met(await self.held(blocks=blocks)):
                return loop.time() - began
            await asyncio.sleep(_POLL_S)
        return None

    async def settled(self, *, blocks: bool) -> HeldResources:
        """What is held when nothing changes any more."""
        last = await self.held(blocks=blocks)
        for _ in range(200):
            await asyncio.sleep(0.06)
            now = await self.held(blocks=blocks)
            if now == last:
                return now
            last = now
        raise RuntimeError("the platform does not come to rest")

    async def sample(
        self, into: Samples, get_there: Callable[["DisconnectBench"], Awaitable[Leave]], *, blocks: bool = True
    ) -> None:
        """One disconnect. `get_there` brings a request into its stage and gives the way to leave it."""
        before = await self.settled(blocks=blocks)
        leave = await get_there(self)
        under_way = await self.held(blocks=blocks) != before
        leave()
        within_s = _GIVE_UP_S if under_way else _HOLD_S
        seconds = await self.until(lambda now: now == before, blocks=blocks, within_s=within_s)
        if not under_way:
            into.missed += 1
        else:
            into.seconds.append(_GIVE_UP_S if seconds is None else seconds)


# ---- getting there ----


async def _events(reader: asyncio.StreamReader, count: int) -> None:
    """Wait for so many events of a stream."""
    async with asyncio.timeout(_HOLD_S):
        while count:
            line = await reader.readline()
            if not line or (line.startswith(b"HTTP/1.1 ") and b" 200 " not in line):
                raise RuntimeError(f"the stream ended before its client left: {line!r}")
            count -= line.startswith(b"data: ")


async def in_prefill(bench: DisconnectBench, *, stream: bool) -> Leave:
    _, leave = await bench.ask(bench.long_tokens, stream=stream)
    await asyncio.sleep(bench.long_s * bench.random.uniform(0.3, 0.7))
    return leave


async def in_transfer(bench: DisconnectBench) -> Leave:
    """The first token is here, so the last blocks are just on their way."""
    reader, leave = await bench.ask(bench.long_tokens)
    await _events(reader, 1)
    return leave


async def in_decode(bench: DisconnectBench) -> Leave:
    reader, leave = await bench.ask(64)
    await _events(reader, bench.random.randrange(3, 40))
    return leave


async def in_decode_unary(bench: DisconnectBench) -> Leave:
    _, leave = await bench.ask(64, stream=False)
    await asyncio.sleep(bench.random.uniform(0.15, 0.4))
    return leave


async def in_grpc_prefill(bench: DisconnectBench) -> Leave:
    call, leave = await bench.call(bench.long_tokens)
    await call.initial_metadata()
    await asyncio.sleep(bench.long_s * bench.random.uniform(0.3, 0.7))
    return leave


async def in_grpc_decode(bench: DisconnectBench) -> Leave:
    call, leave = await bench.call(64)
    for _ in range(bench.random.randrange(3, 40)):
        await call.read()
    return leave


async def in_line(bench: DisconnectBench) -> Leave:
    """Where the occupants leave no place: on the decode worker, or before it in the router."""
    _, leave = await bench.ask(64)
    await asyncio.sleep(bench.random.uniform(0.15, 0.3))
    return leave


STAGES: Final[dict[str, Callable[[DisconnectBench], Awaitable[Leave]]]] = {
    "prefill": partial(in_prefill, stream=True),
    "prefill, not streamed": partial(in_prefill, stream=False),
    "transfer": in_transfer,
    "decode": in_decode,
    "decode, not streamed": in_decode_unary,
    "gRPC prefill": in_grpc_prefill,
    "gRPC decode": in_grpc_decode,
}
QUEUES: Final = {"queue on decode": _RUNNING_MAX, "queue in router": _HELD_MAX}
"""Stages behind so many occupants."""


async def measure(live: LivePlatform, engine: str, grpc_port: int, rounds: int) -> tuple[dict[str, Samples], float]:
    """Every stage on one platform; also how long a step takes on its slower worker, in the mean."""
    bench = DisconnectBench(live, engine, grpc_port)
    await _calibrate(bench)
    found: dict[str, Samples] = {}
    for name, get_there in STAGES.items():
        found[name] = await _rounds(bench, get_there, rounds)
    for name, occupants in QUEUES.items():
        found[name] = Samples()
        for _ in range(rounds):
            await _behind(bench, found[name], occupants)
    pages = [await live.figures(worker) for worker in live.workers]
    steps = [
        total(page, "tandem_step_seconds_sum") / max(1.0, total(page, "tandem_step_seconds_count")) for page in pages
    ]
    return found, max(steps)


async def _behind(bench: DisconnectBench, into: Samples, occupants: int) -> None:
    """One disconnect behind so many requests, which leave afterwards."""
    leaving = []
    for _ in range(occupants):
        leaving.append(await bench.ask(16, output=_OCCUPANT_TOKENS))
        if len(leaving) <= _RUNNING_MAX:
            await _events(leaving[-1][0], 1)
        else:
            await asyncio.sleep(0.05)
    waiting = occupants - _RUNNING_MAX
    # In the order of `held`: the router, then running, waiting and exported blocks of prefill and of decode.
    in_place = (occupants, 0.0, 0.0, waiting, _RUNNING_MAX, waiting, 0.0)
    if await bench.until(lambda now: now == in_place, blocks=False, within_s=_HOLD_S) is None:
        raise RuntimeError(f"{occupants} occupants do not come to rest: {await bench.held(blocks=False)}")
    await bench.sample(into, in_line, blocks=False)
    for _, leave in leaving:
        leave()
    await bench.settled(blocks=True)


async def _rounds(
    bench: DisconnectBench, get_there: Callable[[DisconnectBench], Awaitable[Leave]], rounds: int
) -> Samples:
    samples = Samples()
    while len(samples.seconds) < rounds and samples.missed < rounds:
        await bench.sample(samples, get_there)
    return samples


async def _calibrate(bench: DisconnectBench) -> None:
    """How long the long prompt takes."""
    loop = asyncio.get_running_loop()
    for _ in range(2):
        began = loop.time()
        reader, leave = await bench.ask(bench.long_tokens, output=1)
        await _events(reader, 1)
        bench.long_s = loop.time() - began
        leave()


def report(engine: str, found: dict[str, Samples], step_s: float, cores: str) -> list[Check]:
    """Print one platform's table; its checks."""
    print(f"\n{engine}: 1 prefill, 1 decode worker, {cores}; a step takes {step_s * 1e3:.0f} ms in the mean\n")
    rows, checks, limit_s = [], [], max(LIMIT_S, step_s)
    for name, samples in found.items():
        ordered = samples.seconds or [_GIVE_UP_S]
        p99 = percentile(ordered, 0.99)
        figures = (statistics.median(ordered), p99, max(ordered))
        rows.append(
            (name, *(f"{value * 1e3:.0f}" for value in figures), str(len(samples.seconds)), str(samples.missed))
        )
        checks.append(Check(f"{engine}, disconnect in {name}, p99", p99 * 1e3, limit_s * 1e3, False, "ms"))
    print(table(("disconnect in", "p50 ms", "p99 ms", "max ms", "samples", "too late"), rows) + "\n")
    return checks


def main() -> int:
    """Measure and give the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--engines", default="simulated,torch", help="default simulated,torch")
    arguments = parser.parse_args()
    checks: list[Check] = []
    for engine in arguments.engines.split(","):
        grpc_port = free_port("127.0.0.1")
        flags = ["--engine", engine, "--prefill", "1", "--decode", "1", "--grpc-port", str(grpc_port)]
        found, step_s = run_platform(
            flags, partial(measure, engine=engine, grpc_port=grpc_port, rounds=arguments.rounds), SETTINGS
        )
        checks += report(engine, found, step_s, "processes on this machine")
    return verdict(checks, "a disconnect frees everything at once")


if __name__ == "__main__":
    sys.exit(main())
