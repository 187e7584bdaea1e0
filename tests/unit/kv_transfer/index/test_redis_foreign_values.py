"""Whatever somebody writes under one service's keys, with the Redis user of that service: the router goes on, and
knows of all other services what it knew. Against a real server."""

import asyncio
import dataclasses
import logging
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis

from kv_transfer.index.redis_connection import CommandRefused
from kv_transfer.index.redis_index import RedisIndex
from kv_transfer.index.redis_nodes import RedisNodes
from kv_transfer.index.redis_publisher import RedisPublisher
from kv_transfer.index.redis_scripts import HOLDERS, HOLDERS_MAX, ID_BYTES_MAX, RECORD_BYTES_MAX, RECORDS_MAX
from kv_transfer.index.redis_settings import RedisSettings
from kv_transfer.index.redis_wire import encoded
from tandem.apps.simulation.loop import LoopClock
from tandem.core.errors import TandemError
from tandem.core.metrics import NullMeter
from tests.worlds.redis_heard import URL, Heard, on_stage
from tests.worlds.redis_stage import RedisServer, hello, holder_of, index_of, needs_redis, settings, until

NAMES = tuple(bytes((0, number)) + bytes(14) for number in range(20))
LATE = 99_999_999_999_999
NEVER = 0xFFFFFFFF
Writes = Callable[[redis.Redis], object]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


def entry(number: int) -> bytes:
    return struct.pack(">IBI", number, 1, NEVER)


def bucket(admin: redis.Redis, at: int, value: bytes) -> None:
    name = NAMES[at]
    admin.hset("b.svc:b" + name[:2].decode(), name[2:], value)


def record(admin: redis.Redis, value: bytes) -> None:
    """A name that a holder with this record has."""
    admin.set("b.svc:h7", value)
    bucket(admin, 0, entry(7))


def record_of_another_type(admin: redis.Redis) -> None:
    admin.lpush("b.svc:h7", "x")
    bucket(admin, 0, entry(7))


def many_records(admin: redis.Redis) -> None:
    for at in range(20):
        numbers = range(7 * at, 7 * at + 7)
        bucket(admin, at, b"".join(map(entry, numbers)))
        for number in numbers:
            admin.set(f"b.svc:h{number}", bytes(RECORD_BYTES_MAX + 1))


DEEP = b"\x81\xa5other" + b"\x91" * 60_000 + b"\xc0"
"""A record with a field that is nested too deep to be skipped."""
FOREIGN: dict[str, Writes] = {
    "an id that is not text": lambda admin: admin.zadd("b.svc:z", {b"\xff\xfe": LATE}),
    "a long id": lambda admin: admin.zadd("b.svc:z", {bytes(1 << 20): LATE}),
    "many ids": lambda admin: admin.zadd("b.svc:z", {f"w{number}": LATE for number in range(HOLDERS_MAX + 9)}),
    "ids of another type": lambda admin: admin.set("b.svc:z", "x"),
    "a bucket of another type": lambda admin: admin.set("b.svc:b" + NAMES[0][:2].decode(), "x"),
    "a record of another type": record_of_another_type,
    "no record": lambda admin: record(admin, b""),
    "a record that is not text": lambda admin: record(admin, encoded(hello("w")).replace(b"r1", b"\xff\xfe")),
    "a deep record": lambda admin: record(admin, DEEP),
    "a long record": lambda admin: record(admin, bytes(1 << 20)),
    "many long records": many_records,
    "a torn entry": lambda admin: bucket(admin, 0, b"x" * 11),
    "a long entry": lambda admin: bucket(admin, 0, b"x" * (1 << 20)),
}


@asynccontextmanager
async def living(*parts: RedisIndex | RedisPublisher) -> AsyncIterator[None]:
    """While these run, none of which may end by itself."""
    tasks = [asyncio.ensure_future(part.run()) for part in parts]
    try:
        yield
    finally:
        ended = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not ended, "one ended by itself"


@needs_redis
@pytest.mark.parametrize("writes", FOREIGN.values(), ids=FOREIGN)
async def test_whatever_lies_under_one_services_keys_harms_no_other(
    server: RedisServer, writes: Writes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    writes(server.admin)
    mine = dataclasses.replace(settings(server), service="a.svc")
    index = index_of(server, settings(server))
    holder = holder_of(server, "w", mine)
    holder.change("hbm", NAMES)
    index.holders("b.svc")
    async with living(index, holder.publisher):
        await holder.settled()
        await until(lambda: index.usable)
        for _ in range(3):
            assert set(await index.longest(NAMES, "b.svc")) <= {"w"}
            assert index.usable
            found = await index.longest(NAMES, "a.svc")
            assert found["w"].held.total == len(NAMES)
        # Of a service that is asked for later, after the one with foreign values was looked at.
        async with asyncio.timeout(60.0):
            while index.holders("a.svc") != {"w"}:
                await asyncio.sleep(0.01)
                index.holders("b.svc")
        assert index.usable
    assert "redis_lost" not in caplog.messages


@needs_redis
async def test_of_one_service_no_more_is_taken_than_an_answer_may_have(server: RedisServer) -> None:
    admin, index = server.admin, index_of(server, dataclasses.replace(settings(server), service="b.svc"))
    FOREIGN["many ids"](admin)
    admin.zadd("b.svc:z", {b"i" * ID_BYTES_MAX: 1e14 - 2, b"i" * (ID_BYTES_MAX + 1): 1e14 - 2})
    for number in range(7 * 20):
        admin.set(f"b.svc:h{number}", encoded(hello(f"w{number}")))
    async with living(index):
        await until(lambda: bool(index.holders()))
        told = index.holders()
        assert len(told) == HOLDERS_MAX - 1
        assert "i" * ID_BYTES_MAX in told
        for at in range(20):
            bucket(admin, at, b"".join(map(entry, range(7 * at, 7 * at + 7))))
        assert set(await index.longest(NAMES)) == {f"w{number}" for number in range(7)}
        bucket(admin, 1, b"x" * 72)
        assert (await index.longest(NAMES))["w0"].held.total == 1
    assert RECORDS_MAX >= 7 * 20


def refused() -> Exception:
    return CommandRefused("ResponseError: WRONGTYPE Operation against a key holding the wrong kind of value")


def test_an_error_answer_is_not_a_lost_node() -> None:
    async def main(node: Heard) -> None:
        nodes = RedisNodes(RedisSettings(URL), (HOLDERS,), NullMeter(), node.connect)
        task = asyncio.ensure_future(nodes.run())
        await nodes.ready()
        for _ in range(10):
            node.refusal = refused
            with pytest.raises(TandemError, match=f"Redis at {URL} refused .*WRONGTYPE") as caught:
                await nodes.evaluate(HOLDERS, ("t:",), 0.005)
            node.refusal = None
            assert caught.value.code == "conflict"
            assert nodes.usable
        assert len(node.connected) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    on_stage(main)


def test_what_redis_refuses_to_a_holder_is_not_written_again_and_again() -> None:
    async def main(node: Heard) -> None:
        choices = RedisSettings(URL)
        publisher = RedisPublisher(choices, hello("w"), dict, LoopClock(node.loop), NullMeter(), node.connect)
        asked = node.server.ask

        def answer(*command: str | bytes | int) -> object:
            if command[0] == "EVALSHA":
                raise refused()
            return asked(*command)

        node.server.ask = answer  # type: ignore[method-assign]
        task = asyncio.ensure_future(publisher.run())
        await asyncio.sleep(9.0)
        assert node.times("REGISTER") == [0.0, choices.retry_max_s]
        node.server.ask = asked  # type: ignore[method-assign]
        await asyncio.sleep(2.0)
        assert node.times("REGISTER") == [0.0, choices.retry_max_s, 2 * choices.retry_max_s]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    on_stage(main)
