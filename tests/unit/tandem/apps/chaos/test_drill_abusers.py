"""Clients of a drill that misuse a platform: all they do is done, counted, over when it is to be, and judged."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from tandem.apps.chaos.drill.abusers import Abusers
from tandem.apps.client.http import Target

MISUSES = 9


class Door:
    """Answers every request with one status, and remembers what it was sent."""

    def __init__(self, status: str) -> None:
        self._status = status
        self.sent: list[bytes] = []
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self._answer(reader, writer)
        finally:
            self.open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begin = await reader.readexactly(8)
        self.sent.append(begin)
        if begin.startswith(b"\x16"):
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            await reader.read()
        head = begin + await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        self.sent.append(head + await reader.readexactly(length))
        writer.write(f"HTTP/1.1 {self._status}\r\ncontent-length: 2\r\n\r\n{{}}".encode())


Start = Callable[[str], "asyncio.Future[tuple[Door, Target]]"]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    servers: list[asyncio.Server] = []

    async def begin(status: str) -> tuple[Door, Target]:
        door = Door(status)
        servers.append(await asyncio.start_server(door.serve, "127.0.0.1", 0))
        return door, Target("127.0.0.1", servers[-1].sockets[0].getsockname()[1], False, "", "the key")

    yield lambda status: asyncio.ensure_future(begin(status))
    for server in servers:
        server.close()


async def misuse(target: Target, abusers: int, first: int, until: Callable[[Abusers], bool]) -> Abusers:
    """Abusers at work until something is so, and then stopped."""
    crowd = Abusers(target, "the model")
    crowd.begin(abusers, first)
    async with asyncio.timeout(100.0):
        while not until(crowd):  # noqa: ASYNC110  (what is waited for is on the other side of sockets)
            await asyncio.sleep(0.01)
        crowd.stop()
        await crowd.ended()
    return crowd


async def test_every_misuse_is_done_by_one_of_as_many_abusers(start: Start) -> None:
    door, target = await start("400 Bad Request")
    crowd = await misuse(target, MISUSES, 4, lambda crowd: crowd.answered.total() >= MISUSES)
    assert {"left", "400"} <= set(crowd.answered)
    assert crowd.problem() == ""
    assert any(each.startswith(b"\x16\x03\x01") for each in door.sent)
    whole = [each for each in door.sent if b'"the model"' in each]
    assert all(b"Bearer the key" in each for each in whole)
    for wanted in (b'"stream":true', b'"timeout":0.002', b'"n":5000', b'"messages":[', b"word word"):
        assert any(wanted in each for each in whole), wanted


async def test_abusers_go_from_one_misuse_to_the_next(start: Start) -> None:
    _, target = await start("400 Bad Request")
    crowd = await misuse(target, 1, 3, lambda crowd: crowd.answered.total() >= 4)
    assert crowd.answered == {"400": 4}, "no time, many messages, a long prompt, many answers"


async def test_nobody_is_connected_once_they_are_stopped(start: Start) -> None:
    door, target = await start("200 OK")
    await misuse(target, 2, 2, lambda _: door.open > 0)
    async with asyncio.timeout(100.0):
        while door.open:  # noqa: ASYNC110  (the other side learns of it when it is told)
            await asyncio.sleep(0.01)


async def test_an_internal_error_is_a_problem_whoever_caused_it(start: Start) -> None:
    _, target = await start("500 Internal Server Error")
    crowd = await misuse(target, 1, 3, lambda crowd: crowd.answered.total() >= 2)
    assert crowd.problem() == f"{crowd.answered['500']} misuses were answered with 500"


async def test_a_platform_that_is_gone_is_misused_in_vain(start: Start) -> None:
    crowd = await misuse(Target("127.0.0.1", 1, False, ""), 2, 0, lambda crowd: crowd.answered.total() >= 2)
    assert set(crowd.answered) == {"closed"}
    assert crowd.problem() == ""
