"""What the index needs of Redis: the same commands to a real server and to the simulation's stand-in.

Both are given every script of the index in random order, with few names, holders and buckets so that they meet, with
leases and entries that end meanwhile, and with data that gets lost. The answers must be equal, but for the second in
which they were given.
"""

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kv_transfer.index.redis_client import RedisClient
from kv_transfer.index.redis_connection import Argument, RedisConnection, RedisFailed, ScriptUnknown
from kv_transfer.index.redis_nodes import _digest
from kv_transfer.index.redis_scripts import (
    CHANGE,
    ENTRIES_MAX,
    ENTRY,
    HOLDERS,
    LOOK_UP,
    REGISTER,
    RELEASE,
    RENEW,
    SWEEP,
)
from tandem.apps.simulation.redis_node import RedisNode
from tandem.apps.simulation.redis_scripts import SCRIPTS
from tandem.link.memory_link import InstantPolicy
from tandem.process.system import SystemClock
from tests.worlds.redis_stage import RedisServer, needs_redis, settings

pytestmark = needs_redis
PREFIX = b"t:"
NAMES = [bytes((0, at % 3)) + bytes((at,)) * 14 for at in range(9)]
HOLDERS_MAX = 12
STEPS = 600


TIMED = """
local time = redis.call('TIME')
local function run() {} end
return {{run(), time[1] * 1000 + math.floor(time[2] / 1000)}}
"""
"""A script's answer, and the millisecond in which it ran."""


class Stopped:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.at_s = SystemClock().wall()

    def now(self) -> float:
        return self.at_s

    wall = now


@dataclass
class Both:
    """A real server and the stand-in, asked the same at the same time: that of the real one."""

    server: RedisServer
    real: RedisConnection
    node: RedisNode
    line: RedisConnection
    clock: Stopped
    log: list[str] = field(default_factory=list)

    async def run(self, script: str, *arguments: Argument) -> object:
        """The answer, which must be the same."""
        answer = await self.real.ask("EVAL", TIMED.format(script), 0, PREFIX, *arguments)
        assert isinstance(answer, list)
        self.clock.at_s = (answer[1] + 0.5) / 1000
        ours = _plain(script, await self.line.ask("EVAL", script, 0, PREFIX, *arguments))
        theirs = _plain(script, answer[0])
        self.log.append(f"{script.splitlines()[-2:]} {arguments} -> {theirs}")
        assert ours == theirs, "\n".join(self.log[-20:])
        return theirs


def _plain(script: str, answer: object) -> object:
    """An answer without what depends on when and in which order it was given."""
    if script != LOOK_UP:
        return answer
    assert isinstance(answer, list)
    (now,), rows, at = struct.unpack(">I", answer[0][:4]), [], 4
    while at < len(answer[0]):
        end = at + 1 + 9 * answer[0][at]
        entries = struct.iter_unpack(ENTRY, answer[0][at + 1 : end])
        rows.append([(number, tiers, expires - now) for number, tiers, expires in entries])
        at = end
    return rows, sorted(zip(answer[1::2], answer[2::2], strict=True))


@asynccontextmanager
async def both(folder: Path) -> AsyncIterator[Both]:
    with RedisServer(folder / "redis") as server:
        clock = Stopped()
        node = RedisNode(InstantPolicy(), clock)
        node.start()
        real = RedisClient(settings(server), server.url)
        try:
            yield Both(server, real, node, node.connect("w")(server.url), clock)
        finally:
            await real.close()


def some(draw: random.Random) -> bytes:
    return b"".join(draw.sample(NAMES, draw.randint(1, len(NAMES))))


async def test_every_script_answers_as_the_original(tmp_path: Path) -> None:
    draw = random.Random(5)
    async with both(tmp_path) as pair:
        told: list[tuple[int, bytes, bytes]] = []
        for step in range(STEPS):
            number, record, holder = draw.choice(told) if told else (1, b"nobody", b"nobody")
            match draw.randrange(12):
                case 0:
                    holder = b"%d" % draw.randrange(HOLDERS_MAX)
                    record = b"%s in its life %d" % (holder, draw.randrange(2))
                    lease_ms = draw.choice((300, 60_000, 60_000))
                    got = await pair.run(REGISTER, record, lease_ms, holder, draw.choice("01"))
                    assert isinstance(got, int)
                    told.append((got, record, holder))
                case 1:
                    await pair.run(RELEASE, number, draw.choice((record, b"another")), holder)
                case 2:
                    await pair.run(RENEW, number, draw.choice((record, record, b"another")), 60_000, holder)
                case 3:
                    await pair.run(HOLDERS)
                case 4:
                    await pair.run(SWEEP, 0, 2)
                case 5 | 6:
                    await pair.run(LOOK_UP, b"".join(draw.sample(NAMES, draw.randint(1, 5))))
                case _:
                    storing, ttl = draw.choice(("1", "1", "0")), draw.choice((1, 60, 600))
                    tier, most = draw.randrange(3), draw.choice((2, ENTRIES_MAX))
                    await pair.run(CHANGE, number, tier, ttl, some(draw), storing, most, record)
            if step % 150 == 149:
                await asyncio.sleep(1.1)


async def test_whatever_is_lost_is_lost_to_both(tmp_path: Path) -> None:
    async with both(tmp_path) as pair:
        await pair.run(REGISTER, b"w", 60_000, b"w", "1")
        await pair.run(CHANGE, 1, 0, 60, NAMES[0], "1", ENTRIES_MAX, b"w")
        pair.server.admin.flushall()
        pair.node.flush()
        assert await pair.run(RENEW, 1, b"w", 60_000, b"w") == 0
        assert await pair.run(CHANGE, 1, 0, 60, NAMES[0], "1", ENTRIES_MAX, b"w") == -1
        assert await pair.run(LOOK_UP, NAMES[0]) == ([], [])
        assert await pair.run(HOLDERS) == []
        assert await pair.run(REGISTER, b"v", 60_000, b"v", "1") == 1


async def test_holders_that_are_gone_make_room_before_those_that_live(tmp_path: Path) -> None:
    async with both(tmp_path) as pair:
        for number in range(1, 9):
            record = b"%d" % number
            await pair.run(REGISTER, record, 60_000, record, "1")
            if number == 8:
                await pair.run(RELEASE, 3, b"3", b"3")
            await pair.run(CHANGE, number, 0, 60, NAMES[0], "1", ENTRIES_MAX, record)
        found = await pair.run(LOOK_UP, NAMES[0])
        assert isinstance(found, tuple)
        assert [entry[0] for entry in found[0][0]] == [1, 2, 4, 5, 6, 7, 8]


async def register(pair: Both, record: bytes, holder: bytes, first: str = "1", lease_ms: int = 60_000) -> int:
    number = await pair.run(REGISTER, record, lease_ms, holder, first)
    assert isinstance(number, int)
    return number


async def enter(pair: Both, number: int, record: bytes) -> object:
    """The first name is entered under a number; -1 where that is void."""
    return await pair.run(CHANGE, number, 0, 60, NAMES[0], "1", ENTRIES_MAX, record)


async def test_an_incarnation_voids_the_one_before_it_and_no_living_holder_gives_way_to_any(tmp_path: Path) -> None:
    async with both(tmp_path) as pair:
        for other in (b"a", b"b", b"c", b"d", b"e", b"f"):
            await enter(pair, await register(pair, other, other), other)
        lives = [b"w's life %d" % number for number in range(5)]
        numbers = list[int]()
        for life in lives:
            numbers.append(await register(pair, life, b"w"))
            assert await enter(pair, numbers[-1], life) == 1
            found = await pair.run(LOOK_UP, NAMES[0])
            assert isinstance(found, tuple)
            assert [record for _, record in found[1]] == [b"a", b"b", b"c", b"d", b"e", b"f", life]
        for number, life in zip(numbers[:-1], lives, strict=False):
            assert await enter(pair, number, life) == -1
            assert await pair.run(RENEW, number, life, 60_000, b"w") == 0


async def test_only_a_first_registration_voids_and_only_what_still_stands_for_the_same_holder(tmp_path: Path) -> None:
    async with both(tmp_path) as pair:
        one, two = await register(pair, b"one", b"w"), await register(pair, b"two", b"w", first="0")
        assert (await enter(pair, one, b"one"), await enter(pair, two, b"two")) == (1, 1)
        pair.server.admin.set(b"t:n", 1)
        assert pair.node.data is not None
        pair.node.data.numbers[b"t:n"] = 1
        assert await register(pair, b"v", b"v") == two
        await register(pair, b"three", b"w")
        assert await enter(pair, two, b"v") == 1


async def test_what_was_registered_last_is_known_for_as_long_as_it_is_renewed(tmp_path: Path) -> None:
    async with both(tmp_path) as pair:
        number = await register(pair, b"one", b"w", lease_ms=300)
        await pair.run(RENEW, number, b"one", 60_000, b"w")
        await asyncio.sleep(0.5)
        await register(pair, b"two", b"w")
        assert await enter(pair, number, b"one") == -1


async def test_scripts_are_known_once_they_were_loaded_and_forgotten_when_told_to(tmp_path: Path) -> None:
    async with both(tmp_path) as pair:
        for connection in (pair.real, pair.line):
            for script in SCRIPTS:
                with pytest.raises(ScriptUnknown):
                    await connection.ask("EVALSHA", _digest(script), 0, PREFIX)
            for script in SCRIPTS:
                loaded = await connection.ask("SCRIPT", "LOAD", script)
                assert loaded in (_digest(script), _digest(script).encode())
            assert await connection.ask("EVALSHA", _digest(HOLDERS), 0, PREFIX) == []
        pair.server.admin.script_flush()
        pair.node.forget_scripts()
        for connection in (pair.real, pair.line):
            with pytest.raises(ScriptUnknown):
                await connection.ask("EVALSHA", _digest(HOLDERS), 0, PREFIX)


async def test_a_primary_says_so_and_each_run_has_its_id(tmp_path: Path) -> None:
    async with both(tmp_path) as pair:
        before = [await connection.run_id() for connection in (pair.real, pair.line)]
        for connection in (pair.real, pair.line):
            role = await connection.ask("ROLE")
            assert isinstance(role, Sequence)
            assert role[0] in (b"master", "master")
            assert await connection.run_id() in before
            with pytest.raises(RedisFailed):
                await connection.ask("NOSUCHCOMMAND")
        pair.server.kill()
        pair.node.kill()
        for connection in (pair.real, pair.line):
            with pytest.raises((RedisFailed, OSError)):
                await connection.run_id()
        pair.server.start()
        pair.node.start()
        after = [await connection.run_id() for connection in (pair.real, pair.line)]
        assert not set(before) & set(after)
