"""Socket transports against peers that die, freeze, babble or lie."""

import asyncio
import signal
import socket
import ssl
import struct
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from kv_transfer.transport import rpc
from kv_transfer.transport.frames import GREETING, Pool, Refused
from kv_transfer.transport.protocol import BlockReceived, Missing, Offer
from kv_transfer.transport.sockets import connect
from kv_transfer.transport.tcp_tls import marked
from tandem.core.errors import TandemError
from tandem.core.kv import Handle
from tandem.engine.protocol import FirstTokens
from tests.contract.block_space import name_of, ready_lease
from tests.worlds.certificates import HAS_OPENSSL
from tests.worlds.transport_stage import (
    AT_LAST_S,
    PATIENT,
    Stage,
    collect,
    descriptors,
    encrypted,
    eventually,
    one_by_one,
    past_alive,
    stage,
)

KINDS = (
    "tcp",
    pytest.param("tls", marks=pytest.mark.skipif(not HAS_OPENSSL, reason="makes certificates with openssl")),
    "shm",
)
ROOT = Path(__file__).parent.parent.parent


# ---- the holder's process dies or freezes ------------------------------------------------------------------------


@asynccontextmanager
async def holder_process(kind: str, ready: int) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str], None]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.worlds.kv_holder", kind, str(ready), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_killed_or_frozen_holder_ends_the_pull_in_bounded_time(kind: str, how: signal.Signals) -> None:
    async with stage(kind) as s, holder_process(kind, 2) as (process, address):
        s.address = address
        pull = await s.open(s.request(tuple(name_of(i) for i in range(3))))
        async with aclosing(one_by_one(pull)) as events:
            assert isinstance(await anext(events), BlockReceived)
            assert isinstance(await anext(events), BlockReceived)
            process.send_signal(how)
            async with asyncio.timeout(AT_LAST_S):
                with pytest.raises(TandemError) as caught:
                    await past_alive(events)
        assert caught.value.code == "transfer_failed"
        await pull.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_the_holder_lets_go_when_the_receiver_disappears(kind: str) -> None:
    async with stage(kind, limits=PATIENT) as s:
        s.holder.lease("lease", (name_of(0),))
        pull = await s.open(s.request((name_of(0),)))
        async with aclosing(one_by_one(pull)) as events:
            await anext(events)
            assert s.exporter.pulls == 1
        await s.pulling.close()
        # Before it would be let go for saying nothing.
        await eventually(lambda: s.exporter.pulls == 0, 0.8 * PATIENT.stall_s)


# ---- the receiver babbles ----------------------------------------------------------------------------------------


async def dial(address: str) -> socket.socket:
    scheme, _, rest = address.partition("://")
    family = socket.AF_UNIX if scheme == "shm" else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    host, _, port = rest.removesuffix("/tls").partition(":")
    await asyncio.get_running_loop().sock_connect(sock, rest if scheme == "shm" else (host, int(port)))
    return sock


async def hung_up(sock: socket.socket) -> bytes:
    """Everything until the other side closes."""
    loop, data = asyncio.get_running_loop(), b""
    async with asyncio.timeout(60.0):
        with suppress(ConnectionError):
            while piece := await loop.sock_recv(sock, 65536):
                data += piece
    sock.close()
    return data


BABBLE = {
    "an http request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a wrong greeting": b"tandemxx",
    "half a greeting": b"tand",
    "an oversized frame": GREETING + struct.pack("<I", 1 << 31),
    "a frame of garbage": GREETING + struct.pack("<I", 8) + b"\xff" * 8,
    "half a frame": GREETING + struct.pack("<I", 100) + b"x",
    "an acknowledge out of nowhere": GREETING
    + struct.pack("<I", len(rpc.encode_acknowledge("lease")))
    + rpc.encode_acknowledge("lease"),
    "a refusal out of nowhere": GREETING
    + struct.pack("<I", len(rpc.encode_refused(Refused("lease", b"n" * 16))))
    + rpc.encode_refused(Refused("lease", b"n" * 16)),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_babble_ends_its_own_connection_and_nothing_else(kind: str) -> None:
    async with stage(kind) as s:
        names = ready_lease(s.holder, 2)
        socks = [await dial(s.address) for _ in BABBLE]
        for sock, data in zip(socks, BABBLE.values(), strict=True):
            await asyncio.get_running_loop().sock_sendall(sock, data)
        assert len(await s.events(s.request(names))) == 3
        await asyncio.gather(*(hung_up(sock) for sock in socks))
        assert "lease" in s.holder.leases
        assert len(await s.events(s.request(names))) == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_connections_over_the_bound_are_closed_and_room_comes_back(kind: str) -> None:
    async with stage(kind, limits=PATIENT) as s:
        names = ready_lease(s.holder, 2)
        socks = [await dial(s.address) for _ in range(PATIENT.connections_max + 8)]
        with pytest.raises(TandemError) as caught:
            await s.events(s.request(names))
        assert caught.value.code == "transfer_failed"
        for sock in socks:
            sock.close()
        async with asyncio.timeout(100.0):
            while True:
                with suppress(TandemError):
                    assert len(await s.events(s.request(names))) == 3
                    break
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", ["tcp", "shm"])
async def test_an_unread_pull_is_dropped_after_a_while(kind: str) -> None:
    async with stage(kind, 1 << 20, 66) as s:
        names = ready_lease(s.holder, 32)
        request = rpc.encode_open(s.request(names * 60))
        sock = await dial(s.address)
        await asyncio.get_running_loop().sock_sendall(sock, GREETING + struct.pack("<I", len(request)) + request)
        await eventually(lambda: s.exporter.pulls == 1)
        if kind == "tcp":
            await eventually(lambda: s.exporter.pulls == 0, AT_LAST_S)
        sock.close()
        await eventually(lambda: s.exporter.pulls == 0)


# ---- the holder lies ---------------------------------------------------------------------------------------------

Act = Callable[[socket.socket], Coroutine[Any, Any, None]]


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)


@asynccontextmanager
async def lying_holder(s: Stage, tmp_path: Path, *pieces: bytes) -> AsyncGenerator[None, None]:
    """A server that answers any pull with `pieces` and then says nothing more."""
    if s.kind in ("tcp", "tls"):
        listener = socket.create_server(("127.0.0.1", 0))
        s.address = marked(f"tcp://127.0.0.1:{listener.getsockname()[1]}", s.kind == "tls")
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        s.address = f"shm://{tmp_path / 's'}"
    listener.setblocking(False)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        peer, _ = await loop.sock_accept(listener)
        context = encrypted().serving if s.kind == "tls" else None
        reader, writer = (
            await asyncio.open_connection(sock=peer) if context is None else await _secured(peer, context)
        )
        await reader.read(1 << 20)
        writer.write(b"".join(pieces))
        with closing(writer):
            await asyncio.sleep(30)

    task = asyncio.create_task(serve())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
        listener.close()


async def _secured(peer: socket.socket, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, peer, ssl=context)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def offer(index: int, slot: int = 0) -> bytes:
    return rpc.encode_offers([Offer(index, Handle(1, b"n" * 16, slot, 1, b"d" * 8))])


LIES = {
    "garbage": [b"\xff" * 64],
    "an oversized frame": [struct.pack("<I", 1 << 30)],
    "a frame of garbage": [framed(b"\xff" * 10)],
    "a block that was not asked for": [framed(offer(7))],
    "the same block twice": [framed(rpc.encode_event(Missing(0, "x")), rpc.encode_event(Missing(0, "x")))],
    "half a frame": [framed(offer(0))[:-1]],
    "nothing": [b""],
    "an unknown code": [framed(rpc.encode_failed(TandemError("internal", "boom")))],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lie", LIES)
async def test_a_lying_holder_fails_the_pull_with_a_type(kind: str, lie: str, tmp_path: Path) -> None:
    async with stage(kind) as s, lying_holder(s, tmp_path, *LIES[lie]):
        with pytest.raises(TandemError) as caught:
            await s.events(s.request((name_of(0),)))
        assert caught.value.code == "transfer_failed"


async def test_shm_accepts_no_slot_of_a_pool_it_has_not_been_shown(tmp_path: Path) -> None:
    async with stage("shm") as s, lying_holder(s, tmp_path, framed(offer(0, 3))):
        with pytest.raises(TandemError, match="offered slot 3, outside the pool of 0"):
            await s.events(s.request((name_of(0),)))


async def test_a_lie_in_many_slots_is_told_in_one_line(tmp_path: Path) -> None:
    """What a holder sends does not become as long a message."""
    offers = [Offer(index, Handle(1, b"n" * 16, 7 + index, 1, b"d" * 8)) for index in range(2000)]
    async with stage("shm") as s, lying_holder(s, tmp_path, framed(rpc.encode_offers(offers))):
        with pytest.raises(TandemError, match="offered slot 2006, outside the pool") as caught:
            await s.events(s.request(tuple(name_of(index) for index in range(2000))))
        assert len(caught.value.message) < 500


async def test_shm_needs_the_descriptor_that_was_announced(tmp_path: Path) -> None:
    async with stage("shm") as s, lying_holder(s, tmp_path, framed(rpc.encode_pool(Pool(2048, 4))), b"\0"):
        with pytest.raises(TandemError, match="no file descriptor"):
            await s.events(s.request((name_of(0),)))


async def test_tcp_takes_no_offer_of_shared_memory(tmp_path: Path) -> None:
    async with stage("tcp") as s, lying_holder(s, tmp_path, framed(rpc.encode_pool(Pool(2048, 4)))):
        with pytest.raises(TandemError, match="over TCP"):
            await s.events(s.request((name_of(0),)))


# ---- reuse -------------------------------------------------------------------------------------------------------


def mapped() -> int:
    """Block memories in this process's address space."""
    return Path("/proc/self/maps").read_text().count("tandem-kv")


@pytest.mark.parametrize("kind", KINDS)
async def test_pulls_in_a_row_share_a_connection_and_a_mapping(kind: str) -> None:
    async with stage(kind) as s:
        names = ready_lease(s.holder, 3)
        await s.events(s.request(names))
        before = descriptors()
        maps = mapped()
        for _ in range(5):
            *_, first = await s.events(s.request(names))
            assert isinstance(first, FirstTokens)
        assert descriptors() <= before, "what earlier tests had left may go meanwhile"
        await asyncio.gather(*(s.events(s.request(names), 6 * n) for n in range(6)))
        assert mapped() <= maps


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refused_pull_leaves_its_connection_fit_for_the_next(kind: str) -> None:
    async with stage(kind) as s:
        names = ready_lease(s.holder, 3)
        await s.events(s.request(names))
        before = descriptors()
        with pytest.raises(TandemError):
            await s.events(s.request(names, "no such lease"))
        assert len(await s.events(s.request(names))) == 4
        assert descriptors() <= before, "what earlier tests had left may go meanwhile"


@pytest.mark.parametrize("kind", KINDS)
async def test_an_acknowledge_in_the_middle_ends_pull_and_lease(kind: str) -> None:
    async with stage(kind) as s:
        s.holder.lease("lease", (name_of(0), name_of(1)))
        s.holder.complete("lease", 0)
        pull = await s.open(s.request((name_of(0), name_of(1))))
        async with aclosing(one_by_one(pull)) as events:
            assert isinstance(await anext(events), BlockReceived)
            await pull.acknowledge()
            await eventually(lambda: "lease" not in s.holder.leases)
        await pull.close()
        with pytest.raises(TandemError):
            await collect(pull)


async def test_the_socket_of_shm_is_private_and_goes_with_the_transport() -> None:
    async with stage("shm") as s:
        folder = Path(s.address.removeprefix("shm://")).parent
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_uvloop_carries_pulls_as_well(kind: str) -> None:
    async def main() -> None:
        async with stage(kind, 1 << 20, 70) as s:
            names = ready_lease(s.holder, 32)
            for _ in range(2):
                assert len(await s.events(s.request(names))) == 33

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize(
    "address", ["tcp://[::1", "tcp://a\x00b:1", f"tcp://{'x' * 300}:1", "tcp://:1", "tcp://a:99999", "shm://a:1", ""]
)
async def test_an_address_that_is_none_is_a_transfer_that_failed(address: str) -> None:
    with pytest.raises(TandemError) as refused:
        await connect(address, "tcp", None)
    assert refused.value.code == "transfer_failed"
