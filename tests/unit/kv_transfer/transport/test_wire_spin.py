"""Short waits are spun through, long ones are slept through, and nobody spins on an idle wire."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.transport.spinning import SPIN_S, TURN_S, Spin
from kv_transfer.transport.wire import Wire


@given(st.lists(st.floats(0, 2 * SPIN_S), max_size=20))
def test_the_last_wait_decides_and_a_spin_lasts_no_longer_than_a_short_wait(waits: list[float]) -> None:
    spin, now, short = Spin(), 0.0, False
    for seconds in waits:
        began = now
        while spin.again(now):
            assert short, "the wait before was a long one, or there was none"
            assert now - began <= SPIN_S
            now += TURN_S / 2
        now = max(now, began + seconds)
        spin.over(now)
        short = now - began <= SPIN_S


def test_a_turn_of_others_that_takes_long_ends_a_spin() -> None:
    spin = Spin()
    for now in (0.0, 1.0, 1.0 + TURN_S / 2):
        assert spin.again(now) == (now >= 1.0)
        if now == 0.0:
            spin.over(0.0)
    assert not spin.again(1.0 + 2 * TURN_S)
    assert not spin.again(1.0 + 2 * TURN_S), "and it does not begin again"


def test_what_needs_no_waiting_says_nothing_of_the_next_wait() -> None:
    spin = Spin()
    spin.over(5.0)
    assert not spin.again(6.0)


class Counting(Wire):
    """Says how often it slept."""

    slept = 0

    async def _wait(self, way: str, wait_s: float | None) -> None:
        self.slept += 1
        await super()._wait(way, wait_s)


class Always(Spin):
    """Never sleeps of its own accord: a busy machine may take its time."""

    def again(self, now: float) -> bool:
        return True


@asynccontextmanager
async def wires(spin: Spin | None) -> AsyncGenerator[tuple[Counting, socket.socket], None]:
    one, other = socket.socketpair()
    wire = Counting(one, "peer", 30.0, spin)
    try:
        yield wire, other
    finally:
        wire.close()
        other.close()


async def test_what_comes_during_a_spin_is_received_without_sleeping_and_others_have_their_turns() -> None:
    async with wires(Always()) as (wire, other):
        receiving = asyncio.ensure_future(wire.receive(3))
        for _ in range(10):
            await asyncio.sleep(0)
        other.sendall(b"abc")
        assert await receiving == b"abc"
        assert wire.slept == 0


async def test_a_peer_that_hangs_up_or_a_wire_that_is_closed_ends_a_spin() -> None:
    for close in (lambda wire, other: other.close(), lambda wire, other: wire.close()):
        async with wires(Always()) as (wire, other):
            receiving = asyncio.ensure_future(wire.receive(3))
            await asyncio.sleep(0)
            close(wire, other)
            async with asyncio.timeout(100):
                (error,) = await asyncio.gather(receiving, return_exceptions=True)
            assert isinstance(error, Exception)
            assert getattr(error, "code", "") == "transfer_failed"


async def test_a_spin_that_brings_nothing_is_followed_by_sleep() -> None:
    spin = Spin()
    spin.again(0.0)
    spin.over(0.0)
    async with wires(spin) as (wire, other):
        asyncio.get_running_loop().call_later(20 * SPIN_S, other.sendall, b"abc")
        assert await wire.receive(3) == b"abc"
        assert wire.slept == 1
        assert not spin.again(0.0), "the wait was a long one"
