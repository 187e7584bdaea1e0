"""The clients of a soak: what they ask, how they compare the answers, and what a run has seen so far."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from benchmarks.samples import Curve
from tandem.apps.chaos.client import PLAIN, WHOLE, ChaosClient
from tandem.apps.chaos.judge import ExpectedAnswer, expected, judge
from tandem.apps.chaos.request import ChaosRequest
from tandem.apps.chaos.response import DONE, FAILED, WITHOUT_END, ReceivedAnswer

ANSWERED: Final = "answered"
LEFT: Final = "left"
"""The client hung up, as it meant to."""
_QUESTIONS: Final = 24
_RING: Final = 5000
"""Requests after which every process has as many traces in hand as it keeps."""
_WORDS: Final = ("fox", "lantern", "harbor", "night", "morning", "window", "boat", "river", "apples", "children")


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


def questions(seed: int = 11) -> tuple[ChaosRequest, ...]:
    """Short and long prompts, some with a beginning in common."""
    draw = random.Random(seed)

    def words(count: int) -> str:
        return " ".join(draw.choice(_WORDS) for _ in range(count))

    shared = [words(60) for _ in range(3)]
    return tuple(
        ChaosRequest(
            name=f"question-{number}",
            chat=False,
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

    def __init__(self, client: ChaosClient, soak: Soak, now: Callable[[], float]) -> None:
        self._client = client
        self._soak = soak
        self._now = now
        self._expected: dict[str, ExpectedAnswer] = {}
        self._random = random.Random(23)
        self._asked = 0
        self.stopping = False

    async def learn(self, asked: tuple[ChaosRequest, ...]) -> None:
        """The right answers, from a platform nobody disturbs. Each is asked for twice."""
        for question in asked:
            for manner in (WHOLE, PLAIN):
                heard = await self._client.ask(question, cache_salt="", manner=manner)
                right = self._expected.setdefault(question.name, expected(heard))
                if why := judge(heard, right, may_break=False).why:
                    raise RuntimeError(f"an undisturbed platform gives two answers, or none: {why}")

    async def run(self, asked: tuple[ChaosRequest, ...]) -> None:
        """One client, until told to stop. Some questions are new, and asked twice; of some the client leaves."""
        while not self.stopping:
            chance = self._random.random()
            question = self._random.choice(asked)
            if chance < 0.15:
                heard = await self._ask(question, PLAIN, leave_s=self._random.uniform(0.02, 0.6))
            elif chance < 0.4:
                question = self._new(question)
                heard = await self._ask(question, PLAIN)
                if heard.end == DONE:
                    heard = await self._compare(question, expected(heard))
            else:
                heard = await self._compare(question, self._expected[question.name])
            self._soak.warmed_up(self._now())
            await asyncio.sleep(self._random.uniform(0.0, 0.05) if heard.end in (DONE, LEFT) else 0.5)

    async def _compare(self, question: ChaosRequest, right: ExpectedAnswer) -> ReceivedAnswer:
        """Ask, and note when the answer is another than the right one."""
        heard = await self._ask(question, PLAIN if self._random.random() < 0.7 else WHOLE)
        why = judge(heard, right, may_break=False).why if heard.end == DONE else ""
        if why:
            self._soak.wrong.append(f"{question.prompt[:40]!r}: {why}: {dict(heard.texts)!r}, not {right.texts!r}")
        return heard

    def _new(self, like: ChaosRequest) -> ChaosRequest:
        """A question nobody has asked before."""
        self._asked += 1
        return replace(like, name=f"{like.name}, new {self._asked}", prompt=f"{self._asked} {like.prompt}")

    async def _ask(self, question: ChaosRequest, manner: str, leave_s: float | None = None) -> ReceivedAnswer:
        heard = await self._client.ask(question, cache_salt="", manner=manner, end_within_s=leave_s)
        if leave_s is not None and heard.end == WITHOUT_END:
            heard.end = LEFT
        self._soak.ends[ending(heard)] += 1
        return heard


def ending(heard: ReceivedAnswer) -> str:
    """How a request ended, in the words that a run is counted by."""
    named = {DONE: ANSWERED, LEFT: LEFT, WITHOUT_END: "no end", FAILED: heard.kind}
    return named.get(heard.end, f"broken: {heard.kind}")
