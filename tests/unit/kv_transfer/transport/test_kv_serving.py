"""The holder's end of a connection against peers that do not wait for their turn."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from kv_transfer.transport import rpc
from kv_transfer.transport.frames import GREETING, Refused
from kv_transfer.transport.limits import ConnectionLimits
from kv_transfer.transport.protocol import Alive, Answer, Missing, Offer, PullOpen
from kv_transfer.transport.serving import PullServer
from kv_transfer.transport.unix_wire import UnixWire
from kv_transfer.transport.wire import Wire, framed
from tandem.core.errors import TandemError
from tandem.core.kv import Layout
from tandem.engine.protocol import FirstTokens
from tests.worlds.transport_stage import eventually

LIMITS = ConnectionLimits(stall_s=60.0, greeting_s=60.0, idle_s=60.0)
LAYOUT = Layout("test", "plain", "float32", 4, 1, 16, 4, 4)
OPEN = rpc.encode_open(PullOpen("lease", b"no ticket", 1, 2, LAYOUT, (b"n" * 16,)))
FIRST = FirstTokens(((0, 17, None),))
PULLS = 300
WITHIN_S = 40.0


@dataclass
class Source:
    """An `ExportSource` that never waits. `refusal` is what it refuses with; else it answers with `batches`."""

    refusal: TandemError | None = None
    batches: Sequence[tuple[Answer, ...]] = ((FIRST,),)
    memory: Any = None
    acknowledged: list[str] = field(default_factory=list)
    done: int = 0
    """Whatever it did."""
    in_a_row: int = 0
    longest: int = 0
    """The most that it did while nobody else had a turn."""

    async def answers(self, request: PullOpen) -> AsyncGenerator[tuple[Answer, ...], None]:
        self._one_more()
        if self.refusal is not None:
            raise self.refusal
        for batch in self.batches:
            self._one_more()
            yield batch

    def acknowledge(self, lease_id: str) -> None:
        self.acknowledged.append(lease_id)

    def refused(self, lease_id: str, name: bytes) -> None:
        self._one_more()

    def _one_more(self) -> None:
        self.done += 1
        self.in_a_row += 1
        self.longest = max(self.longest, self.in_a_row)

    async def take_turns(self) -> None:
        """Somebody else on the event loop."""
        while True:
            self.in_a_row = 0
            await asyncio.sleep(0)


class Carrier:
    async def introduce(self, wire: Wire) -> None:
        return None

    def payload(self, offers: Sequence[Offer]) -> list[memoryview]:
        return []


def wire_of(kind: type[Wire], peer: socket.socket) -> Wire:
    return kind(peer, "receiver", LIMITS.stall_s)


@asynccontextmanager
async def served(source: Source, kind: type[Wire] = Wire) -> AsyncGenerator[socket.socket, None]:
    """A peer of a server with `source`; its socket waits."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = PullServer(listener, source, Carrier, LIMITS, lambda peer: None, lambda peer: wire_of(kind, peer))
    server.start()
    loop = asyncio.get_running_loop()
    peer = socket.socket()
    peer.setblocking(False)
    turns = loop.create_task(source.take_turns())
    try:
        await loop.sock_connect(peer, listener.getsockname())
        yield peer
    finally:
        peer.close()
        turns.cancel()
        await asyncio.wait((turns,))
        await server.close()


def stream(*frames: bytes) -> bytes:
    return b"".join(bytes(each) for each in framed(*frames))


@pytest.mark.parametrize("kind", [Wire, UnixWire])
async def test_pulls_that_come_without_waiting_leave_others_their_turns(kind: type[Wire]) -> None:
    source = Source(TandemError("ticket_refused", "none was presented"))
    async with served(source, kind) as peer:
        await asyncio.get_running_loop().sock_sendall(peer, GREETING + stream(*[OPEN] * PULLS))
        await eventually(lambda: source.done == PULLS, WITHIN_S)
    assert source.longest <= 2


async def test_refusals_of_blocks_that_come_without_waiting_leave_others_their_turns() -> None:
    source = Source()
    refused = rpc.encode_refused(Refused("lease", b"n" * 16))
    async with served(source) as peer:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(peer, GREETING + stream(OPEN))
        answer = stream(rpc.encode_event(FIRST))
        assert await received(peer, len(answer)) == answer
        await loop.sock_sendall(peer, stream(*[refused] * PULLS))
        await eventually(lambda: source.done == 2 + PULLS, WITHIN_S)
    assert source.longest <= 4


@pytest.mark.parametrize("batches", [1, 15, 16, 17, 32, 300])
async def test_a_long_answer_leaves_others_their_turns_and_its_connection_fit_for_the_next(batches: int) -> None:
    answers = [(Missing(index, "gone"), Alive()) for index in range(batches - 1)]
    source = Source(batches=[*answers, (FIRST,)])
    acknowledge = rpc.encode_acknowledge("lease")
    async with served(source) as peer:
        loop = asyncio.get_running_loop()
        expected = stream(*[rpc.encode_event(each) for batch in source.batches for each in batch])
        await loop.sock_sendall(peer, GREETING)
        for _ in range(3):
            await loop.sock_sendall(peer, stream(OPEN))
            assert await received(peer, len(expected)) == expected
            await loop.sock_sendall(peer, stream(acknowledge))
        await eventually(lambda: source.acknowledged == ["lease"] * 3, WITHIN_S)
    assert source.longest <= 20


async def test_whoever_was_refused_and_does_not_listen_acknowledges_nothing() -> None:
    """Its lease is somebody else's."""
    source = Source(TandemError("ticket_refused", "x" * (32 << 20)))
    async with served(source) as peer:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(peer, GREETING + stream(OPEN, rpc.encode_acknowledge("lease")))
        await eventually(lambda: source.done == 1, WITHIN_S)
        async with asyncio.timeout(WITHIN_S):
            with suppress(ConnectionError):
                while await loop.sock_recv(peer, 1 << 20):
                    pass
    assert source.acknowledged == []


async def received(peer: socket.socket, size: int) -> bytes:
    data = b""
    async with asyncio.timeout(WITHIN_S):
        while len(data) < size and (piece := await asyncio.get_running_loop().sock_recv(peer, size - len(data))):
            data += piece
    return data
