"""Faults that a worker for drills causes in itself: a flipped bit is found by verification, a cut link is cut."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import closing

import pytest

from kv_transfer.transport.protocol import (
    Alive,
    BlockReceived,
    BlockSink,
    Delivered,
    ExportSource,
    PullEvent,
    PullOpen,
)
from kv_transfer.verify import Refusal, Verifier
from tandem.core.kv import Handle, Layout
from tandem.engine.digest import Digester, bind
from tandem.engine.hashing import InlineHashing
from tandem.worker.drill_faults import FlippingTransport, Flips, cut_connections

LAYOUT = Layout("torch", "plain", "float32", 4, 2, 4, 2, 8)
NAMES = tuple(bytes([number]) * 16 for number in range(4))
CONTENT = bytes(range(256)) * (LAYOUT.block_bytes // 256)


def handle(number: int) -> Handle:
    words = Digester(LAYOUT).content_words(memoryview(CONTENT))
    return Handle(7, NAMES[number], number, 1, bind(words, 7, NAMES[number], 1))


class Sink:
    def __init__(self) -> None:
        self.blocks = [bytearray(CONTENT) for _ in NAMES]

    def block(self, index: int) -> memoryview:
        return memoryview(self.blocks[index])


class WholePull:
    """Everything has arrived as it was sent."""

    def __init__(self) -> None:
        self.closed = self.acknowledged = False

    async def events(self) -> AsyncGenerator[PullEvent, None]:
        yield Alive()
        yield BlockReceived(0, handle(0))
        yield Delivered((BlockReceived(1, handle(1)), BlockReceived(2, handle(2))))
        yield BlockReceived(3, handle(3))

    async def acknowledge(self) -> None:
        self.acknowledged = True

    async def close(self) -> None:
        self.closed = True


class WholeTransport:
    scheme = "mem"

    def __init__(self) -> None:
        self.pull = WholePull()

    async def serve(self, source: ExportSource) -> str:
        return "mem://here"

    async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> WholePull:
        return self.pull

    async def close(self) -> None:
        return None


async def damaged(flips: Flips) -> list[int]:
    """Which of four blocks fail verification when they arrive through the faulty transport."""
    inner, sink = WholeTransport(), Sink()
    transport = FlippingTransport(inner, flips)
    pull = await transport.open("mem://here", PullOpen("lease", b"", 7, 8, LAYOUT, NAMES), sink, 1.0)
    found = []
    async for event in pull.events():
        blocks = (
            event.blocks if isinstance(event, Delivered) else (event,) if isinstance(event, BlockReceived) else ()
        )
        for each in blocks:
            block, name = memoryview(sink.blocks[each.index]), NAMES[each.index]
            (checked,) = await Verifier(InlineHashing(LAYOUT)).check([block], [each.handle], epoch=7, names=[name])
            if isinstance(checked, Refusal):
                found.append(each.index)
    await pull.acknowledge()
    await pull.close()
    assert inner.pull.acknowledged
    assert inner.pull.closed
    return found


async def test_without_being_armed_nothing_is_damaged() -> None:
    assert await damaged(Flips()) == []


@pytest.mark.parametrize("times", [1, 2, 4])
async def test_as_many_of_the_next_blocks_are_damaged_as_were_asked_for_and_each_is_refused(times: int) -> None:
    flips = Flips()
    for _ in range(times):
        flips.arm()
    assert await damaged(flips) == list(range(times))
    assert await damaged(flips) == [], "the next pull is whole again"


async def test_a_cut_breaks_what_is_connected_to_the_port_and_nothing_else() -> None:
    accepted: list[asyncio.StreamWriter] = []
    both = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        if len(accepted) == 2:
            both.set()
        await reader.read()
        writer.close()

    cut = await asyncio.start_server(serve, "127.0.0.1", 0)
    kept = await asyncio.start_server(serve, "127.0.0.1", 0)
    ports = [server.sockets[0].getsockname()[1] for server in (cut, kept)]
    loop = asyncio.get_running_loop()
    with (
        closing(socket.create_connection(("127.0.0.1", ports[0]))) as struck,
        closing(socket.create_connection(("127.0.0.1", ports[1]))) as spared,
    ):
        struck.setblocking(False)
        spared.setblocking(False)
        await asyncio.wait_for(both.wait(), 5.0)
        assert cut_connections(ports[0]) == 1
        assert await asyncio.wait_for(loop.sock_recv(struck, 1), 60.0) == b"", "the other end sees the connection end"
        with pytest.raises(BlockingIOError):
            spared.recv(1)
        assert cut.is_serving(), "who dials again is let in"
    cut.close()
    kept.close()


async def test_a_cut_leaves_no_descriptor_behind() -> None:
    before = len(os.listdir("/dev/fd"))
    assert cut_connections(1) == 0
    assert len(os.listdir("/dev/fd")) == before
