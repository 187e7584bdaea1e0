"""Asks a platform the turns of conversations, again where a killed router took the connection along."""

import asyncio
import os
from collections import Counter
from dataclasses import dataclass, field

from tandem.apps.chaos.client import WHOLE, ChaosClient
from tandem.apps.chaos.judge import ExpectedAnswer, judge
from tandem.apps.chaos.live import LivePlatform
from tandem.apps.chaos.request import ChaosRequest
from tandem.apps.chaos.response import DONE, ReceivedAnswer
from tools.conversations.plan import UserTurn
from tools.conversations.truth import ExpectedTurn

_TRIES = 40
_AGAIN_S = 0.25
_ANSWER_S = 120.0


@dataclass
class Result:
    """What came of it. `found` counts prompt tokens by where they were found."""

    turns: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    asked_again: int = 0
    prompt_tokens: int = 0
    found: Counter[str] = field(default_factory=Counter)


class ConversationClient:
    """A client of a platform."""

    def __init__(self, live: LivePlatform, result: Result) -> None:
        name = f"conversations-{os.urandom(4).hex()}"
        self._client = ChaosClient(live.platform.target, live.model, name, _ANSWER_S)
        self._result = result

    async def ask(self, turn: UserTurn, told: ExpectedTurn) -> None:
        """One turn, compared with what was told. Never raises: what goes wrong is in the result."""
        request = ChaosRequest(
            name=f"conversation {told.conversation}, turn {told.turn}",
            chat=False,
            prompt=told.prompt,
            max_tokens=turn.stopping.max_tokens,
            n=1,
            seed=turn.seed,
            temperature=turn.sampling.temperature,
            top_p=turn.sampling.top_p,
        )
        why = ""
        for _ in range(_TRIES):
            heard = await self._client.ask(request, cache_salt="", manner=WHOLE)
            if heard.end == DONE:
                self._judge(heard, ExpectedAnswer({0: told.text}, {}, len(told.tokens)))
                return
            why = heard.reason
            if 200 < heard.status < 500:
                break
            self._result.asked_again += 1
            await asyncio.sleep(_AGAIN_S)
        self._result.failed.append(f"{request.name}: {why}")

    async def close(self) -> None:
        await self._client.aclose()

    def _judge(self, heard: ReceivedAnswer, right: ExpectedAnswer) -> None:
        result = self._result
        result.turns += 1
        if why := judge(heard, right, may_break=False).why:
            result.wrong.append(why)
        if heard.usage is not None:
            result.prompt_tokens += heard.usage.prompt_tokens
            result.found.update(heard.usage.cached_by_tier)
