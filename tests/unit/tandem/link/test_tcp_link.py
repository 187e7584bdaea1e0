"""Links over TCP among strangers: what is no link is closed within its bound, and disturbs nobody."""

import asyncio
import gc
import os
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import uvloop

from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.messages import Ping, Pong
from tandem.link import tcp_server
from tandem.link.address import parse_address
from tandem.link.dialer import open_dialer
from tandem.link.protocol import RouterLink, WorkerLink
from tandem.link.queue import LinkLimits
from tandem.link.tcp_dialer import TcpDialer
from tandem.link.tcp_frames import Greeting, Streams, pack_frame, pack_greeting
from tandem.link.tcp_server import TcpLinkServer
from tandem.process.tls_settings import TlsSettings

LIMITS = LinkLimits(flush_s=0.2)
Wires = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Listener:
    """A server whose links answer every ping."""

    def __init__(self, bind: str = "127.0.0.1:0", pair_s: float = 5.0) -> None:
        self.server = TcpLinkServer(bind, LIMITS, pair_s=pair_s)
        self.lost: list[str] = []
        self.address = ""

    async def accept(self, link: WorkerLink) -> None:
        try:
            while True:
                for message in await link.tokens.receive():
                    assert isinstance(message, Ping)
                    link.tokens.send(Pong(1, message.count))
        except TandemError as error:
            self.lost.append(error.message)

    async def connect(self, *first: bytes) -> Wires:
        """A plain connection on which something is said at once."""
        where = parse_address(self.address)
        reader, writer = await asyncio.open_connection(where.host, where.port)
        writer.writelines(first)
        return reader, writer


@asynccontextmanager
async def listening(bind: str = "127.0.0.1:0", pair_s: float = 5.0) -> AsyncIterator[Listener]:
    listener = Listener(bind, pair_s)
    listener.address = await listener.server.start(listener.accept)
    try:
        yield listener
    finally:
        await listener.server.stop()


async def _works(address: str) -> None:
    link = await TcpDialer("friend", SeededEntropy(1), LIMITS).dial(address, 5.0)
    link.tokens.send(Ping(5))
    assert await asyncio.wait_for(link.tokens.receive(), 5.0) == (Pong(1, 5),)
    link.close("done")


async def _closed(wires: Wires, within_s: float = 30.0) -> None:
    reader, writer = wires
    with suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), within_s)
    writer.close()


def _greeting(stream: Streams, link: str = "one", protocol: int = 1) -> bytes:
    return pack_greeting(Greeting(protocol, link, stream, "stranger"))


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\xff" * 64,
        pack_frame(0, b"messages before any greeting"),
        pack_frame(2, b"\xc1"),
        pack_frame(2, b"\x80"),
        _greeting("tokens") + pack_frame(0, b""),
        _greeting("tokens") + _greeting("tokens"),
    ],
)
async def test_a_stranger_is_closed_at_once_and_disturbs_nobody(said: bytes) -> None:
    async with listening() as listener:
        await _closed(await listener.connect(said))
        await _works(listener.address)


async def test_bytes_without_sense_never_stop_a_server() -> None:
    draw = random.Random(5)
    async with listening(pair_s=0.3) as listener:
        strangers = [await listener.connect(draw.randbytes(draw.randrange(1, 300))) for _ in range(60)]
        await asyncio.gather(*(_closed(wires) for wires in strangers))
        await _works(listener.address)


async def test_whoever_says_nothing_or_only_half_is_closed_in_time() -> None:
    async with listening(pair_s=0.2) as listener:
        for said in (b"", _greeting("state")[:7], _greeting("state")):
            await _closed(await listener.connect(said))
        await _works(listener.address)


async def test_a_stream_that_is_there_already_ends_both() -> None:
    async with listening() as listener:
        first, second = await listener.connect(_greeting("state")), await listener.connect(_greeting("state"))
        await _closed(first)
        await _closed(second)


async def test_connections_that_only_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "ARRIVING_MAX", 3)
    async with listening() as listener:
        waiting = [await listener.connect() for _ in range(3)]
        await _closed(await listener.connect())
        for _, writer in waiting:
            writer.close()


async def _open_by_hand(listener: Listener) -> tuple[Wires, Wires]:
    tokens = await listener.connect(_greeting("tokens"))
    state = await listener.connect(_greeting("state"))
    for reader, _ in (tokens, state):
        await asyncio.wait_for(reader.read(5), 5.0)
    return tokens, state


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\xff\xff\xff\xff\x00", "4294967295 bytes"),
        (pack_frame(0, b"\x06\xff\xff\xff\xff"), "a message of"),
        (pack_frame(0, b"\x06\x01\x00\x00\x00\xc1"), "a message that is none"),
    ],
)
async def test_garbage_on_an_open_link_ends_that_link_with_the_reason(sent: bytes, reason: str) -> None:
    async with listening() as listener:
        tokens, state = await _open_by_hand(listener)
        tokens[1].write(sent)
        await _closed(tokens)
        await _closed(state)
        assert len(listener.lost) == 1
        assert reason in listener.lost[0]
        assert "stranger" in listener.lost[0]
        await _works(listener.address)


async def test_random_damage_on_an_open_link_ends_it_or_is_skipped() -> None:
    draw = random.Random(6)
    async with listening() as listener:
        for _ in range(20):
            tokens, state = await _open_by_hand(listener)
            tokens[1].write(pack_frame(draw.randrange(3), draw.randbytes(draw.randrange(60))))
            tokens[1].write(draw.randbytes(40))
            tokens[1].close()
            await _closed(state)
        await _works(listener.address)


async def _dial(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> TandemError:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(TandemError) as caught:
            await TcpDialer("router", SeededEntropy(1), LIMITS).dial(f"tcp://127.0.0.1:{port}", 0.4)
    finally:
        server.close()
    return caught.value


async def test_dialling_what_is_no_worker_is_link_lost() -> None:
    async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    for answer, says in ((web_server, "no frame of a link"), (silent, "did not answer"), (rude, "connection")):
        error = await _dial(answer)
        assert error.code == "link_lost"
        assert says in error.message


@pytest.mark.parametrize("address", ["tcp://host", "tcp://host:99999", "udp://host:1", "host:x", "tcp://:port"])
async def test_an_address_that_is_none_is_a_bad_setting(address: str) -> None:
    with pytest.raises(TandemError) as caught:
        await open_dialer("router", SeededEntropy(1), TlsSettings()).dial(address, 1.0)
    assert caught.value.code == "bad_setting"
    assert address in caught.value.message


async def test_a_name_nobody_knows_is_link_lost() -> None:
    with pytest.raises(TandemError) as caught:
        await TcpDialer("router", SeededEntropy(1)).dial("tcp://no..such..name:1", 3.0)
    assert caught.value.code == "link_lost"


def _has_ipv6_loopback() -> bool:
    with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.skipif(not _has_ipv6_loopback(), reason="needs IPv6")
async def test_ipv6_addresses_are_written_with_brackets() -> None:
    async with listening("[::1]:0") as listener:
        assert listener.address.startswith("tcp://[::1]:")
        await _works(listener.address)


def _descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
async def test_nothing_stays_open_after_links_have_ended() -> None:
    async with listening() as listener:
        await _works(listener.address)
        before = _descriptors()
        dialer = TcpDialer("router", SeededEntropy(1), LIMITS)
        for number in range(20):
            link = await dialer.dial(listener.address, 5.0)
            link.tokens.send(Ping(number))
            assert await link.tokens.receive() == (Pong(1, number),)
            link.close("enough")
            await _gone(link)
        async with asyncio.timeout(100.0):
            while _descriptors() > before:  # noqa: ASYNC110  (the kernel tells nobody)
                await asyncio.sleep(0.01)


async def _gone(link: RouterLink) -> None:
    with pytest.raises(TandemError):
        await link.tokens.receive()


def test_links_work_on_uvloop_as_they_do_on_asyncio() -> None:
    async def both() -> None:
        async with listening() as listener:
            await _works(listener.address)
            tokens, state = await _open_by_hand(listener)
            tokens[1].write(b"\xff" * 9)
            await _closed(tokens)
            await _closed(state)
            assert "no frame of a link" in listener.lost[-1]

    uvloop.run(both())
