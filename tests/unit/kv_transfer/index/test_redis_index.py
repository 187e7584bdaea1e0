"""The Redis index against a real server that is restarted, stopped, emptied and replaced under it."""

import asyncio
import dataclasses
import logging
import random
import re
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
import redis

from kv_transfer.index.memory_index import MemoryIndex
from kv_transfer.index.protocol import Held
from kv_transfer.index.redis_client import redis_client
from kv_transfer.index.redis_connection import RedisConnection, RedisFailed
from kv_transfer.index.redis_index import NAMES_MAX, RedisIndex
from kv_transfer.index.redis_settings import RedisSettings, shown, without_secrets
from kv_transfer.index.redis_wire import read_answer
from tandem.core.errors import TandemError
from tandem.core.metrics import NullMeter
from tandem.process.logs import JsonFormatter
from tandem.process.metrics import PrometheusMeter
from tests.worlds.redis_stage import (
    Holder,
    RedisServer,
    StandIn,
    hello,
    holder_of,
    index_of,
    needs_redis,
    running,
    settings,
    until,
)

T = TypeVar("T")

pytestmark = needs_redis


def names(count: int, seed: int = 0) -> tuple[bytes, ...]:
    draw = random.Random(seed)
    return tuple(draw.randbytes(16) for _ in range(count))


SOME = names(300)


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture(params=["real", "stand-in"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer | StandIn]:
    """What holds with a real server must hold with the simulation's stand-in, too."""
    if request.param == "stand-in":
        yield StandIn()
        return
    with RedisServer(tmp_path / "redis") as server:
        yield server


async def seen(index: RedisIndex, wanted: Sequence[bytes]) -> dict[str, Held]:
    found = await index.longest(wanted)
    return {holder: each.held._replace(known_by="events") for holder, each in found.items()}


async def comes_to(index: RedisIndex, wanted: Sequence[bytes], expected: dict[str, Held]) -> None:
    async with asyncio.timeout(100.0):
        while await seen(index, wanted) != expected:  # noqa: ASYNC110  (another process decides)
            await asyncio.sleep(0.005)


async def test_what_holders_tell_is_found_by_tier(server: RedisServer | StandIn) -> None:
    choices = settings(server)
    index = index_of(server, choices)
    one, two = holder_of(server, "one", choices), holder_of(server, "two", choices, epoch=7)
    one.change("hbm", SOME)
    async with running(index, one.publisher, two.publisher):
        await until(lambda: index.usable)
        await one.settled()
        await two.settled()
        two.change("hbm", SOME[:10])
        two.change("dram", SOME[:20])
        two.change("nvme", SOME[20:40])
        one.change("hbm", (), SOME[100:])
        await two.settled()
        await one.settled()
        assert await seen(index, SOME) == {"one": Held(100, 100), "two": Held(40, 10, 10, 20)}
        found = await index.longest(SOME)
        assert found["two"].hello == hello("two", 7)
        assert found["two"].held.known_by == "redis"
        assert await index.longest(names(5, seed=9)) == {}
        await one.publisher.close()
        assert await seen(index, SOME) == {"two": Held(40, 10, 10, 20)}


async def test_any_changes_end_in_what_a_direct_index_knows(server: RedisServer | StandIn) -> None:
    choices, direct, draw = settings(server), MemoryIndex(), random.Random(3)
    index, holders = (
        index_of(server, choices),
        [holder_of(server, f"w{number}", choices) for number in range(5)],
    )
    async with running(index, *(holder.publisher for holder in holders)):
        await until(lambda: index.usable)
        for _ in range(300):
            number, tier = draw.randrange(5), draw.choice(("hbm", "dram", "nvme"))
            stored = SOME[: draw.randrange(40)]
            removed = draw.sample(SOME[:40], draw.randrange(8))
            holders[number].change(tier, stored)
            holders[number].change(tier, (), removed)
            direct.stored(f"w{number}", stored, tier)
            direct.removed(f"w{number}", removed, tier)
            if draw.random() < 0.1:
                await asyncio.sleep(0)
        for holder in holders:
            await holder.settled()
        assert await seen(index, SOME[:40]) == direct.longest(SOME[:40])


def at_once(asked: Coroutine[Any, Any, T]) -> T:
    """What it gives without waiting for anything: a dead Redis costs requests nothing."""
    try:
        asked.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    asked.close()
    raise AssertionError("it waits")


async def test_a_restarted_server_that_lost_everything_is_told_everything(server: RedisServer | StandIn) -> None:
    choices = settings(server)
    index, holder, other = (
        index_of(server, choices),
        holder_of(server, "w", choices),
        holder_of(server, "v", choices),
    )
    holder.change("hbm", SOME)
    async with running(index, holder.publisher, other.publisher):
        await comes_to(index, SOME, {"w": Held(300, 300)})
        server.kill()
        await until(lambda: not index.usable)
        for _ in range(200):
            assert at_once(index.longest(SOME)) == {}
        holder.change("hbm", (), SOME[200:])
        holder.change("dram", SOME[250:])
        other.change("hbm", SOME[:5])
        server.start()
        await comes_to(index, SOME, {"w": Held(200, 200), "v": Held(5, 5)})


async def test_a_server_that_lost_its_data_and_stayed_is_told_everything(
    server: RedisServer | StandIn,
) -> None:
    choices = settings(server, lease_s=0.3)
    index, holder = index_of(server, choices), holder_of(server, "w", choices)
    holder.change("hbm", SOME)
    async with running(index, holder.publisher):
        await comes_to(index, SOME, {"w": Held(300, 300)})
        server.flush()
        await comes_to(index, SOME, {"w": Held(300, 300)})


async def test_a_number_that_is_somebody_elses_now_is_left_alone(server: RedisServer | StandIn) -> None:
    choices = settings(server, lease_s=0.3)
    index, first, second = (
        index_of(server, choices),
        holder_of(server, "w", choices),
        holder_of(server, "v", choices),
    )
    first.change("hbm", SOME[:50])
    second.change("hbm", SOME[:70])
    async with running(index, first.publisher):
        await comes_to(index, SOME, {"w": Held(50, 50)})
        server.flush()
        async with running(second.publisher):
            await comes_to(index, SOME, {"w": Held(50, 50), "v": Held(70, 70)})


async def test_fail_over_to_another_node(primary: RedisServer, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "replica") as replica:
        replica.admin.replicaof("127.0.0.1", str(primary.port))
        choices = settings(replica, primary)
        index, holder = index_of(primary, choices), holder_of(primary, "w", choices)
        holder.change("hbm", SOME)
        async with running(index, holder.publisher):
            await comes_to(index, SOME, {"w": Held(300, 300)})
            primary.kill()
            await until(lambda: not index.usable)
            holder.change("hbm", (), SOME[100:])
            replica.admin.replicaof("NO", "ONE")
            await comes_to(index, SOME, {"w": Held(100, 100)})


async def test_a_primary_that_becomes_a_replica_is_left(primary: RedisServer, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "second") as second:
        choices = settings(primary, second)
        index, holder = index_of(primary, choices), holder_of(primary, "w", choices)
        holder.change("hbm", SOME)
        async with running(index, holder.publisher):
            await comes_to(index, SOME, {"w": Held(300, 300)})
            primary.admin.replicaof("127.0.0.1", str(second.port))
            holder.change("hbm", (), SOME[10:])
            await comes_to(index, SOME, {"w": Held(10, 10)})


async def test_a_server_that_hangs_is_waited_for_briefly_and_then_not_at_all(server: RedisServer | StandIn) -> None:
    choices = settings(server, look_up_s=0.02, probe_every_s=30.0, connect_s=0.3)
    index, holder = index_of(server, choices), holder_of(server, "w", choices)
    holder.change("hbm", SOME)
    async with running(index, holder.publisher):
        await comes_to(index, SOME, {"w": Held(300, 300)})
        server.hang()
        try:
            async with asyncio.timeout(100.0):
                for _ in range(choices.failures_max):
                    assert await index.longest(SOME) == {}
            assert not index.usable
            for _ in range(200):
                assert at_once(index.longest(SOME)) == {}
        finally:
            server.go_on()
        await comes_to(index, SOME, {"w": Held(300, 300)})


async def test_a_holder_that_dies_is_forgotten_with_its_lease(server: RedisServer | StandIn) -> None:
    choices = settings(server, lease_s=0.3)
    index, holder = index_of(server, choices), holder_of(server, "w", choices)
    holder.change("hbm", SOME)
    async with running(index):
        async with running(holder.publisher):
            await comes_to(index, SOME, {"w": Held(300, 300)})
            await until(lambda: index.holders() == {"w"})
        await comes_to(index, SOME, {})
        await until(lambda: not index.holders())


async def test_one_router_looks_each_service_up_under_its_own_name(server: RedisServer | StandIn) -> None:
    told = {name: dataclasses.replace(settings(server), service=f"llm.{name}") for name in ("llama", "qwen")}
    index = index_of(server, settings(server))
    llama = holder_of(server, "llama-0", told["llama"])
    qwen = holder_of(server, "qwen-0", told["qwen"])
    llama.change("hbm", SOME[:40])
    qwen.change("hbm", SOME[:7])
    async with running(index, llama.publisher, qwen.publisher):
        await until(lambda: index.usable)
        await llama.settled()
        await qwen.settled()
        for service, holder, blocks in (("llm.llama", "llama-0", 40), ("llm.qwen", "qwen-0", 7)):
            async with asyncio.timeout(100.0):
                while index.holders(service) != {holder}:  # noqa: ASYNC110  (another process decides)
                    await asyncio.sleep(0.005)
            found = await index.longest(SOME, service)
            assert {each: at.held.total for each, at in found.items()} == {holder: blocks}
        assert (index.holders(), await index.longest(SOME)) == (frozenset(), {})
        assert index.holders("llm.gone") == frozenset()


async def test_a_new_incarnation_voids_what_the_old_one_told(server: RedisServer | StandIn) -> None:
    choices = settings(server)
    index, holder = index_of(server, choices), holder_of(server, "w", choices)
    holder.change("hbm", SOME)
    async with running(index, holder.publisher):
        await comes_to(index, SOME, {"w": Held(300, 300)})
        holder.held["hbm"] = dict.fromkeys(SOME[:7])
        holder.publisher.become(hello("w", 2))
        await comes_to(index, SOME, {"w": Held(7, 7)})
        assert (await index.longest(SOME))["w"].hello.epoch == 2


async def test_a_worker_that_dies_again_and_again_pushes_nobody_out(server: RedisServer | StandIn) -> None:
    choices = settings(server)
    index = index_of(server, choices)
    others = [holder_of(server, f"w{number}", choices) for number in range(6)]
    for holder in others:
        holder.change("hbm", SOME[:40])
    async with running(index, *(holder.publisher for holder in others)):
        for holder in others:
            await holder.settled()
        for life in range(1, 5):
            restarted = holder_of(server, "restarted", choices, epoch=life)
            restarted.change("hbm", SOME[: 10 * life])
            # It ends without a farewell: its lease would go on for seconds.
            async with running(restarted.publisher):
                await restarted.settled()
        held = {f"w{number}": Held(40, 40) for number in range(6)}
        await comes_to(index, SOME, {**held, "restarted": Held(40, 40)})
        assert (await index.longest(SOME))["restarted"].hello.epoch == 4


class HastyClock:
    """Runs thirty times as fast: holders renew their leases often, and none of these runs out at the server."""

    def now(self) -> float:
        return 30.0 * time.monotonic()

    def wall(self) -> float:
        return time.time()


async def test_two_processes_under_one_id_do_not_void_each_other_for_ever(server: RedisServer | StandIn) -> None:
    choices, clock = settings(server, lease_s=9.0), HastyClock()
    index = index_of(server, choices)
    one, other = (holder_of(server, "w", choices, epoch, clock) for epoch in (1, 2))
    async with running(index, one.publisher, other.publisher):
        for at in range(60):
            for holder in (one, other):
                holder.change("hbm", SOME[at : at + 1])
            await asyncio.sleep(0.02)
        assert server.registered() <= 4
        await comes_to(index, SOME, {"w": Held(60, 60)})


async def test_more_changes_than_the_queue_holds_are_told_as_a_whole(server: RedisServer | StandIn) -> None:
    choices = settings(server, queue_names_max=100)
    index, holder = index_of(server, choices), holder_of(server, "w", choices)
    async with running(index, holder.publisher):
        await holder.settled()
        for at in range(0, 300, 30):
            holder.change("hbm", SOME[at : at + 30])
        holder.change("hbm", (), SOME[250:])
        await comes_to(index, SOME, {"w": Held(250, 250)})


async def test_entries_expire_unless_they_are_refreshed(server: RedisServer | StandIn) -> None:
    choices = settings(server, entry_s=2.0)
    index, holder = index_of(server, choices), holder_of(server, "w", choices)
    holder.change("hbm", SOME)
    async with running(index, holder.publisher):
        await comes_to(index, SOME, {"w": Held(300, 300)})
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            assert await seen(index, SOME) == {"w": Held(300, 300)}
            await asyncio.sleep(0.05)
    await until(lambda: not server.buckets())


async def test_of_a_long_prompt_evenly_spaced_names_are_looked_up(server: RedisServer | StandIn) -> None:
    choices, long = settings(server), names(4 * NAMES_MAX + 3)
    index, holder = index_of(server, choices), holder_of(server, "w", choices)
    holder.change("hbm", long[:1000])
    async with running(index, holder.publisher):
        await comes_to(index, long, {"w": Held(1000, 1000)})


@pytest.mark.parametrize("held", [1, 4, 7, 999, 1003])
async def test_of_a_long_prompt_no_holder_is_said_to_have_more_than_it_has(
    server: RedisServer | StandIn, held: int
) -> None:
    """A prompt would be sent where it has to be computed after all, and its fetch would end in missing blocks."""
    choices, long = settings(server), names(4 * NAMES_MAX + 3)
    index, holder = index_of(server, choices), holder_of(server, "w", choices)
    holder.change("hbm", long[:held])
    least = held - held % 5
    async with running(index, holder.publisher):
        await until(lambda: index.usable)
        await holder.settled()
        assert await seen(index, long) == ({"w": Held(least, least)} if least else {})


async def test_at_most_seven_holders_are_known_of_a_name(primary: RedisServer) -> None:
    choices = settings(primary)
    index, holders = (
        index_of(primary, choices),
        [holder_of(primary, f"w{number}", choices) for number in range(9)],
    )
    for holder in holders:
        holder.change("hbm", SOME[:1])
    async with running(index, *(holder.publisher for holder in holders)):
        for holder in holders:
            await holder.settled()
        assert len(await seen(index, SOME[:1])) == 7
    assert primary.admin.object("encoding", b"tandem:b" + SOME[0][:2]) == b"listpack"


async def test_services_that_share_a_server_do_not_see_each_other(server: RedisServer | StandIn) -> None:
    mine, theirs = settings(server), RedisSettings(server.url, service="other", look_up_s=0.5)
    index, stranger = index_of(server, theirs), holder_of(server, "w", mine)
    stranger.change("hbm", SOME)
    async with running(index, stranger.publisher):
        await stranger.settled()
        await until(lambda: index.usable)
        assert await index.longest(SOME) == {}


async def test_scripts_that_the_server_has_forgotten_are_sent_again(server: RedisServer | StandIn) -> None:
    choices = settings(server)
    index, holder = index_of(server, choices), holder_of(server, "w", choices)
    async with running(index, holder.publisher):
        await holder.settled()
        server.forget_scripts()
        holder.change("hbm", SOME)
        await comes_to(index, SOME, {"w": Held(300, 300)})


async def test_without_a_server_nothing_waits() -> None:
    choices = RedisSettings("redis://127.0.0.1:1", retry_first_s=0.01)
    connect = redis_client(choices)
    index, holder = RedisIndex(choices, NullMeter(), connect), Holder("w", choices, connect)
    async with running(index, holder.publisher):
        holder.change("hbm", SOME)
        assert await index.longest(SOME) == {}
        await holder.publisher.close()


class Counted:
    """Nodes as they are, and how often one was turned to."""

    def __init__(self, choices: RedisSettings) -> None:
        self._connect = redis_client(choices)
        self.times = 0

    def __call__(self, url: str) -> RedisConnection:
        self.times += 1
        return self._connect(url)

    async def again(self) -> None:
        """Wait for several attempts that begin from now on."""
        enough = self.times + 5
        await until(lambda: self.times >= enough, 60.0)


def lines_of(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """What was logged of an event, as it is written."""
    return [JsonFormatter().format(record) for record in caplog.records if record.getMessage() == name]


async def test_why_redis_cannot_be_used_is_logged_once_and_again_when_that_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with RedisServer(tmp_path / "redis", password="what-it-asks-for") as server:
        given = "what-it-is-given"
        choices = dataclasses.replace(settings(server), redis_url=f"redis://:{given}@127.0.0.1:{server.port}")
        connect, meter = Counted(choices), PrometheusMeter()
        index = RedisIndex(choices, meter, connect)
        async with running(index):
            await connect.again()
            (refused,) = lines_of(caplog, "redis_unusable")
            assert f"redis://127.0.0.1:{server.port}: AuthenticationError: invalid username-password" in refused
            assert "check that it runs" in refused
            assert b"tandem_redis_lost 1.0" in meter.render()
            server.kill()
            await until(lambda: len(lines_of(caplog, "redis_unusable")) > 1, 60.0)
            await connect.again()
            others = lines_of(caplog, "redis_unusable")[1:]
            assert any("connecting to" in line for line in others)
            assert len(others) < 4, "what a server says that is being killed, and that there is none"
            server.password = given
            server.admin.close()
            server.admin = redis.Redis(port=server.port, password=given)
            server.start()
            await until(lambda: index.usable, 60.0)
            assert b"tandem_redis_lost 0.0" in meter.render()
    assert len(lines_of(caplog, "redis_connected")) == 1
    assert given not in "".join(JsonFormatter().format(record) for record in caplog.records)


async def test_a_node_that_repeats_the_password_does_not_bring_it_into_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, secret = RedisServer(tmp_path / "redis"), "s3cret/" * 30
    server.admin = redis.Redis(port=server.port, protocol=2)
    try:
        server.start("--rename-command", "HELLO", "")
        choices = dataclasses.replace(
            settings(server), redis_url=f"redis://:{quote(secret, safe='')}@127.0.0.1:{server.port}"
        )
        connect = Counted(choices)
        async with running(RedisIndex(choices, NullMeter(), connect)):
            await connect.again()
    finally:
        server.kill()
        server.admin.close()
    (line,) = lines_of(caplog, "redis_unusable")
    assert "unknown command" in line
    assert "s3cret" not in line


def test_whatever_is_said_is_logged_without_passwords() -> None:
    urls = ("redis://user:a%2Fb@cache", "redis://cache?password=c%2Bd")
    told = without_secrets("no user has a/b, a%2Fb or c+d; try, with args beginning with: 'a/b'", urls)
    assert told == "no user has ***, *** or ***; try …"


def test_torn_answers_are_refused() -> None:
    for answer in ([], [b"abc"], [b"\0\0\0\1", b"\0\0\0\1"], [b"\0\0\0\1\2" + bytes(9)]):
        with pytest.raises((ValueError, IndexError)):
            read_answer(answer, 1)
    with pytest.raises(ValueError, match="1 names"):
        read_answer([b"\0\0\0\1" + b"\0" * 2], 1)


def test_addresses_are_checked_and_shown_without_passwords() -> None:
    assert shown("redis://user:secret@cache:6380/2") == "redis://cache:6380/2"
    assert shown("redis://cache?password=secret") == "redis://cache:6379"
    assert RedisSettings("redis:///2").urls == ("redis:///2",)
    with pytest.raises(TandemError, match="expected redis://"):
        RedisSettings("http://cache")


@pytest.mark.parametrize(
    "password", ["sec/ret", "sec?ret", "sec#ret", "sec@ret/", "sec,ret", "12/ret", "12?ret", "s]ret"]
)
@pytest.mark.parametrize("user", ["", "user"])
def test_a_password_that_ends_the_address_early_is_told_without_it(user: str, password: str) -> None:
    with pytest.raises(TandemError, match="redis_url = ") as caught:
        RedisSettings(f"redis://{user}:{password}@cache:6380/0")
    assert not re.search("sec|ret|12", caught.value.message)


def test_the_server_is_of_the_version_that_is_meant(primary: RedisServer) -> None:
    assert primary.admin.info("server")["redis_version"].startswith("7.")


async def test_a_connection_that_is_closed_is_gone_from_the_server(primary: RedisServer) -> None:
    """A worker closes one each time that it looks for a primary: a server takes ten thousand."""
    before = len(primary.admin.client_list())
    for _ in range(3):
        client = redis_client(settings(primary))(primary.url)
        await asyncio.gather(*(client.ask("ROLE") for _ in range(3)))
        await client.close()
    await until(lambda: len(primary.admin.client_list()) == before)


async def test_a_command_whose_connection_breaks_is_not_sent_again() -> None:
    """The breaker counts failures: one that is tried again unseen makes a request wait for two."""
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = redis_client(RedisSettings(url))(url)
        with pytest.raises((RedisFailed, OSError)):
            await client.ask("ROLE")
        await client.close()
    assert opened == 1
