"""The short way onto the socket keeps the order of bytes whatever the client does."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from router.http_server.response_writer import Connection, Message, ResponseWriter, ResponseWriterLimits
from router.http_server.wire import Wire
from tests.worlds.front_stage import until


class Transport:
    """A transport whose buffer the test fills and empties."""

    def __init__(self) -> None:
        self.buffered = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        self.buffered += data

    def get_write_buffer_size(self) -> int:
        return len(self.buffered)

    def is_closing(self) -> bool:
        return self.closing


@contextlib.asynccontextmanager
async def connected(send_bytes: int = 0) -> AsyncIterator[tuple[Wire, Transport, socket.socket]]:
    ours, theirs = socket.socketpair()
    if send_bytes:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    ours.setblocking(False)
    theirs.setblocking(False)
    transport = Transport()
    wire = Wire(ours.fileno(), transport)
    try:
        yield wire, transport, theirs
    finally:
        wire.detach()
        ours.close()
        theirs.close()


def read_all(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(BlockingIOError):
        while piece := connection.recv(1 << 16):
            data += piece
    return data


async def test_a_chunk_goes_out_framed() -> None:
    async with connected() as (wire, transport, theirs):
        assert wire.write(b"data: x\n\n")
        assert wire.write(b"y" * 300)
        assert read_all(theirs) == b"9\r\ndata: x\n\n\r\n12c\r\n" + b"y" * 300 + b"\r\n"
        assert not transport.buffered


async def test_nothing_overtakes_what_the_transport_still_holds() -> None:
    async with connected() as (wire, transport, theirs):
        transport.buffered = b"before"
        assert not wire.write(b"x")
        transport.buffered = b""
        assert wire.write(b"x")
        transport.buffered = b"another way"
        wire.hold()
        assert not wire.write(b"y")
        assert read_all(theirs) == b"1\r\nx\r\n"


async def test_what_the_kernel_does_not_take_goes_to_the_transport() -> None:
    async with connected(send_bytes=4096) as (wire, transport, theirs):
        written = 0
        while wire.write(b"z" * 1000):
            written += 1
            assert written < 10_000
        received = read_all(theirs)
        assert transport.buffered or received.endswith(b"\r\n")
        assert received + transport.buffered == (b"3e8\r\n" + b"z" * 1000 + b"\r\n") * written


async def test_a_detached_or_closing_connection_takes_nothing() -> None:
    async with connected() as (wire, transport, theirs):
        transport.closing = True
        assert not wire.write(b"x")
        transport.closing = False
        assert wire.write(b"x")
        wire.detach()
        assert not wire.write(b"y")
        assert read_all(theirs) == b"1\r\nx\r\n"


async def test_a_client_that_has_gone_is_the_transports_business() -> None:
    async with connected() as (wire, transport, theirs):
        theirs.close()
        for _ in range(3):
            wire.write(b"x")
        assert not transport.buffered


class Server:
    """The server's side of `send`: messages, and a gate that makes it wait."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def send(self, message: Message) -> None:
        await self.gate.wait()
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages if "body" in message)


class Chunks:
    """A `ChunkWriter` that takes chunks while it is open."""

    def __init__(self) -> None:
        self.open = True
        self.taken: list[bytes] = []
        self.held = 0

    def hold(self) -> None:
        self.held += 1

    def write(self, body: bytes) -> bool:
        if self.open:
            self.taken.append(body)
        return self.open


def outlet(
    server: Server, chunks: Chunks | None = None, limits: ResponseWriterLimits | None = None
) -> tuple[ResponseWriter, list[str]]:
    told: list[str] = []
    connection = Connection(lambda: told.append("abort"), chunks)
    return ResponseWriter(
        server.send, limits or ResponseWriterLimits(), connection, lambda: told.append("slow")
    ), told


async def test_sending_needs_no_task_while_the_client_reads() -> None:
    server = Server()
    out, _ = outlet(server)
    out.start(200, [])
    out.write(b"a")
    out.end(b"b")
    assert [message["type"] for message in server.messages] == ["http.response.start"] + ["http.response.body"] * 2
    assert [message.get("more_body") for message in server.messages] == [None, True, False]
    assert len(asyncio.all_tasks()) == 1


async def test_what_gathers_is_sent_in_one_piece_and_in_order() -> None:
    server = Server()
    out, told = outlet(server)
    out.start(200, [])
    server.gate.clear()
    for letter in "abcd":
        out.write(letter.encode())
    out.end(b"!")
    out.write(b"late")
    server.gate.set()
    await until(lambda: server.body == b"abcd!")
    assert [message["body"] for message in server.messages[1:]] == [b"a", b"bcd!"]
    assert [message["more_body"] for message in server.messages[1:]] == [True, False]
    assert not told
    await out.close()


async def test_the_short_way_is_taken_only_between_start_and_end_and_not_past_a_wait() -> None:
    server, chunks = Server(), Chunks()
    out, _ = outlet(server, chunks)
    out.start(200, [], streamed=True)
    out.write(b"1")
    chunks.open = False
    server.gate.clear()
    out.write(b"2")
    chunks.open = True
    out.write(b"3")
    assert chunks.taken == [b"1"], "3 may not overtake 2"
    server.gate.set()
    await until(lambda: server.body == b"23")
    await asyncio.sleep(0)
    out.write(b"4")
    out.end(b"5")
    out.write(b"6")
    assert chunks.taken == [b"1", b"4"]
    assert server.body == b"235"
    await out.close()


async def test_a_whole_response_never_takes_the_short_way() -> None:
    server, chunks = Server(), Chunks()
    out, _ = outlet(server, chunks)
    out.start(200, [(b"content-length", b"1")])
    out.write(b"1")
    out.end(b"")
    assert not chunks.taken


async def test_too_much_gathered_makes_the_client_slow_once() -> None:
    server = Server()
    out, told = outlet(server, limits=ResponseWriterLimits(buffer_bytes=10, stall_s=30.0, farewell_s=0.05))
    out.start(200, [])
    server.gate.clear()
    for _ in range(20):
        out.write(b"xxxxx")
    await until(lambda: told == ["slow", "abort"])
    await out.close()


async def test_a_closed_outlet_sends_nothing_and_leaves_no_task() -> None:
    server = Server()
    out, _ = outlet(server)
    out.start(200, [])
    server.gate.clear()
    out.write(b"a")
    out.write(b"b")
    await out.close()
    server.gate.set()
    await asyncio.sleep(0)
    assert server.body == b""
    assert len(asyncio.all_tasks()) == 1


async def test_a_server_that_says_the_client_is_gone_ends_the_outlet() -> None:
    async def send(message: Message) -> None:
        raise ConnectionResetError

    out = ResponseWriter(send, ResponseWriterLimits(), Connection(lambda: None), lambda: None)
    out.start(200, [])
    out.write(b"x")
    assert out.ended


@pytest.mark.parametrize("size", [1, 15, 16, 255, 256, 65_536])
async def test_chunk_sizes_are_hexadecimal(size: int) -> None:
    async with connected() as (wire, _, theirs):
        assert wire.write(b"x" * size)
        head, _, rest = read_all(theirs).partition(b"\r\n")
        assert int(head, 16) == size
        assert rest == b"x" * size + b"\r\n"
