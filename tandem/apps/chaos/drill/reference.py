"""The right answers, taken from the platform before anything is done to it.

Answers are functions of prompt and seed: exactly so with the simulated engine, and with a real one in float32, where
rounding is too small to change what is drawn. In bfloat16 the batch an answer is computed in can change a token.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from tandem.apps.chaos.client import ChaosClient
from tandem.apps.chaos.judge import ExpectedAnswer, expected, judge
from tandem.apps.chaos.request import ChaosRequest
from tandem.apps.chaos.response import DONE, ReceivedAnswer
from tandem.core.errors import TandemError

_AT_ONCE: Final = 8
_AGAIN_EVERY: Final = 3


async def take_references(caller: ChaosClient, asks: Sequence[ChaosRequest]) -> Mapping[str, ExpectedAnswer]:
    """The right answer of every ask, by its name. One in three is asked again, in other company.

    Raises `engine_failed` when one is not answered or not answered alike, as then nothing could be judged.
    """
    rights: dict[str, ExpectedAnswer] = {}
    for heard in await _ask_all(caller, asks):
        _check_done(heard)
        rights[heard.ask.name] = expected(heard)
    for heard in await _ask_all(caller, asks[_AGAIN_EVERY - 1 :: _AGAIN_EVERY]):
        faults = judge(heard, rights[heard.ask.name], may_break=False)
        if faults.why:
            cure = "drills need answers that repeat; with a real engine start the platform with --dtype float32"
            raise TandemError("engine_failed", f"undisturbed, an answer changed: {faults.why}; {cure}")
    return rights


async def _ask_all(caller: ChaosClient, asks: Sequence[ChaosRequest]) -> list[ReceivedAnswer]:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(ask: ChaosRequest) -> ReceivedAnswer:
        async with limit:
            return await caller.ask(ask)

    return list(await asyncio.gather(*(one(ask) for ask in asks)))


def _check_done(heard: ReceivedAnswer) -> None:
    if heard.end != DONE:
        raise TandemError("engine_failed", f"{heard.ask.name} was not answered: it is {heard.end}, {heard.reason}")
