"""Clients that misuse the platform while a fault strikes it. No other client may notice them, and none may break
anything."""

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

import msgspec

from tandem.apps.client.http import Client, Target
from tandem.apps.client.wire import BadResponse

_TURN_S: Final = 0.5
"""Maximum seconds that one misuse lasts."""
_PAUSE_S: Final = 0.05
_SMALL_BUFFER: Final = 4096
_HEAD_EVERY_S: Final = 0.2
_TOKENS: Final = 400
_MESSAGES: Final = 8_000
_LONG_WORDS: Final = 60_000
_TOO_MANY: Final = 5_000
_PATH: Final = "/v1/completions"

Misuse = Callable[[], Awaitable[str]]


class Abusers:
    """A number of clients, each of which goes from one misuse to the next until all are stopped.

    `answered` counts the results: the status, `held` for a misuse that went on to the end of its turn, or another
    word for the result.
    """

    def __init__(self, target: Target, model: str) -> None:
        self._target = target
        self._model = model
        self._client = Client(target)
        self._tasks: list[asyncio.Task[None]] = []
        self.answered: Counter[str] = Counter()
        self._misuses: tuple[Misuse, ...] = (
            self._hang_up,
            self._leave_at_once,
            self._never_read,
            self._no_time,
            self._many_messages,
            self._long_prompt,
            self._many_answers,
            self._slow_head,
            self._no_http,
        )

    def begin(self, abusers: int, first: int) -> None:
        """Start that many, each with another misuse, the first with number `first`. Where the platform speaks TLS,
        some of what they send is no handshake either."""
        for number in range(first, first + abusers):
            self._tasks.append(asyncio.create_task(self._abuse(number), name="drill abuser"))

    def stop(self) -> None:
        """Hang up on everything."""
        for task in self._tasks:
            task.cancel()

    async def ended(self) -> None:
        """After `stop`: wait until every abuser has disconnected."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    def problem(self) -> str:
        """The answers that must never be given, in words; empty when there were none."""
        wrong = {status: times for status, times in self.answered.items() if status == "500"}
        return "; ".join(f"{times} misuses were answered with {status}" for status, times in wrong.items())

    async def _abuse(self, first: int) -> None:
        for number in count(first):
            misuse = self._misuses[number % len(self._misuses)]
            try:
                async with asyncio.timeout(_TURN_S):
                    came = await misuse()
            except TimeoutError:
                came = "held"
            except (OSError, BadResponse):
                came = "closed"
            self.answered[came] += 1
            await asyncio.sleep(_PAUSE_S)

    # -- what a client must not do, but can --

    async def _hang_up(self) -> str:
        """Hang up in the middle of a stream."""
        exchange = await self._client.exchange("POST", _PATH, self._stream())
        async with exchange as answer:
            async for _ in answer.pieces():
                break
            return str(answer.status)

    async def _leave_at_once(self) -> str:
        async with _Raw(self._target) as raw:
            raw.post(self._stream())
            await raw.writer.drain()
        return "left"

    async def _never_read(self) -> str:
        async with _Raw(self._target) as raw:
            raw.shrink()
            raw.post(self._stream(logprobs=5, n=2))
            await asyncio.sleep(_TURN_S)
        return "held"

    async def _no_time(self) -> str:
        return await self._ask({"prompt": "now", "timeout": 0.002, "max_tokens": _TOKENS})

    async def _many_messages(self) -> str:
        said = [{"role": "user", "content": "a"}] * _MESSAGES
        return await self._ask({"messages": said, "max_tokens": 4}, "/v1/chat/completions")

    async def _long_prompt(self) -> str:
        return await self._ask({"prompt": "word " * _LONG_WORDS, "max_tokens": 4})

    async def _many_answers(self) -> str:
        return await self._ask({"prompt": "many", "max_tokens": 4, "n": _TOO_MANY})

    async def _slow_head(self) -> str:
        async with _Raw(self._target) as raw:
            raw.writer.write(b"POST /v1/completions HTTP/1.1\r\nx: ")
            while not raw.reader.at_eof():
                raw.writer.write(b"y")
                await asyncio.sleep(_HEAD_EVERY_S)
        return "cut off"

    async def _no_http(self) -> str:
        async with _Raw(self._target) as raw:
            raw.writer.write(b"\x16\x03\x01" + b"\x00" * 1_000)
            line = await raw.reader.readline()
        return line[9:12].decode("latin-1") or "closed"

    def _stream(self, **asked: object) -> bytes:
        return self._body({"prompt": "again", "stream": True, "max_tokens": _TOKENS, "ignore_eos": True, **asked})

    async def _ask(self, asked: dict[str, object], path: str = _PATH) -> str:
        exchange = await self._client.exchange("POST", path, self._body(asked))
        async with exchange as answer:
            await answer.read()
            return str(answer.status)

    def _body(self, asked: dict[str, object]) -> bytes:
        return msgspec.json.encode({"model": self._model, **asked})


class _Raw:
    """A connection of its own, on which anything can be sent; closed without a goodbye."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __init__(self, target: Target) -> None:
        self._target = target

    async def __aenter__(self) -> "_Raw":
        self.reader, self.writer = await asyncio.open_connection(self._target.host, self._target.port)
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.writer.transport.abort()

    def shrink(self) -> None:
        """Take little that is not read."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def post(self, body: bytes) -> None:
        head = [
            f"POST {self._target.base}{_PATH} HTTP/1.1",
            f"Host: {self._target.authority}",
            f"Content-Length: {len(body)}",
            *([f"Authorization: Bearer {self._target.key}"] if self._target.key else []),
        ]
        self.writer.write("\r\n".join([*head, "", ""]).encode() + body)
