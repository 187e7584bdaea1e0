"""The clients of a soak: what they ask, how they compare the answers, and what a run has seen so far."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import msgspec

from benchmarks.samples import Curve
from tandem.apps.bench.completion import error_kind
from tandem.apps.chaos.live import LivePlatform
from tandem.apps.client.http import Client
from tandem.apps.client.wire import BadResponse, Events

_PATIENCE_S: Final = 90.0
_QUESTIONS: Final = 24
_RING: Final = 5000
"""Requests after which every process has as many traces in hand as it keeps."""
_WORDS: Final = ("fox", "lantern", "harbor", "night", "morning", "window", "boat", "river", "apples", "children")


@dataclass(frozen=True)
class Question:
    """A request that always has the same answer."""

    prompt: str
    max_tokens: int
    n: int
    seed: int
    temperature: float

    def body(self, model: str, *, stream: bool) -> bytes:
        asked = {**asdict(self), "model": model, "stream": stream, "ignore_eos": True}
        return json.dumps(asked).encode()


@dataclass
class Soak:
    """What a run has seen so far."""

    memory: dict[str, Curve] = field(default_factory=dict)
    files: dict[str, Curve] = field(default_factory=dict)
    blocks: dict[str, Curve] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    held: str = ""
    """What was still held after everything had ended."""
    warm_s: float = 0.0
    untouched: tuple[str, ...] = ()

    def warmed_up(self, now_s: float) -> None:
        """The warm-up lasts until the rings of the latest requests' traces are full."""
        if sum(self.ends.values()) <= _RING:
            self.warm_s = max(self.warm_s, now_s)


def questions(seed: int = 11) -> tuple[Question, ...]:
    """Short and long prompts, some with a beginning in common."""
    draw = random.Random(seed)

    def words(count: int) -> str:
        return " ".join(draw.choice(_WORDS) for _ in range(count))

    shared = [words(60) for _ in range(3)]
    return tuple(
        Question(
            prompt=(f"{draw.choice(shared)} " if number % 2 else "") + words(draw.choice((4, 30, 120, 250))),
            max_tokens=draw.choice((4, 16, 48)),
            n=1 if number % 5 else 3,
            seed=number,
            temperature=0.0 if number % 3 else 0.8,
        )
        for number in range(_QUESTIONS)
    )


class SoakClients:
    """Ask without end, and compare."""

    def __init__(self, live: LivePlatform, client: Client, soak: Soak, now: Callable[[], float]) -> None:
        self._live = live
        self._client = client
        self._soak = soak
        self._now = now
        self._expected: dict[Question, tuple[str, ...]] = {}
        self._random = random.Random(23)
        self._asked = 0
        self.stopping = False

    async def learn(self, asked: tuple[Question, ...]) -> None:
        """The right answers, from a platform nobody disturbs. Each is asked for twice."""
        for question in asked:
            for stream in (False, True):
                kind, texts = await self._ask(question, stream=stream)
                if kind != "answered" or self._expected.setdefault(question, texts) != texts:
                    raise RuntimeError(f"an undisturbed platform gives two answers, or none: {kind} {texts!r}")

    async def run(self, asked: tuple[Question, ...]) -> None:
        """One client, until told to stop. Some questions are new, and asked twice; of some the client leaves."""
        while not self.stopping:
            chance = self._random.random()
            if chance < 0.15:
                kind, _ = await self._ask(
                    self._random.choice(asked), stream=True, leave_s=self._random.uniform(0.02, 0.6)
                )
                self._soak.ends[kind] += 1
            elif chance < 0.4:
                question = self._new(self._random.choice(asked))
                kind, texts = await self._ask(question, stream=True)
                self._soak.ends[kind] += 1
                if kind == "answered":
                    kind = await self._compare(question, texts)
            else:
                question = self._random.choice(asked)
                kind = await self._compare(question, self._expected[question])
            self._soak.warmed_up(self._now())
            await asyncio.sleep(self._random.uniform(0.0, 0.05) if kind in ("answered", "left") else 0.5)

    async def _compare(self, question: Question, right: tuple[str, ...]) -> str:
        """Ask, and note when the answer is another than the right one; gives how it ended."""
        kind, texts = await self._ask(question, stream=self._random.random() < 0.7)
        self._soak.ends[kind] += 1
        if kind == "answered" and texts != right:
            self._soak.wrong.append(f"{question.prompt[:40]!r}: {texts!r}, not {right!r}")
        return kind

    def _new(self, like: Question) -> Question:
        """A question nobody has asked before."""
        self._asked += 1
        return replace(like, prompt=f"{self._asked} {like.prompt}")

    async def _ask(
        self, question: Question, *, stream: bool, leave_s: float | None = None
    ) -> tuple[str, tuple[str, ...]]:
        """How it ended, and the text of every sequence."""
        body = question.body(self._live.model, stream=stream)
        try:
            async with (
                asyncio.timeout(leave_s or _PATIENCE_S),
                await self._client.exchange("POST", "/v1/completions", body) as answer,
            ):
                if answer.status != 200:
                    return error_kind(await answer.read()), ()
                if not stream:
                    return "answered", _texts(msgspec.json.decode(await answer.read())["choices"])
                return _read([piece async for piece in answer.pieces()], question.n)
        except TimeoutError:
            return ("left", ()) if leave_s else ("no end", ())
        except (OSError, BadResponse) as error:
            return f"broken: {type(error).__name__}", ()


def _texts(choices: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(choice["text"] for choice in sorted(choices, key=lambda choice: int(choice["index"])))


def _read(pieces: list[bytes], n: int) -> tuple[str, tuple[str, ...]]:
    """A whole stream: how it ended, and its texts put together."""
    texts, finished, events = [""] * n, 0, Events()
    for data in (data for piece in pieces for data in events.feed(piece)):
        if data == b"[DONE]":
            continue
        event = msgspec.json.decode(data)
        if "error" in event:
            return str(event["error"]["code"]), ()
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
            finished += choice["finish_reason"] is not None
    return ("answered", tuple(texts)) if finished == n else ("cut off", ())
