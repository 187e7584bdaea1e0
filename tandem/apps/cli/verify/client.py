"""Asks one side all prompts, greedily and with log-probabilities."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tandem.apps.cli.router_client import refusal, send_request
from tandem.apps.cli.verify.prompts import Prompt
from tandem.apps.cli.verify.replies import Reply, read_reply
from tandem.apps.client.http import Target
from tandem.core.errors import TandemError

_IDS = "return_token_ids"


@dataclass(frozen=True)
class QuerySettings:
    """The settings with which every prompt is sent."""

    tokens: int
    top: int
    at_once: int
    timeout_s: float


class VerifyClient:
    """The client of one side. It does not ask for token ids where the server cannot report them."""

    def __init__(self, name: str, target: Target, model: str, asking: QuerySettings) -> None:
        self._name = name
        self._target = target
        self._model = model
        self._asking = asking
        self._ids = True

    async def all(self, prompts: Sequence[Prompt], done: Callable[[], None]) -> tuple[Reply, ...]:
        """The replies in order; `done` is called after each. Raises `engine_failed` with side and prompt,
        `link_lost`."""
        turns = asyncio.Semaphore(self._asking.at_once)

        async def one(number: int, prompt: Prompt) -> Reply:
            async with turns:
                reply = await self._reply(number, prompt)
                done()
                return reply

        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(one(number, prompt)) for number, prompt in enumerate(prompts)]
        return tuple(task.result() for task in asked)

    async def _reply(self, number: int, prompt: Prompt) -> Reply:
        status, body = await self._post(prompt)
        if status == 400 and self._ids and _IDS in refusal(status, body):
            self._ids = False
            status, body = await self._post(prompt)
        if status != 200:
            reason = refusal(status, body)
            raise TandemError("engine_failed", f"{self._name} did not answer prompt {number}: {reason}")
        try:
            return read_reply(body)
        except TandemError as error:
            raise TandemError(error.code, f"{self._name}, prompt {number}: {error.message}") from error

    async def _post(self, prompt: Prompt) -> tuple[int, bytes]:
        asking = self._asking
        asked: dict[str, Any] = {"model": self._model, "max_tokens": asking.tokens, "temperature": 0}
        if self._ids:
            asked[_IDS] = True
        if prompt.messages is not None:
            path = "/v1/chat/completions"
            asked |= {"messages": prompt.messages, "logprobs": True, "top_logprobs": asking.top}
        else:
            path = "/v1/completions"
            asked |= {"prompt": prompt.prompt, "logprobs": asking.top}
        return await send_request(self._target, "POST", path, msgspec.json.encode(asked), asking.timeout_s)
