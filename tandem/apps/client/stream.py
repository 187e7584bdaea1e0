"""Asking for a completion: its answer as typed pieces with the time of each, resumed where asked for, or whole.

Every client of ours that reads a stream's text reads it here; tests have readers of their own.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from tandem.apps.client.answer import Piece, RequestRefused, StreamFailed, read_piece
from tandem.apps.client.http import Client, PendingResponse
from tandem.apps.client.sse import EventParser, ServerSentEvent
from tandem.apps.client.wire import BadResponse

_END_MARK: Final = b"[DONE]"


@dataclass(frozen=True)
class Resumption:
    """How a client comes back to a stream that broke: it tries every `every_s` seconds for `within_s` seconds."""

    every_s: float = 0.1
    within_s: float = 12.0


class AnswerStream:
    """One request for a stream, and what has come of it besides its pieces.

    `ended` says whether the end mark has arrived. With a `resumption` the body has to ask for a resumable stream and
    `request_id` has to name the request; `returns` counts how often the client has come back, and `last_event_id` is
    after which event it goes on.
    """

    def __init__(
        self, client: Client, path: str, body: bytes, request_id: str = "", resumption: Resumption | None = None
    ) -> None:
        assert request_id or resumption is None, "a stream is resumed by the id of its request"
        self._client = client
        self._path = path
        self._body = body
        self._request_id = request_id
        self._resumption = resumption
        self._failure: StreamFailed | None = None
        self._give_up_s = 0.0
        self.ended = False
        self.returns = 0
        self.last_event_id = ""

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Ask, and yield what arrives until the answer has ended. Closing the generator early (`aclosing`) closes the
        connection, which cancels a request that cannot be resumed.

        Raises `RequestRefused` for another status than 200, `StreamFailed` for an error event, `OSError` without a
        connection or when it breaks, and `BadResponse` or `msgspec.DecodeError` for bytes that are no such answer.
        With a resumption these are raised once the client no longer comes back.
        """
        while True:
            try:
                async with await self._exchange() as answer:
                    if answer.status != 200:
                        raise RequestRefused(answer.status, await answer.read(), answer.retry_after_s)
                    events = EventParser(self.last_event_id)
                    async for received in answer.pieces():
                        for piece in self._take(events.feed(received)):
                            yield piece
                if self._over or self._resumption is None:
                    break
                raise ConnectionResetError("the stream ended without its end mark")
            except (OSError, BadResponse, msgspec.DecodeError, RequestRefused) as error:
                if self._over:
                    break
                if not await self._come_back(error):
                    raise
        if self._failure is not None:
            raise self._failure

    @property
    def _over(self) -> bool:
        return self.ended or self._failure is not None

    async def _exchange(self) -> PendingResponse:
        if not self.returns:
            return await self._client.exchange("POST", self._path, self._body, _named(self._request_id))
        headers = {"Last-Event-ID": self.last_event_id} if self.last_event_id else {}
        return await self._client.exchange("GET", f"/v1/requests/{self._request_id}/events", b"", headers)

    def _take(self, events: list[ServerSentEvent]) -> Iterator[Piece]:
        """The pieces in these events. An error event is kept until the body has been read."""
        now_s = asyncio.get_running_loop().time()
        for event in events:
            if event.data == _END_MARK:
                self.ended = True
                continue
            try:
                piece = read_piece(event.data, now_s)
            except StreamFailed as failure:
                self._failure = self._failure or failure
                continue
            self.last_event_id = event.event_id
            yield piece

    async def _come_back(self, error: Exception) -> bool:
        """Whether to ask for the rest, after a pause. What was refused at once has nothing to come back to."""
        if self._resumption is None:
            return False
        now_s = asyncio.get_running_loop().time()
        if not self.returns:
            if isinstance(error, RequestRefused | ConnectionRefusedError):
                return False
            self._give_up_s = now_s + self._resumption.within_s
        if now_s >= self._give_up_s:
            return False
        await asyncio.sleep(self._resumption.every_s)
        self.returns += 1
        return True


async def whole_answer(client: Client, path: str, body: bytes, request_id: str = "") -> Piece:
    """Ask for an answer in one body. Raises what `AnswerStream.pieces` raises without a resumption."""
    async with await client.exchange("POST", path, body, _named(request_id)) as answer:
        content = await answer.read()
        if answer.status != 200:
            raise RequestRefused(answer.status, content, answer.retry_after_s)
        return read_piece(content, asyncio.get_running_loop().time())


def _named(request_id: str) -> dict[str, str]:
    """The header with which a client names its request; none for an empty id."""
    return {"X-Request-Id": request_id} if request_id else {}
