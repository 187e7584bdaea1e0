"""Short waits are spun through, long ones are slept through, and nobody spins on an idle wire."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.spinning import SPIN_S, Spin
from kv_transfer.wire import Wire


@given(st.lists(st.floats(0, 2 * SPIN_S), max_size=20))
def test_the_last_wait_decides(waits: list[float]) -> None:
    spin = Spin()
    assert spin.budget_s() == 0, "of the first wait nothing is known"
    for seconds in waits:
        spin.waited(seconds)
        assert (spin.budget_s() > 0) == (seconds <= SPIN_S)
        assert spin.budget_s() <= SPIN_S


class Counting(Wire):
    """Says how often it slept."""

    slept = 0

    async def _wait(self, way: str, wait_s: float | None) -> None:
        self.slept += 1
        await super()._wait(way, wait_s)


class Always(Spin):
    """Never sleeps of its own accord: a busy machine may take its time."""

    def budget_s(self) -> float:
        return 30.0

    def crowded(self, turn_s: float) -> bool:
        return False


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
            async with asyncio.timeout(30):
                (error,) = await asyncio.gather(receiving, return_exceptions=True)
            assert isinstance(error, Exception)
            assert getattr(error, "code", "") == "transfer_failed"


async def test_a_spin_that_brings_nothing_is_followed_by_sleep() -> None:
    spin = Spin()
    spin.waited(0.0)
    async with wires(spin) as (wire, other):
        asyncio.get_running_loop().call_later(20 * SPIN_S, other.sendall, b"abc")
        assert await wire.receive(3) == b"abc"
        assert wire.slept == 1
        assert spin.budget_s() == 0


async def test_a_spin_ends_when_others_keep_the_loop() -> None:
    class Crowded(Always):
        def crowded(self, turn_s: float) -> bool:
            return True

    async with wires(Crowded()) as (wire, other):
        receiving = asyncio.ensure_future(wire.receive(3))
        for _ in range(5):
            await asyncio.sleep(0)
        assert wire.slept == 1
        other.sendall(b"abc")
        assert await receiving == b"abc"
