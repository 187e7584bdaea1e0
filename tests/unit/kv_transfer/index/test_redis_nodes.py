"""The connection to the primary and the breaker in front of it, with the settings as they are, on virtual time."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kv_transfer.index.redis_connection import RedisFailed
from kv_transfer.index.redis_nodes import RedisNodes
from kv_transfer.index.redis_scripts import HOLDERS, LOOK_UP
from kv_transfer.index.redis_settings import RedisSettings
from tandem.core.errors import TandemError
from tandem.process.logs import JsonFormatter
from tandem.process.metrics import PrometheusMeter
from tests.worlds.redis_heard import URL, Heard, on_stage, several

ATTEMPTS_S = [0.0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 11.3, 16.3]
"""When a node that cannot be reached is tried: soon, then ever less often, and every five seconds in the end."""


def nodes_of(node: Heard, settings: RedisSettings | None = None, meter: PrometheusMeter | None = None) -> RedisNodes:
    return RedisNodes(settings or RedisSettings(URL), (HOLDERS,), meter or PrometheusMeter(), node.connect)


@asynccontextmanager
async def kept(nodes: RedisNodes) -> AsyncIterator[None]:
    """While the nodes are looked for."""
    task = asyncio.ensure_future(nodes.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def fails(nodes: RedisNodes, within_s: float = 0.005) -> tuple[str, float]:
    """Why a look-up fails, and how long that takes."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TandemError) as caught:
        await nodes.evaluate(HOLDERS, ("t:",), within_s)
    assert caught.value.code == "link_lost"
    return caught.value.message, round(loop.time() - began, 6)


def refused() -> Exception:
    return RedisFailed("connection refused")


def logged(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [JsonFormatter().format(record) for record in caplog.records if record.getMessage() == name]


def test_before_a_node_is_found_nobody_waits_for_it() -> None:
    async def main(node: Heard) -> None:
        nodes = nodes_of(node)
        assert not nodes.usable
        assert await fails(nodes) == ("Redis is not usable: it has not been reached yet", 0.0)
        async with kept(nodes):
            await nodes.ready()
            assert nodes.usable
            assert (nodes.address, nodes.server) == (URL, "run-1")
            assert await nodes.evaluate(HOLDERS, ("t:",), 0.005) == []

    on_stage(main)


def test_a_dead_node_is_tried_ever_less_often_and_no_connection_is_left_open() -> None:
    async def main(node: Heard) -> None:
        node.refusal = refused
        nodes = nodes_of(node)
        async with kept(nodes):
            await asyncio.sleep(17.0)
            assert [round(at, 6) for at in node.connected] == ATTEMPTS_S
            assert node.open == 0
            assert await fails(nodes) == (f"Redis is not usable: {URL}: connection refused", 0.0)

    on_stage(main)


def test_a_node_that_hangs_while_it_is_looked_for_is_given_up_after_a_second() -> None:
    async def main(node: Heard) -> None:
        node.hangs = True
        async with kept(nodes_of(node)):
            await asyncio.sleep(2.5)
        assert [round(at, 6) for at in node.connected] == [0.0, 1.1, 2.3]
        assert node.open == 0

    on_stage(main)


def test_one_that_breaks_as_soon_as_it_is_found_is_tried_ever_less_often() -> None:
    async def main(node: Heard) -> None:
        async def break_it() -> None:
            while True:
                await nodes.ready()
                node.refusal = refused
                await fails(nodes)
                node.refusal = None

        nodes = nodes_of(node)
        async with kept(nodes):
            breaking = asyncio.ensure_future(break_it())
            await asyncio.sleep(17.0)
            breaking.cancel()
        assert [round(at, 6) for at in node.connected] == ATTEMPTS_S
        assert node.open == 0

    on_stage(main)


@pytest.mark.parametrize(("served_s", "again_after_s"), [(9.8, 0.4), (10.2, 0.1)])
def test_one_that_has_served_for_a_while_is_tried_again_at_once(served_s: float, again_after_s: float) -> None:
    async def main(node: Heard) -> None:
        node.refusal = refused
        nodes = nodes_of(node)
        async with kept(nodes):
            await asyncio.sleep(0.2)
            node.refusal = None
            await nodes.ready()
            await asyncio.sleep(served_s)
            node.refusal = refused
            await fails(nodes)
            lost_s = node.loop.time()
            await asyncio.sleep(0.45)
        assert round(node.connected[3] - lost_s, 6) == again_after_s

    on_stage(main)


def test_so_many_timeouts_in_a_row_break_it_and_from_then_on_nobody_waits() -> None:
    """With the settings as they are, a Redis that hangs costs three requests five milliseconds each."""

    async def main(node: Heard) -> None:
        nodes = nodes_of(node)
        async with kept(nodes):
            await nodes.ready()
            look_up_s = RedisSettings().look_up_s
            for _ in range(2):
                node.hangs = True
                assert [(await fails(nodes, look_up_s))[1] for _ in range(2)] == [0.005] * 2
                node.hangs = False
                assert nodes.usable
                assert await nodes.evaluate(HOLDERS, ("t:",), look_up_s) == [], "an answer between makes up for them"
            node.hangs = True
            assert [(await fails(nodes, look_up_s))[1] for _ in range(5)] == [0.005] * 3 + [0.0] * 2
            assert not nodes.usable

    on_stage(main)


def test_nobody_waits_either_while_a_probe_of_a_broken_node_is_under_way() -> None:
    async def main(node: Heard) -> None:
        nodes = nodes_of(node)
        async with kept(nodes):
            await nodes.ready()
            await asyncio.sleep(0.99)
            node.hangs = True
            await asyncio.sleep(0.02)
            assert node.times("ROLE") == [0.0, 1.0], "the probe hangs"
            assert [(await fails(nodes))[1] for _ in range(5)] == [0.005] * 3 + [0.0] * 2

    on_stage(main)


def test_one_lost_connection_breaks_it_and_it_is_found_again() -> None:
    async def main(node: Heard) -> None:
        meter = PrometheusMeter()
        nodes = nodes_of(node, meter=meter)
        async with kept(nodes):
            await nodes.ready()
            assert b"tandem_redis_lost 0.0" in meter.render()
            node.refusal = refused
            assert await fails(nodes) == (f"Redis at {URL} did not answer: connection refused", 0.0)
            assert not nodes.usable
            assert (await fails(nodes))[0] == "Redis is not usable: connection refused"
            await asyncio.sleep(0.05)
            assert b"tandem_redis_lost 1.0" in meter.render()
            node.refusal = None
            await nodes.ready()
            assert node.loop.time() == 0.1
            assert b"tandem_redis_lost 0.0" in meter.render()

    on_stage(main)


def test_who_waits_for_it_learns_when_it_is_found() -> None:
    """A publisher that looked now and then would leave prompts of a worker unknown for longer."""

    async def main(node: Heard) -> None:
        nodes = nodes_of(node)
        async with kept(nodes):
            await nodes.ready()
            node.refusal = refused
            await fails(nodes)
            waiting = asyncio.ensure_future(nodes.ready())
            await asyncio.sleep(0.15)
            late = asyncio.ensure_future(nodes.ready())
            node.refusal = None
            await asyncio.gather(waiting, late)
            assert round(node.loop.time(), 6) == 0.3

    on_stage(main)


def test_it_is_probed_every_second_and_left_for_what_the_probe_tells(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main(node: Heard) -> None:
        nodes = nodes_of(node)
        async with kept(nodes):
            await asyncio.sleep(3.5)
            assert node.times("ROLE") == [0.0, 1.0, 2.0, 3.0]
            assert nodes.usable
            node.start()
            await asyncio.sleep(0.65)
            assert (nodes.usable, nodes.server) == (True, "run-2"), "another run of the server is found at once"
            node.role = b"slave"
            await asyncio.sleep(1.0)
            assert not nodes.usable
            node.role = b"master"
            await asyncio.sleep(1.0)
            assert nodes.usable
            node.refusal = refused
            await asyncio.sleep(1.0)
            assert not nodes.usable

    on_stage(main)
    reasons = ("is another server now", "is a replica now", "connection refused")
    lost = logged(caplog, "redis_lost")
    assert len(lost) == len(reasons)
    assert all(reason in line and URL in line for reason, line in zip(reasons, lost, strict=True))


def test_of_several_nodes_the_primary_is_used_and_the_others_are_left() -> None:
    async def main(node: Heard) -> None:
        replica, dead = Heard(node.loop), Heard(node.loop)
        replica.role, dead.refusal = b"slave", refused
        urls = ("redis://dead:1", "redis://replica:2", "redis://user:secret@primary:3")
        connect = several(dict(zip(urls, (dead, replica, node), strict=True)))
        nodes = RedisNodes(RedisSettings(",".join(urls)), (HOLDERS, LOOK_UP), PrometheusMeter(), connect)
        async with kept(nodes):
            await nodes.ready()
            assert nodes.address == "redis://primary:3"
            assert (dead.open, replica.open, node.open) == (0, 0, 1)
            assert [each.arguments for each in node.scripts("SCRIPT")] == [("LOAD", HOLDERS), ("LOAD", LOOK_UP)]
            node.role = b"slave"
            await asyncio.sleep(1.5)
            assert not nodes.usable
            told = (
                "redis://dead:1: connection refused; redis://replica:2 is a replica; redis://primary:3 is a replica"
            )
            assert nodes.why_not == told
        assert (dead.open, replica.open, node.open) == (0, 0, 0)

    on_stage(main)


def test_a_node_that_says_something_else_each_time_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main(node: Heard) -> None:
        def another() -> Exception:
            return RedisFailed(f"busy with {len(node.connected)}")

        async with kept(nodes_of(node)):
            for _ in range(2):
                node.refusal = another
                await asyncio.sleep(60.0)
                node.refusal = None
                await asyncio.sleep(6.0)

    on_stage(main)
    lines = logged(caplog, "redis_unusable")
    assert len(lines) == 2 * 8, "eight reasons until it is found, and eight after that"
    assert len(set(lines)) == len(lines)


def test_the_same_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main(node: Heard) -> None:
        node.refusal = refused
        async with kept(nodes_of(node)):
            await asyncio.sleep(60.0)

    on_stage(main)
    assert len(logged(caplog, "redis_unusable")) == 1
