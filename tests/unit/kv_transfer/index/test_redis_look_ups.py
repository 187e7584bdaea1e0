"""A router's look-ups in Redis: what is asked, what is not, and what is known of holders; on virtual time."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kv_transfer.index import redis_index
from kv_transfer.index.protocol import Held
from kv_transfer.index.redis_connection import RedisFailed
from kv_transfer.index.redis_index import RedisIndex
from kv_transfer.index.redis_scripts import CHANGE, ENTRIES_MAX, REGISTER, RELEASE
from kv_transfer.index.redis_settings import RedisSettings
from kv_transfer.index.redis_wire import encoded
from tandem.process.metrics import PrometheusMeter
from tests.worlds.redis_heard import URL, Heard, on_stage
from tests.worlds.redis_stage import hello

NAMES = tuple(bytes((number, 0, *bytes(14))) for number in range(20))


class Router:
    """A router's index beside a node, and its metrics."""

    def __init__(self, node: Heard, settings: RedisSettings | None = None) -> None:
        self.node = node
        self.meter = PrometheusMeter()
        self.index = RedisIndex(settings or RedisSettings(URL), self.meter, node.connect)

    def ends(self) -> dict[str, int]:
        """How many look-ups ended in which way."""
        found = {}
        for line in self.meter.render().decode().splitlines():
            if line.startswith("tandem_redis_look_ups_total{"):
                found[line.split('"')[1]] = int(float(line.rpartition(" ")[2]))
        return found

    async def held(self, names: Sequence[bytes]) -> dict[str, Held]:
        found = await self.index.longest(names)
        return {holder: each.held._replace(known_by="events") for holder, each in found.items()}


def tell(node: Heard, holder: str, names: Sequence[bytes], service: str = "tandem", lease_ms: int = 600_000) -> int:
    """A holder of a service has these names."""
    record, prefix = encoded(hello(holder)), f"{service}:"
    number = node.server.ask("EVAL", REGISTER, 0, prefix, record, lease_ms, holder, "1")
    assert isinstance(number, int)
    if names:
        packed = b"".join(names)
        node.server.ask("EVAL", CHANGE, 0, prefix, number, 0, 600, packed, "1", ENTRIES_MAX, record)
    return number


@asynccontextmanager
async def kept(router: Router) -> AsyncIterator[None]:
    task = asyncio.ensure_future(router.index.run())
    try:
        await asyncio.sleep(0.001)
        yield
    finally:
        task.cancel()
        (end,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(end, asyncio.CancelledError), f"ended by itself: {end}"


def test_what_is_looked_up_is_counted_by_how_it_ends() -> None:
    async def main(node: Heard) -> None:
        router = Router(node)
        tell(node, "w", NAMES[:3])
        assert await router.held(NAMES) == {}
        assert router.ends() == {"skipped": 1}, "no node has been found yet"
        async with kept(router):
            assert await router.held(()) == {}
            assert router.ends() == {"skipped": 2}, "there is nothing to look up"
            assert node.times("LOOK_UP") == []
            assert await router.held(NAMES) == {"w": Held(3, 3)}
            assert await router.held(NAMES[5:]) == {}
            assert router.ends() == {"skipped": 2, "found": 1, "nothing": 1}
            node.refusal = lambda: RedisFailed("busy")
            assert await router.held(NAMES) == {}
            assert await router.held(NAMES) == {}
            assert router.ends() == {"skipped": 3, "found": 1, "nothing": 1, "failed": 1}, "once, then nobody asks"

    on_stage(main)


def test_an_answer_that_cannot_be_read_is_counted_and_holds_nobody_up() -> None:
    async def main(node: Heard) -> None:
        router = Router(node)
        node.server.ask("EVAL", REGISTER, 0, "tandem:", b"no record", 600_000, "w", "1")
        node.server.ask("EVAL", CHANGE, 0, "tandem:", 1, 0, 600, NAMES[0], "1", ENTRIES_MAX, b"no record")
        async with kept(router):
            for _ in range(20):
                assert await router.held(NAMES) == {}
            assert router.ends() == {"unreadable": 20}
            assert router.index.usable

    on_stage(main)


@pytest.mark.parametrize(("changes", "most"), [({"connections_max": 2}, 1), ({"connections_max": 3}, 2), ({}, 7)])
def test_of_look_ups_at_the_same_time_none_waits_for_a_connection(changes: dict[str, Any], most: int) -> None:
    """One connection is left to probes and holders; a look-up too many is passed over at once, and ends nobody's
    turn."""

    async def main(node: Heard) -> None:
        router = Router(node, dataclasses.replace(RedisSettings(URL), **changes))
        tell(node, "w", NAMES[:3])
        async with kept(router):
            node.takes_s = 0.004
            for number in range(1, 4):
                found = await asyncio.gather(*(router.held(NAMES) for _ in range(most + 3)))
                assert found == [{"w": Held(3, 3)}] * most + [{}] * 3
                assert router.ends() == {"found": number * most, "skipped": number * 3}
                assert len(node.times("LOOK_UP")) == number * most

    on_stage(main)


def test_a_look_up_that_fails_leaves_its_turn_to_the_next() -> None:
    async def main(node: Heard) -> None:
        router = Router(node, RedisSettings(URL, connections_max=2, failures_max=100))
        tell(node, "w", NAMES[:3])
        async with kept(router):
            for _ in range(5):
                node.hangs = True
                assert await router.held(NAMES) == {}
                node.hangs = False
                assert await router.held(NAMES) == {"w": Held(3, 3)}
            assert router.ends() == {"failed": 5, "found": 5}

    on_stage(main)


def test_holders_are_looked_at_every_second_and_nobody_is_known_while_there_is_no_redis() -> None:
    async def main(node: Heard) -> None:
        router = Router(node)
        tell(node, "w", ())
        assert router.index.holders() == frozenset()
        async with kept(router):
            assert router.index.holders() == {"w"}
            tell(node, "v", (), lease_ms=10_000)
            await asyncio.sleep(1.0)
            assert router.index.holders() == {"v", "w"}
            node.server.ask("EVAL", RELEASE, 0, "tandem:", 1, encoded(hello("w")), "w")
            await asyncio.sleep(1.0)
            assert router.index.holders() == {"v"}
            await asyncio.sleep(8.0)
            assert router.index.holders() == frozenset(), "its lease has ended"
            assert node.times("HOLDERS") == [float(second) for second in range(11)]
            tell(node, "u", ())
            await asyncio.sleep(1.0)
            assert router.index.holders() == {"u"}
            node.refusal = lambda: RedisFailed("busy")
            await asyncio.sleep(1.0)
            assert router.index.holders() == frozenset()
            node.refusal = None
            await asyncio.sleep(1.5)
            assert router.index.holders() == {"u"}

    on_stage(main)


def looks(node: Heard, service: str) -> int:
    """How often a service's holders were looked at."""
    return sum(each.arguments == (f"{service}:".encode(),) for each in node.scripts("HOLDERS"))


def test_a_service_that_no_request_asks_for_any_more_is_forgotten_after_a_minute() -> None:
    """A router of many models that come and go would else ask Redis for all of them, for ever."""

    async def main(node: Heard) -> None:
        router = Router(node)
        for service in ("old", "busy"):
            tell(node, service, (), service)
        async with kept(router):
            for second in range(70):
                if not second:
                    router.index.holders("old")
                assert router.index.holders("busy") == ({"busy"} if second else frozenset())
                await asyncio.sleep(1.0)
            assert (looks(node, "old"), looks(node, "busy")) == (60, 70)
            assert router.index.holders("old") == frozenset()
            await asyncio.sleep(1.0)
            assert router.index.holders("old") == {"old"}, "asked for again, it is known within a second"

    on_stage(main)


def test_of_more_services_than_are_remembered_those_asked_for_last_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_index, "_SERVICES_MAX", 3)

    async def main(node: Heard) -> None:
        router = Router(node)
        async with kept(router):
            for number in range(1, 7):
                router.index.holders(f"s{number}")
                await asyncio.sleep(1.0)
            began = len(node.asked)
            await asyncio.sleep(1.0)
            prefixes = {each.arguments[0] for each in node.asked[began:] if each.name == "HOLDERS"}
            assert prefixes == {b"tandem:", b"s4:", b"s5:", b"s6:"}

    on_stage(main)
