"""The right answers: one engine in one process, with its prefix cache off."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandem.engine.settings import SchedulerSettings
from tandem.engine.torch.settings import TorchSettings
from tests.worlds.asking import Ask
from tools.conversations.plan import Conversation
from tools.equality.models import Subject
from tools.equality.single import SingleEngine

_AT_ONCE = 16


@dataclass(frozen=True)
class ExpectedTurn:
    """One turn: its prompt, and what a single engine answers."""

    conversation: int
    turn: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str


async def tell(
    subject: Subject, conversations: Sequence[Conversation], heard: Callable[[int], None]
) -> tuple[tuple[ExpectedTurn, ...], ...]:
    """Every turn of every conversation, in order. `heard` is called with the number of turns answered so far."""
    torch = TorchSettings(
        model=str(subject.directory), dtype="float32", block_tokens=16, blocks=4096, mode="thread", threads=2
    )
    limit, answered = asyncio.Semaphore(_AT_ONCE), 0
    async with SingleEngine(torch, SchedulerSettings(prefix_cache=False), subject.decoder) as engine:

        async def one(conversation: Conversation) -> tuple[ExpectedTurn, ...]:
            nonlocal answered
            answers: list[tuple[int, ...]] = []
            told = []
            async with limit:
                for index, turn in enumerate(conversation.turns):
                    prompt = conversation.prompt(index, answers)
                    ask = Ask("", prompt, turn.stopping, turn.sampling, seed=turn.seed)
                    (spoken,) = (await engine.ask(ask)).sequences
                    answers.append(spoken.tokens)
                    told.append(ExpectedTurn(conversation.number, index, prompt, spoken.tokens, spoken.text))
                    answered += 1
                    heard(answered)
            return tuple(told)

        return tuple(await asyncio.gather(*(one(each) for each in conversations)))
