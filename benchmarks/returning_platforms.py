"""The platforms in which a conversation comes back from one place and no other: two at a time, asked in turns."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from benchmarks.returning_curves import CostEstimate
from tandem.apps.chaos.live import LivePlatform
from tandem.apps.cli.display import LineDisplay
from tandem.apps.cli.platform import Platform
from tandem.apps.cli.router_client import spans_of
from tandem.apps.cli.supervisor import Supervisor
from tandem.apps.cli.up_options import parse
from tandem.apps.client.answer import TokenUsage
from tandem.apps.client.http import Client
from tandem.apps.client.stream import AnswerStream
from tandem.core.errors import TandemError

T = TypeVar("T")

_START_S: Final = 300.0
_SPANS_S: Final = 30.0
_SAID: Final = re.compile(r" in ([\d.]+) ms (?:against|instead of) ([\d.]+) ms")
_NAMED: Final = {"TANDEM_CORE__PLACEMENT__TRANSFER_SETUP_MS": "-1e6"}
"""The router names whoever has a prompt, as if fetching were a gain: else workers would be asked only when it takes
computing for slow, and what they say then is not what they would say on average."""
_ALWAYS: Final = {"TANDEM_HOST__REUSE": "always"}


@dataclass(frozen=True)
class CacheSource:
    """Where a prompt comes back from, and the platform in which it can come from nowhere else."""

    tier: str
    flags: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


TIERS: Final = ("dram", "nvme", "store", "peer")


def way_of(tier: str, folder: Path) -> CacheSource:
    """How a prompt comes back from `tier`; `folder` is where a platform may keep blocks."""
    one, two = ("--prefill", "0", "--decode", "1"), ("--prefill", "0", "--decode", "2")
    match tier:
        case "dram":
            return CacheSource(tier, (*one, "--dram-gb", "2"))
        case "nvme":
            return CacheSource(tier, (*one, "--nvme-gb", "2", "--nvme-dir", str(folder / "nvme")))
        case "store":
            return CacheSource(tier, (*one, "--store", "2"))
    return CacheSource(tier, two, {"TANDEM_CORE__PLACEMENT__POLICY": "round_robin"})


@dataclass(frozen=True)
class Answer:
    """Milliseconds to the first token, and cached tokens by tier."""

    request_id: str
    first_ms: float
    found: Mapping[str, int]


class PromptClient:
    """Asks prompts one at a time and takes the time to the first token."""

    def __init__(self, live: LivePlatform) -> None:
        self._live = live
        self._client = Client(live.platform.target)

    async def ask(self, prompt: Sequence[int]) -> Answer:
        """The answer to a prompt of token ids. Raises what `AnswerStream.pieces` raises."""
        body = msgspec.json.encode(
            {
                "model": self._live.model,
                "prompt": list(prompt),
                "max_tokens": 2,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        began_s, stream = asyncio.get_running_loop().time(), AnswerStream(self._client, "/v1/completions", body)
        async with aclosing(stream.pieces()) as pieces:
            came = [piece async for piece in pieces]
        usage = came[-1].usage or TokenUsage()
        return Answer(came[-1].id, (came[0].time_s - began_s) * 1e3, usage.cached_by_tier)

    async def said(self, answer: Answer, tokens: int) -> CostEstimate | None:
        """What the worker expected of bringing that prompt and of computing it, by its own sentence; None where it
        was not asked to choose. Raises `TimeoutError`."""
        async with asyncio.timeout(_SPANS_S):
            while True:
                with suppress(TandemError):
                    spans = await spans_of(self._live.platform.target, answer.request_id)
                    if any(span.name == "prefill" for span in spans):
                        break
                await asyncio.sleep(0.01)
        sentences = (str(span.attributes["reuse"]) for span in spans if "reuse" in span.attributes)
        return next((said for sentence in sentences if (said := read_saying(sentence, tokens))), None)

    async def close(self) -> None:
        await self._client.aclose()


def read_saying(sentence: str, tokens: int) -> CostEstimate | None:
    """The two costs in a worker's sentence; None when it knows what only one of them is."""
    found = _SAID.search(sentence)
    return CostEstimate(tokens, compute_ms=float(found[2]), bring_ms=float(found[1])) if found else None


def run_both(
    flags: Sequence[str], tier: str, folder: Path, work: Callable[[LivePlatform, LivePlatform], Awaitable[T]]
) -> T:
    """Start two platforms, one made to bring whatever it can and one that decides by itself, do `work` with both, and
    stop them."""
    made, free = (
        _platform(flags, way_of(tier, folder / name), more) for name, more in (("made", _ALWAYS), ("free", {}))
    )

    async def main() -> T:
        async def with_made(supervisor: Supervisor) -> T:
            await made.ready(supervisor, _START_S)
            first = LivePlatform(made, supervisor)

            async def with_free(supervisor: Supervisor) -> T:
                await free.ready(supervisor, _START_S)
                return await work(first, LivePlatform(free, supervisor))

            return await free.run(LineDisplay(lambda _line: None), with_free)

        return await made.run(LineDisplay(lambda _line: None), with_made)

    try:
        return asyncio.run(main())
    finally:
        made.directory.remove()
        free.directory.remove()


def _platform(flags: Sequence[str], way: CacheSource, environment: Mapping[str, str]) -> Platform:
    """Its workers compute with one thread each: threads of two platforms would wait for each other's cores."""
    options = parse([*flags, *way.flags, "--port", "0"])
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        return Platform(options.service, {**os.environ, **_NAMED, **way.environment, **environment})
    finally:
        os.sched_setaffinity(0, allowed)
