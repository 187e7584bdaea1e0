"""The clients of a drill: one streamed request each, which never raises for what happens to it."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from router.generation import RequestStatus
from tandem.apps.chaos.drill.events import ResumableEvents
from tandem.apps.chaos.drill.requests import DrillRequest
from tandem.apps.chaos.response import BROKEN, FAILED, REFUSED, WITHOUT_END, StreamedResponse, refusal_of
from tandem.apps.cli.router_client import RunningStatus, parse_status
from tandem.apps.client.http import Client, Response, Target
from tandem.apps.client.wire import BadResponse

PLAIN: Final = "plain"
RESUMES: Final = "returns"
"""Asks for a stream that can be resumed, and comes back when the connection breaks."""
LEAVES: Final = "leaves"
"""Asks for such a stream too, but never comes back."""

_RETURN_EVERY_S: Final = 0.1
_RETURN_WITHIN_S: Final = 12.0


class ChaosClient:
    """Asks one platform. Every request gets an id and, unless given one, a cache salt of its own."""

    def __init__(self, target: Target, model: str, run_id: str, end_within_s: float) -> None:
        self._client = Client(target)
        self._asking = Client(target)
        self._model = model
        self._run_id = run_id
        self._end_within_s = end_within_s
        self._count = 0

    async def aclose(self) -> None:
        await self._client.aclose()
        await self._asking.aclose()

    def next_id(self) -> str:
        self._count += 1
        return f"drill-{self._run_id}-{self._count}"

    async def ask(
        self,
        ask: DrillRequest,
        began: Callable[[StreamedResponse], None] = lambda _heard: None,
        cache_salt: str | None = None,
        manner: str = PLAIN,
    ) -> StreamedResponse:
        """One request to its end, whatever that is. `began` gets the record before anything is sent."""
        loop = asyncio.get_running_loop()
        heard = StreamedResponse(ask, self.next_id(), loop.time())
        began(heard)
        body = ask.body(self._model, cache_salt or heard.request_id, resumable=manner != PLAIN)
        try:
            async with asyncio.timeout(self._end_within_s):
                await self._listen(heard, "POST", ask.path, body, {"X-Request-Id": heard.request_id})
                if manner == RESUMES and heard.end == BROKEN:
                    await self._return(heard)
        except TimeoutError:
            heard.goes_on()
            heard.ended(WITHOUT_END, loop.time(), f"not ended after {self._end_within_s:g} s")
        return heard

    async def _return(self, heard: StreamedResponse) -> None:
        """Reconnect until the rest of the answer has arrived. A request of which nothing has arrived may be unknown:
        when no worker had it yet, it died with its router."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _RETURN_WITHIN_S
        heard.came_back = True
        while heard.end in (BROKEN, REFUSED, FAILED) and not heard.told_error and loop.time() < deadline:
            await asyncio.sleep(_RETURN_EVERY_S)
            headers = {"Last-Event-ID": heard.last_event_id} if heard.last_event_id else {}
            heard.goes_on()
            await self._listen(heard, "GET", f"/v1/requests/{heard.request_id}/events", b"", headers)
        if heard.end == FAILED and not heard.last_event_id and not heard.told_error:
            heard.goes_on()
            heard.ended(BROKEN, loop.time(), "no worker had it yet when its router died")

    async def _listen(
        self, heard: StreamedResponse, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> None:
        now = asyncio.get_running_loop().time
        try:
            async with await self._client.exchange(method, path, body, headers) as answer:
                await _read(heard, answer)
        except ConnectionRefusedError:
            heard.ended(REFUSED, now(), "the connection was refused")
        except (OSError, BadResponse, msgspec.DecodeError) as error:
            heard.ended(BROKEN, now(), str(error) or type(error).__name__)

    async def standing(self, request_id: str) -> RequestStatus | None:
        """The status of a running request; None when the router does not know it as running. Raises `OSError`."""
        async with await self._asking.exchange("GET", f"/v1/requests/{request_id}") as answer:
            body = await answer.read()
            found = parse_status(body) if answer.status == 200 else None
            return found.standing if isinstance(found, RunningStatus) else None


async def _read(heard: StreamedResponse, answer: Response) -> None:
    now = asyncio.get_running_loop().time
    if answer.status != 200:
        heard.ended(FAILED, now(), f"{answer.status} {refusal_of(await answer.read())}")
        return
    events = ResumableEvents(heard.last_event_id)
    async for piece in answer.pieces():
        for sent in events.feed(piece):
            heard.take(sent.data, now())
            heard.last_event_id = sent.event_id
    heard.ended(BROKEN, now(), "the stream ended without its end mark")
