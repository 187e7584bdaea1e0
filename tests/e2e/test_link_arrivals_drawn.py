"""A worker's link port against whatever arrives there before a link is open: bytes, frames and greetings drawn."""

import asyncio
import logging
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.core.entropy import SeededEntropy
from tandem.core.messages import PROTOCOL_VERSION, Ping, Pong
from tandem.link import tcp_server
from tandem.link.address import parse_address
from tandem.link.dialer import open_dialer
from tandem.link.proof import LinkKeys
from tandem.link.protocol import Dialer, WorkerLink
from tandem.link.servers import open_server
from tandem.link.tcp_dialer import TcpDialer
from tandem.link.tcp_frames import GREETING, Answer, Greeting, Streams, pack_frame, pack_greeting
from tandem.link.tcp_server import TcpLinkServer
from tandem.process.tls_settings import TlsSettings
from tests.e2e.test_link_commands_drawn import staged, tracebacks
from tests.worlds.certificates import HAS_OPENSSL, make_certificates
from tests.worlds.link_messages_drawn import flipped
from tests.worlds.platform import until

KEYS = LinkKeys([bytes(range(32))])
PAIR_S = 0.5
WITHIN_S = 30.0
CASES = 300
_EDGES = (0, 1, 4095, 4096, 4097, 2**31, 2**32 - 1)


async def _answer(link: WorkerLink) -> None:
    """Every ping is answered until the link is lost."""
    while True:
        for message in await link.tokens.receive():
            assert isinstance(message, Ping)
            link.tokens.send(Pong(1, message.count))


async def accept(link: WorkerLink) -> None:
    with suppress(tcp_server.TandemError):
        await _answer(link)


async def works(dialer: Dialer, address: str) -> None:
    """A real router has a link, and its heartbeat an answer."""
    link = await dialer.dial(address, WITHIN_S)
    link.tokens.send(Ping(5))
    assert await asyncio.wait_for(link.tokens.receive(), WITHIN_S) == (Pong(1, 5),)
    link.close("done")


class Arrivals:
    """Draws what somebody says to the port of a TCP link server, as pieces that are sent one after the other."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def said(self) -> list[bytes]:
        draw = self.draw
        match draw.randrange(6):
            case 0:
                return [draw.randbytes(draw.randrange(200))]
            case 1:
                return [struct.pack("<IB", draw.choice(_EDGES), draw.randrange(8)) + bytes(draw.choice((0, 4096)))]
            case 2:
                kinds = [draw.randrange(8) for _ in range(draw.randrange(1, 6))]
                return [b"".join(pack_frame(kind, self._body()) for kind in kinds)]
            case 3:
                whole = self._greeting() + pack_greeting(Answer(draw.randbytes(draw.choice((0, 31, 32, 33)))))
                return [bytes((each,)) for each in whole]
            case 4:
                return [self._greeting() * draw.choice((1, 2, 100)), pack_greeting(Answer(bytes(32))) * 50]
            case _:
                return [flipped(self._greeting(), draw)[: draw.randrange(1, 60)]]

    def _body(self) -> bytes:
        return self.draw.choice((b"", bytes(40), b"\x91" * 4000, self._greeting()[5:]))

    def _greeting(self) -> bytes:
        draw = self.draw
        nested: Any = 0
        for _ in range(draw.choice((0, 3, 900))):
            nested = [nested]
        fields = {
            "protocol": draw.choice((*(PROTOCOL_VERSION,) * 4, 0, -1, 2**64 - 1, "2", nested)),
            "link": draw.choice(("one", "", "x" * 3000, 7)),
            "stream": draw.choice(("tokens", "state", "tokens", "state", "other")),
            "router": draw.choice(("stranger", "\n\x00", "r" * 900)),
            "nonce": draw.choice((b"", bytes(15), bytes(16), bytes(16), bytes(17), None)),
            "more": nested if draw.random() < 0.1 else 0,
        }  # fmt: skip
        if draw.random() < 0.1:
            del fields[draw.choice(list(fields))]
        return pack_frame(GREETING, msgspec.msgpack.encode(fields))


async def say(address: str, pieces: list[bytes], *, reads: bool) -> None:
    """Say it to the port, and leave once that has closed; or at once, with everything unread."""
    where = parse_address(address)
    reader, writer = await asyncio.open_connection(where.host, where.port)
    with suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if reads:
            async with asyncio.timeout(WITHIN_S):
                await reader.read()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def listening(server: TcpLinkServer) -> AsyncIterator[str]:
    address = await server.start(accept)
    try:
        yield address
    finally:
        await server.stop()


@pytest.mark.parametrize("keys", [None, KEYS], ids=["without a key", "with a key"])
async def test_nothing_that_arrives_stays_or_disturbs_a_link(
    keys: LinkKeys | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    server = TcpLinkServer("127.0.0.1:0", pair_s=PAIR_S, keys=keys)
    dialer = TcpDialer("friend", SeededEntropy(1), keys=keys)
    async with listening(server) as address:
        for first in range(0, CASES, 50):
            saying = [say(address, Arrivals(seed).said(), reads=seed % 3 > 0) for seed in range(first, first + 50)]
            await asyncio.gather(*saying)
            await works(dialer, address)
            assert len(server._arriving) <= tcp_server.ARRIVING_MAX
        await until(lambda: not server._arriving and not server._waiting, WITHIN_S, "connections stay")
    assert tracebacks(caplog) == []
    assert "socket.send() raised exception." not in {record.message for record in caplog.records}


async def test_two_equal_halves_and_the_proof_of_another_link_open_none(caplog: pytest.LogCaptureFixture) -> None:
    server = TcpLinkServer("127.0.0.1:0", pair_s=PAIR_S, keys=KEYS)
    heard: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What a real router says, for everybody to hear; the worker's answers go back to it."""
        there = parse_address(address)
        up, down = await asyncio.open_connection(there.host, there.port)

        async def answers() -> None:
            while data := await up.read(4096):
                writer.write(data)
            writer.close()

        answering = asyncio.create_task(answers())
        while data := await reader.read(4096):
            heard.append(data)
            down.write(data)
        down.close()
        await answering

    async with listening(server) as address:
        tap = await asyncio.start_server(relay, "127.0.0.1", 0)
        await works(
            TcpDialer("friend", SeededEntropy(1), keys=KEYS), f"tcp://127.0.0.1:{tap.sockets[0].getsockname()[1]}"
        )
        tap.close()
        streams: tuple[Streams, ...] = ("tokens", "state")
        replays = [say(address, list(heard), reads=True)]
        replays += [say(address, [data], reads=True) for data in heard]
        halves = [pack_greeting(Greeting(PROTOCOL_VERSION, "twin", name, "r", bytes(16))) for name in streams]
        replays += [say(address, [half], reads=True) for half in halves * 2]
        await asyncio.gather(*replays)
        assert not server._links or len(server._links) <= 1, "only the real router had a link"
        await until(lambda: not server._arriving, WITHIN_S, "connections stay")
    assert tracebacks(caplog) == []


@pytest.mark.skipif(not HAS_OPENSSL, reason="makes certificates with openssl")
async def test_connections_that_never_finish_their_handshake_are_forgotten(tmp_path: Path) -> None:
    """They once stayed among those that arrive for ever, and beyond `ARRIVING_MAX` nobody was bounded any more."""
    tls: TlsSettings = make_certificates(tmp_path / "tls")
    server = open_server("127.0.0.1:0", None, tls, PAIR_S)
    async with listening(server) as address:
        where = parse_address(address)
        silent = [await asyncio.open_connection(where.host, where.port) for _ in range(5)]
        await asyncio.gather(*(say(address, [b"GET / HTTP/1.0\r\n\r\n"], reads=True) for _ in range(20)))
        await until(lambda: not server._arriving, WITHIN_S, lambda: f"{len(server._arriving)} connections stay")
        for _, writer in silent:
            writer.close()
        await works(open_dialer("friend", SeededEntropy(1), tls), address)


async def test_a_worker_answers_its_router_right_while_strangers_come(caplog: pytest.LogCaptureFixture) -> None:
    async with staged("tcp") as stage:
        saying = [say(stage.service.address, Arrivals(seed).said(), reads=False) for seed in range(1000, 1100)]
        await asyncio.gather(*saying)
        before = stage.answers
        await until(lambda: stage.answers > before, WITHIN_S, "no answer")
    assert tracebacks(caplog) == []
