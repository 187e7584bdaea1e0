"""Sending a workload on time and collecting what came of it."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from tandem.bench.client import Client, Target
from tandem.bench.completion import Style, complete, request_body
from tandem.bench.content import TokenRange, prompt_text, prompt_tokens
from tandem.bench.outcome import Outcome
from tandem.bench.workload import Item, Workload


@dataclass(frozen=True)
class Settings:
    """`in_flight_max` bounds open requests; at the bound the schedule waits, and the wait counts as latency."""

    style: Style
    vocabulary: TokenRange
    tokens_per_word: float = 1.0
    seed: int = 0
    timeout_s: float = 600.0
    in_flight_max: int = 1024


Progress = Callable[[Outcome], None]


async def replay(target: Target, workload: Workload, settings: Settings, progress: Progress) -> list[Outcome]:
    """Every item's outcome, in order of the workload. Ends at most `timeout_s` after the last item was sent."""
    gate = asyncio.Semaphore(settings.in_flight_max)
    loop = asyncio.get_running_loop()
    begin = loop.time()

    async def one(client: Client, item: Item, body: bytes) -> Outcome:
        try:
            outcome = await complete(client, settings.style, body, item.arrival_s, begin, settings.timeout_s)
        finally:
            gate.release()
        progress(outcome)
        return outcome

    tasks = []
    async with aclosing(Client(target)) as client, asyncio.TaskGroup() as group:
        for item in workload.items:
            body = request_body(settings.style, prompt(item, settings), item.output_tokens)
            await asyncio.sleep(max(0.0, begin + item.arrival_s - loop.time()))
            await gate.acquire()
            tasks.append(group.create_task(one(client, item, body)))
    return [task.result() for task in tasks]


def prompt(item: Item, settings: Settings) -> str | list[int]:
    """The prompt in the form this server takes."""
    if settings.style.token_ids:
        return prompt_tokens(item.pieces, settings.vocabulary, settings.seed)
    return prompt_text(item.pieces, settings.tokens_per_word, settings.seed)
