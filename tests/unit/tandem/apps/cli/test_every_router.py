"""A request is found at whichever router of a platform had it."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tandem.apps.cli.every_router import fetch_status_from, routers_behind
from tandem.apps.cli.registry import MemberEntry, PlatformEntry, open_registry, process_start
from tandem.apps.cli.router_client import RunningStatus
from tandem.apps.client.http import Target
from tandem.core.errors import TandemError

RUNNING = b'{"status":"running","stage":"decode","prefill":null,"decode":"w","tokens":3,"attempts":1}'
UNKNOWN = b'{"error":{"message":"request r is not known","code":"not_found"}}'


@asynccontextmanager
async def router(status: int, body: bytes) -> AsyncIterator[Target]:
    """A router that gives one answer to every request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status} Said\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield Target("127.0.0.1", server.sockets[0].getsockname()[1], False, "")


@pytest.mark.asyncio
async def test_the_others_are_asked_where_the_first_knows_nothing() -> None:
    async with router(404, UNKNOWN) as first, router(404, UNKNOWN) as second, router(200, RUNNING) as third:
        found = await fetch_status_from(first, (second, third), "r")
        assert isinstance(found, RunningStatus)
        assert found.tokens == 3
        with pytest.raises(TandemError, match="request r is not known"):
            await fetch_status_from(first, (second,), "r")


@pytest.mark.asyncio
async def test_a_first_one_that_does_not_answer_is_said() -> None:
    async with router(200, RUNNING) as there:
        with pytest.raises(TandemError) as lost:
            await fetch_status_from(Target("127.0.0.1", 1, False, ""), (there,), "r")
        assert lost.value.code == "link_lost"


def test_routers_are_those_of_the_platform_at_the_url(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    at = Target("127.0.0.1", 8000, False, "/llm", "key")
    assert routers_behind(at, environment) == ()
    members = [
        ("a", "router", "10.0.0.1:41"),
        ("b", "router", "127.0.0.1:8000"),
        ("c", "router", ""),
        ("w", "decode", "10.0.0.1:5"),
    ]
    pid = os.getpid()
    open_registry(environment).publish(
        PlatformEntry(
            url="http://127.0.0.1:8000/llm",
            run_directory="/r",
            control="/r/c",
            members=tuple(MemberEntry(name, role, 1, "ready", address, "", 0) for name, role, address in members),
            pid=pid,
            began=process_start(pid) or 0,
        )
    )
    assert routers_behind(at, environment) == (Target("10.0.0.1", 41, False, "", "key"),)
