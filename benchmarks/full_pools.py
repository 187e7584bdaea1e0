"""KV pools that are full: how fast a request that cannot get its KV memory in time is refused, and what that costs.

One prefill and two decode workers (`tandem up`, processes of their own): simulated ones, whose steps take as long on
any machine, or the demo model with 4 MiB of KV memory each, 85 blocks. A chat takes up to most of a pool. Clients in
a closed loop ask for chats, streamed, and come again after `Retry-After` when refused. Capacity is the rate of
answers at a bound of waiting that nobody passes; then as many clients meet the bound as it is by default. Exits
non-zero when a limit is not met.
"""

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.rounds import Check, percentile, verdict
from tandem.apps.chaos.live import LivePlatform, run_platform
from tandem.apps.client.answer import AnswerFailed, RequestRefused
from tandem.apps.client.http import Client
from tandem.apps.client.stream import AnswerStream
from tandem.apps.client.wire import BadResponse

CLIENTS: Final = 25
SECONDS: Final = 60.0
REFUSAL_LIMIT_S: Final = 0.1
GOODPUT_LIMIT: Final = 0.95
FLAGS: Final = ("--model", "demo", "--prefill", "1", "--decode", "2")
PATIENT: Final = {"TANDEM_CORE__DEADLINES__QUEUE_S": "120"}
SETTINGS: Final = {"TANDEM_SIMULATED__BASE_S": "0.01", "TANDEM_SIMULATED__BLOCKS": "220"}
"""Of the simulated engine, which counts letters: the same share of a pool."""
_WARM_S: Final = 4.0
_TOKENS: Final = (200, 800)
_OUTPUT: Final = (120, 330)
_PATIENCE_S: Final = 150.0
ANSWERED: Final = "answered"
_WORDS: Final = [
    "the",
    "of",
    "and",
    "a",
    "to",
    "in",
    "he",
    "was",
    "that",
    "it",
    "his",
    "her",
    "with",
    "as",
    "had",
    "for",
    "she",
    "not",
    "on",
    "but",
    "at",
    "they",
    "you",
]


@dataclass(frozen=True)
class ChatOutcome:
    """One chat as its client saw it. `kind` is `answered`, an error code, or what went wrong instead."""

    at_s: float
    seconds: float
    first_s: float | None
    kind: str
    retry_after: int | None
    words: str

    @property
    def begun(self) -> bool:
        """Whether its stream had begun."""
        return self.first_s is not None


@dataclass
class ChatPhase:
    """What `clients` saw in `seconds`."""

    clients: int
    seconds: float
    ended: list[ChatOutcome] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Answers per second."""
        return sum(each.kind == ANSWERED for each in self.ended) / self.seconds


class ChatClients:
    """A closed loop of chats against one platform."""

    def __init__(self, live: LivePlatform) -> None:
        self._live = live
        self._random = random.Random(14)

    def body(self) -> bytes:
        """A chat that shares no prefix with another."""
        draw = self._random
        words = [str(draw.randrange(10**6)), *draw.choices(_WORDS, k=draw.randint(*_TOKENS))]
        content = " ".join(words)
        return json.dumps(
            {
                "model": self._live.model,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": draw.randint(*_OUTPUT),
                "ignore_eos": True,
                "stream": True,
            }
        ).encode()

    async def one(self) -> ChatOutcome:
        """A chat from its sending to its end."""
        loop, kind, words, first_s, retry_after = asyncio.get_running_loop(), ANSWERED, "", None, None
        body, sent = self.body(), loop.time()
        try:
            # A connection of its own, as clients have that come again after a pause.
            async with asyncio.timeout(_PATIENCE_S), aclosing(Client(self._live.platform.target)) as client:
                stream = AnswerStream(client, "/v1/chat/completions", body)
                async with aclosing(stream.pieces()) as pieces:
                    async for piece in pieces:
                        first_s = first_s or piece.time_s - sent
                if not stream.ended:
                    kind = "unknown"
        except AnswerFailed as failed:
            kind, words = failed.kind, str(failed)
            retry_after = failed.retry_after_s if isinstance(failed, RequestRefused) else None
        except TimeoutError:
            kind = "no end"
        except (OSError, BadResponse, msgspec.DecodeError) as error:
            kind, words = f"broken: {type(error).__name__}", str(error)
        return ChatOutcome(loop.time(), loop.time() - sent, first_s, kind, retry_after, words)

    async def run(self, clients: int, seconds: float) -> ChatPhase:
        """Clients that each ask for one chat after the other; a refused one comes again when it was told to."""
        loop = asyncio.get_running_loop()
        begin, phase = loop.time(), ChatPhase(clients, seconds)

        async def client() -> None:
            while loop.time() < begin + seconds:
                ended = await self.one()
                if loop.time() <= begin + seconds or ended.kind != ANSWERED:
                    phase.ended.append(ended)
                if ended.kind != ANSWERED:
                    await asyncio.sleep(ended.retry_after or 1)

        await asyncio.gather(*(client() for _ in range(clients)))
        return phase


async def course(live: LivePlatform, clients: int, seconds: float) -> ChatPhase:
    """What so many clients see, once the platform has been warmed by two."""
    asking = ChatClients(live)
    await asking.run(2, _WARM_S)
    phase = await asking.run(clients, seconds)
    say(phase)
    return phase


def say(phase: ChatPhase) -> None:
    """The figures of a phase in words."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(each.kind for each in phase.ended).items()))
    refused = [each.seconds for each in phase.ended if each.kind == "queue_full"]
    answered = [each.seconds for each in phase.ended if each.kind == ANSWERED]
    firsts = [each.first_s for each in phase.ended if each.kind == ANSWERED and each.first_s is not None]
    line = f"{phase.clients} clients: {phase.rate:.2f} answers/s; {kinds}"
    if answered:
        line += f"; answered p50 {percentile(answered, 0.5):.2f} s, p99 {percentile(answered, 0.99):.2f} s"
        line += f", first p50 {percentile(firsts, 0.5):.2f} p99 {percentile(firsts, 0.99):.2f} s"
    if refused:
        line += f"; refused p50 {percentile(refused, 0.5) * 1e3:.1f} ms, p99 {percentile(refused, 0.99) * 1e3:.1f} ms"
    print(line, flush=True)


def checks_of(patient: ChatPhase, bounded: ChatPhase) -> list[Check]:
    """What must hold."""
    refused = [each for each in bounded.ended if each.kind == "queue_full"]
    times = [each.seconds for each in refused] or [0.0]
    unwanted = [each for each in bounded.ended if each.kind not in (ANSWERED, "queue_full")]
    broken = [each for each in bounded.ended if each.kind != ANSWERED and each.begun]
    silent = [each for each in refused if each.retry_after is None]
    return [
        Check("refused", len(refused), 1, True),
        Check("refusal, p99", percentile(times, 0.99) * 1e3, REFUSAL_LIMIT_S * 1e3, False, "ms"),
        Check("refusals without Retry-After", len(silent), 0, False),
        Check("ended otherwise than by an answer or a refusal", len(unwanted), 0, False),
        Check("failed after the stream had begun", len(broken), 0, False),
        Check("answers/s, of those of patient clients", bounded.rate / patient.rate, GOODPUT_LIMIT, True),
    ]


def main() -> int:
    """Measure and give the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("torch", "simulated"), default="simulated")
    parser.add_argument("--clients", type=int, default=CLIENTS, help=f"at once (default {CLIENTS})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each phase (default 60)")
    parser.add_argument("--json", type=Path, help="write every request of both phases to this file")
    arguments = parser.parse_args()
    memory = ("--kv-memory", "4Mi") if arguments.engine == "torch" else ()
    flags = (*FLAGS, "--engine", arguments.engine, *memory)
    work = partial(course, clients=arguments.clients, seconds=arguments.seconds)
    patient = run_platform(flags, work, {**SETTINGS, **PATIENT})
    bounded = run_platform(flags, work, SETTINGS)
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.encode([asdict(patient), asdict(bounded)]))
    return verdict(checks_of(patient, bounded), "what cannot have KV memory in time is refused at once")


if __name__ == "__main__":
    sys.exit(main())
