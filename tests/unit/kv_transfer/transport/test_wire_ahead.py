"""What a wire reads ahead: whatever comes in whichever pieces is given as it was sent, and no descriptor is lost."""

import asyncio
import os
import random
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.transport.unix_wire import UnixWire
from kv_transfer.transport.wire import AHEAD_BYTES, Wire, WireLost, framed

ITEMS = st.lists(st.tuples(st.sampled_from(("frame", "bytes", "views")), st.integers(0, 3 * AHEAD_BYTES)), max_size=8)
_PIECES_MAX = 1000
"""A turn of the loop each, on a machine that may be busy, a hundred times over."""


@asynccontextmanager
async def wires(kind: type[Wire] = Wire) -> AsyncGenerator[tuple[Wire, socket.socket], None]:
    one, other = socket.socketpair()
    wire = kind(one, "peer", 30.0)
    try:
        yield wire, other
    finally:
        wire.close()
        other.close()


@given(ITEMS, st.integers(1, 2 * AHEAD_BYTES), st.randoms(use_true_random=False))
def test_frames_and_bytes_come_as_they_were_sent(
    items: list[tuple[str, int]], piece: int, dice: random.Random
) -> None:
    """Over both kinds of wire, however the stream is cut into pieces."""
    contents = [(kind, dice.randbytes(size)) for kind, size in items]
    stream = b"".join(bytes(framed(data)[0]) if kind == "frame" else data for kind, data in contents)
    piece = max(piece, len(stream) // _PIECES_MAX)

    async def told(wire: Wire, other: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        other.setblocking(False)
        for start in range(0, len(stream), piece):
            await loop.sock_sendall(other, stream[start : start + piece])
            await asyncio.sleep(0)

    async def heard(kind: type[Wire]) -> None:
        async with wires(kind) as (wire, other), asyncio.timeout(60):
            telling = asyncio.ensure_future(told(wire, other))
            for what, data in contents:
                if what == "frame":
                    assert await wire.frame(len(data)) == data
                elif what == "bytes":
                    assert await wire.receive(len(data)) == data
                else:
                    place = bytearray(len(data))
                    half = len(data) // 2
                    await wire.receive_into([memoryview(place)[:half], memoryview(place)[half:]])
                    assert place == data
            await telling
            assert wire.quiet()

    for kind in (Wire, UnixWire):
        asyncio.run(heard(kind))


async def test_a_wire_on_which_more_has_come_than_was_asked_for_is_not_quiet() -> None:
    async with wires() as (wire, other):
        other.sendall(bytes(framed(b"one", b"two")[0]))
        assert await wire.frame(3) == b"one"
        assert not wire.quiet()
        heard = asyncio.Event()
        end = wire.listen(heard.set)
        async with asyncio.timeout(100):
            await heard.wait()
        end()
        assert await wire.frame(3) == b"two"
        assert wire.quiet()


async def test_whoever_listens_hears_once_and_whoever_has_ended_that_hears_nothing() -> None:
    async with wires() as (wire, other):
        for ended in (True, False):
            heard = list[str]()
            end = wire.listen(lambda heard=heard: heard.append("x"))  # type: ignore[misc]
            if ended:
                end()
            await asyncio.sleep(0)
            other.sendall(b"a")
            for _ in range(10):
                await asyncio.sleep(0)
            assert heard == ([] if ended else ["x"])
            end()
            assert await wire.receive(1) == b"a"


async def test_whoever_listens_hears_that_the_peer_hangs_up() -> None:
    async with wires() as (wire, other):
        heard = asyncio.Event()
        end = wire.listen(heard.set)
        other.close()
        async with asyncio.timeout(100):
            await heard.wait()
        end()


async def test_a_wire_that_is_closed_while_somebody_listens_stays_quiet() -> None:
    async with wires() as (wire, _):
        heard = list[str]()
        end = wire.listen(lambda: heard.append("x"))
        await asyncio.sleep(0)
        wire.close()
        end()
        end()
        assert heard == []


@pytest.mark.parametrize("kind", [Wire, UnixWire])
async def test_a_closed_wire_gives_nothing_of_what_it_has_read_ahead(kind: type[Wire]) -> None:
    place = bytearray(3)
    for read in (
        lambda wire: wire.frame(3),
        lambda wire: wire.receive(3),
        lambda wire: wire.receive_into([memoryview(place)]),
    ):
        async with wires(kind) as (wire, other):
            other.sendall(bytes(framed(b"one", b"two", b"three")[0]))
            assert await wire.frame(3) == b"one"
            wire.close()
            with pytest.raises(WireLost):
                await read(wire)
    assert place == bytes(3)


async def test_a_descriptor_in_the_midst_of_frames_is_not_lost() -> None:
    async with wires(UnixWire) as (wire, other), wires(UnixWire) as (sender, far):
        far.close()
        sender.socket, theirs = other, sender.socket
        theirs.close()
        reading, writing = os.pipe()
        await sender.send(framed(b"before"))
        await sender.send_descriptor(reading)
        await sender.send(framed(b"after"))
        os.close(reading)
        assert isinstance(wire, UnixWire)
        assert await wire.frame(6) == b"before"
        received = await wire.receive_descriptor()
        assert await wire.frame(5) == b"after"
        os.write(writing, b"x")
        assert os.read(received, 1) == b"x"
        for each in (received, writing):
            os.close(each)


async def test_descriptors_that_nobody_asked_for_are_closed() -> None:
    reading, writing = os.pipe()
    async with wires(UnixWire) as (wire, other):
        socket.send_fds(other, [b"ab"], [writing])
        assert await wire.receive(1) == b"a"
        os.close(writing)
        other.sendall(b"c")
        assert await wire.receive(2) == b"bc"
    os.set_blocking(reading, False)
    assert os.read(reading, 1) == b"", "the last writer is gone"
    os.close(reading)


async def test_a_peer_that_sends_more_descriptors_than_are_due_is_hung_up_on() -> None:
    reading, writing = os.pipe()
    async with wires(UnixWire) as (wire, other):
        for _ in range(2):
            socket.send_fds(other, [b"a"], [writing])
        with pytest.raises(WireLost, match="where none was due"):
            await wire.receive(2)
    os.close(writing)
    os.set_blocking(reading, False)
    assert os.read(reading, 1) == b"", "the last writer is gone"
    os.close(reading)


async def test_a_byte_without_a_descriptor_is_none() -> None:
    async with wires(UnixWire) as (wire, other):
        other.sendall(b"\0")
        assert isinstance(wire, UnixWire)
        with pytest.raises(WireLost, match="sent no file descriptor"):
            await wire.receive_descriptor()
