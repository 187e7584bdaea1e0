"""Asks a platform the turns of conversations, again where a killed router took the connection along."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from tandem.apps.chaos.live import LivePlatform
from tandem.apps.client.http import Client
from tandem.apps.client.wire import BadResponse
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
        self._model = live.model
        self._client = Client(live.platform.target)
        self._result = result

    async def ask(self, turn: UserTurn, told: ExpectedTurn) -> None:
        """One turn, compared with what was told. Never raises: what goes wrong is in the result."""
        body = msgspec.json.encode(
            {
                "model": self._model,
                "prompt": list(told.prompt),
                "max_tokens": turn.stopping.max_tokens,
                "ignore_eos": True,
                "temperature": turn.sampling.temperature,
                "top_p": turn.sampling.top_p,
                "seed": turn.seed,
            }
        )
        where = f"conversation {told.conversation}, turn {told.turn}"
        why = ""
        for _ in range(_TRIES):
            try:
                status, answer = await asyncio.wait_for(self._once(body), _ANSWER_S)
            except (OSError, BadResponse, TimeoutError) as error:
                why = f"{type(error).__name__}: {error}"
            else:
                if status == 200:
                    self._judge(where, told, answer)
                    return
                why = f"{status} {answer}"
                if status < 500:
                    break
            self._result.asked_again += 1
            await asyncio.sleep(_AGAIN_S)
        self._result.failed.append(f"{where}: {why}")

    async def close(self) -> None:
        await self._client.aclose()

    async def _once(self, body: bytes) -> tuple[int, "_Answer | str"]:
        async with await self._client.exchange("POST", "/v1/completions", body) as answer:
            data = await answer.read()
            if answer.status != 200:
                return answer.status, data.decode(errors="replace")[:300]
            return 200, msgspec.json.decode(data, type=_Answer)

    def _judge(self, where: str, told: ExpectedTurn, answer: "_Answer | str") -> None:
        assert isinstance(answer, _Answer)
        result = self._result
        result.turns += 1
        (choice,) = answer.choices
        if choice.text != told.text or answer.usage.completion_tokens != len(told.tokens):
            result.wrong.append(f"{where}: {choice.text[:60]!r} instead of {told.text[:60]!r}")
        result.prompt_tokens += answer.usage.prompt_tokens
        result.found.update(answer.usage.prompt_tokens_details.cached_tokens_by_tier)


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    cached_tokens_by_tier: dict[str, int] = {}


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details = msgspec.field(default_factory=_Details)


class _Choice(msgspec.Struct):
    text: str


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage
