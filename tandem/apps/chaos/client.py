"""Clients whose answers are judged: one request each, which never raises for what happens to it."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import msgspec

from router.generation import RequestStatus
from tandem.apps.chaos.request import ChaosRequest
from tandem.apps.chaos.response import BROKEN, DONE, FAILED, REFUSED, WITHOUT_END, ReceivedAnswer
from tandem.apps.cli.router_client import RunningStatus, parse_status
from tandem.apps.client.answer import RequestRefused, StreamFailed
from tandem.apps.client.http import Client, Target
from tandem.apps.client.stream import AnswerStream, Resumption, whole_answer
from tandem.apps.client.wire import BadResponse

PLAIN: Final = "plain"
"""Asks for a stream."""
WHOLE: Final = "whole"
"""Asks for the answer in one body."""
RESUMES: Final = "returns"
"""Asks for a stream that can be resumed, and comes back when the connection breaks."""
LEAVES: Final = "leaves"
"""Asks for such a stream too, but never comes back."""

_RESUMPTION: Final = Resumption(every_s=0.1, within_s=12.0)


class ChaosClient:
    """Asks one platform. Ids of requests begin with `name`; a request that has not ended after `end_within_s` seconds
    has no end."""

    def __init__(self, target: Target, model: str, name: str, end_within_s: float) -> None:
        self._client = Client(target)
        self._asking = Client(target)
        self._model = model
        self._name = name
        self._end_within_s = end_within_s
        self._count = 0

    async def aclose(self) -> None:
        await self._client.aclose()
        await self._asking.aclose()

    def next_id(self) -> str:
        self._count += 1
        return f"{self._name}-{self._count}"

    async def ask(
        self,
        ask: ChaosRequest,
        began: Callable[[ReceivedAnswer], None] = lambda _heard: None,
        cache_salt: str | None = None,
        manner: str = PLAIN,
        end_within_s: float | None = None,
    ) -> ReceivedAnswer:
        """One request to its end, whatever that is. `began` gets the record before anything is sent.

        Without a `cache_salt` the request has one of its own, so that caches hold nothing of it; an empty one lets it
        find what others have left. `end_within_s` takes the place of the client's own bound.
        """
        now, within_s = asyncio.get_running_loop().time, end_within_s or self._end_within_s
        heard = ReceivedAnswer(ask, self.next_id(), now())
        began(heard)
        salt = heard.request_id if cache_salt is None else cache_salt
        try:
            async with asyncio.timeout(within_s):
                await self._listen(heard, salt, manner)
        except TimeoutError:
            heard.ended(WITHOUT_END, now(), f"not ended after {within_s:g} s")
        return heard

    async def _listen(self, heard: ReceivedAnswer, salt: str, manner: str) -> None:
        """Take in the answer, and how it ends."""
        now, ask = asyncio.get_running_loop().time, heard.ask
        body = ask.body(self._model, salt, stream=manner != WHOLE, resumable=manner in (RESUMES, LEAVES))
        resumption = _RESUMPTION if manner == RESUMES else None
        stream = AnswerStream(self._client, ask.path, body, heard.request_id, resumption)
        try:
            if manner == WHOLE:
                heard.take(await whole_answer(self._client, ask.path, body, heard.request_id))
            else:
                async with aclosing(stream.pieces()) as pieces:
                    async for piece in pieces:
                        heard.take(piece)
            if stream.ended or manner == WHOLE:
                heard.ended(DONE, now())
            else:
                heard.ended(BROKEN, now(), "the stream ended without its end mark", "cut off")
        except RequestRefused as refused:
            heard.status = refused.status
            if stream.returns and not stream.last_event_id:
                heard.ended(BROKEN, now(), "no worker had it yet when its router died", refused.kind)
            else:
                heard.ended(FAILED, now(), str(refused), refused.kind)
        except StreamFailed as failed:
            heard.ended(FAILED, now(), str(failed), failed.kind)
        except ConnectionRefusedError as error:
            heard.ended(REFUSED, now(), "the connection was refused", type(error).__name__)
        except (OSError, BadResponse, msgspec.DecodeError) as error:
            heard.ended(BROKEN, now(), str(error) or type(error).__name__, type(error).__name__)
        heard.came_back = stream.returns > 0

    async def standing(self, request_id: str) -> RequestStatus | None:
        """The status of a running request; None when the router does not know it as running. Raises `OSError`."""
        async with await self._asking.exchange("GET", f"/v1/requests/{request_id}") as answer:
            body = await answer.read()
            found = parse_status(body) if answer.status == 200 else None
            return found.standing if isinstance(found, RunningStatus) else None
