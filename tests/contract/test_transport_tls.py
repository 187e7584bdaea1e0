"""KV over TCP with certificates: who may pull from whom, and streams that are damaged, cut, frozen or called off."""

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import uvloop

from kv_transfer.export import Exporter
from kv_transfer.fetch import Fetcher
from kv_transfer.transport import rpc
from kv_transfer.transport.frames import GREETING
from kv_transfer.transport.protocol import BlockReceived
from kv_transfer.transport.tcp import TcpSettings, TcpTransport
from kv_transfer.transport.tcp_tls import Encryption, encryption, marked
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.core.metrics import NullMeter
from tandem.engine.protocol import FetchJob, FetchTarget
from tandem.process.system import SystemClock
from tandem.process.tls_settings import TlsSettings
from tests.contract.block_space import KEYRING, SlotSink, content, name_of, ready_lease, remote_kv
from tests.worlds.certificates import HAS_OPENSSL, issue, make_certificates
from tests.worlds.transport_stage import (
    AT_LAST_S,
    DEADLINES,
    LIMITS,
    Stage,
    descriptors,
    encrypted,
    eventually,
    one_by_one,
    stage,
)

pytestmark = [
    pytest.mark.skipif(not HAS_OPENSSL, reason="makes certificates with openssl"),
]
PLAIN = Encryption()


@dataclass
class Counted(NullMeter):
    """What was refused, by end and reason."""

    refused: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, name: str, value: float = 1.0, *labels: str) -> None:
        if name == "tandem_kv_tls_refused_total":
            self.refused.append(labels)


def both(tls: TlsSettings) -> Encryption:
    return encryption("on", tls, tls)


@asynccontextmanager
async def parted(theirs: Encryption, ours: Encryption) -> AsyncGenerator[tuple[Stage, Counted, Counted], None]:
    """A stage whose holder and receiver are set up differently, with what each has refused."""
    holder, receiver = Counted(), Counted()
    serving = TcpTransport(TcpSettings(limits=LIMITS), theirs, holder)
    pulling = TcpTransport(TcpSettings(limits=LIMITS), ours, receiver)
    async with stage("mem") as s:
        exporter = Exporter(s.holder, KEYRING, SystemClock(), DEADLINES)
        address = await serving.serve(exporter)
        try:
            yield replace(s, exporter=exporter, serving=serving, pulling=pulling, address=address), holder, receiver
        finally:
            await pulling.close()
            await serving.close()


async def refused(s: Stage) -> str:
    """What a pull fails with."""
    names = ready_lease(s.holder, 2)
    async with asyncio.timeout(AT_LAST_S):
        with pytest.raises(TandemError) as caught:
            await s.events(s.request(names))
    assert caught.value.code == "transfer_failed"
    return caught.value.message


# ---- who may pull from whom --------------------------------------------------------------------------------------


async def test_one_that_encrypts_and_one_that_does_not_refuse_each_other_by_the_address() -> None:
    async with parted(encrypted(), PLAIN) as (s, _, receiver):
        assert s.address.endswith("/tls")
        assert "encrypts KV, this process does not: no certificates" in await refused(s)
        assert receiver.refused == [("receiver", "plain_text_here")]
    async with parted(PLAIN, encrypted()) as (s, _, receiver):
        assert not s.address.endswith("/tls")
        assert "does not encrypt KV, this process does" in await refused(s)
        assert receiver.refused == [("receiver", "plain_text")]


async def test_an_address_that_lies_about_encryption_fails_soon_and_says_so() -> None:
    async with parted(encrypted(), PLAIN) as (s, holder, _):
        s.address = s.address.removesuffix("/tls")
        await refused(s)
        await eventually(lambda: holder.refused == [("holder", "plain_text")])
    async with parted(PLAIN, encrypted()) as (s, _, _receiver):
        s.address = marked(s.address, on=True)
        await refused(s)


async def test_another_authority_is_refused_by_whoever_sees_it_first(tmp_path: Path) -> None:
    ours, theirs = make_certificates(tmp_path / "ours"), make_certificates(tmp_path / "theirs")
    async with parted(both(theirs), both(ours)) as (s, _, receiver):
        assert "certificate is not the one expected" in await refused(s)
        assert receiver.refused == [("receiver", "certificate")]
    # The receiver trusts both, the holder only its own.
    trusting = replace(ours, authority=tmp_path / "both.pem")
    assert ours.authority is not None
    assert theirs.authority is not None
    (tmp_path / "both.pem").write_bytes(ours.authority.read_bytes() + theirs.authority.read_bytes())
    async with parted(both(theirs), both(trusting)) as (s, holder, _):
        await refused(s)
        await eventually(lambda: holder.refused == [("holder", "certificate")])


async def test_the_name_in_the_certificate_has_to_be_the_expected_one(tmp_path: Path) -> None:
    ours = make_certificates(tmp_path / "ours", "DNS:tandem-worker")
    named = encryption("auto", ours, replace(ours, server_name="tandem-worker"))
    async with parted(named, named) as (s, _, _receiver):
        assert len(await s.events(s.request(ready_lease(s.holder, 2)))) == 3
    for wrong in (ours, replace(ours, server_name="tandem-router")):
        async with parted(named, encryption("auto", ours, wrong)) as (s, _, receiver):
            await refused(s)
            assert receiver.refused == [("receiver", "name")]


async def test_a_holder_lets_in_those_alone_whose_certificate_it_was_told_of(tmp_path: Path) -> None:
    ours = make_certificates(tmp_path / "ours", "DNS:tandem-worker.b")
    for names, let_in in (("tandem-router", "tandem-worker.b"), True), (("tandem-router", "tandem-worker.a"), False):
        holds = encryption("on", replace(ours, client_names=names), ours)
        asks = encryption("on", ours, replace(ours, server_name="tandem-worker.b"))
        async with parted(holds, asks) as (s, holder, _):
            if let_in:
                assert len(await s.events(s.request(ready_lease(s.holder, 2)))) == 3
            else:
                await refused(s)
                await eventually(lambda holder=holder: holder.refused == [("holder", "name")])  # type: ignore[misc]


def test_modes_and_certificates(tmp_path: Path) -> None:
    ours, none = make_certificates(tmp_path / "ours"), TlsSettings()
    assert encryption("auto", ours, ours).on
    assert not encryption("auto", none, none).on
    assert encryption("off", ours, ours) == Encryption(reason="kv.tls is off")
    with pytest.raises(TandemError, match="needs the certificates") as caught:
        encryption("on", none, none)
    assert caught.value.code == "bad_setting"


async def test_what_cannot_be_brought_is_left_to_be_computed_and_the_next_path_is_tried() -> None:
    async with parted(encrypted(), PLAIN) as (s, _, receiver):
        names = ready_lease(s.holder, 2)
        targets = tuple(
            FetchTarget(index, name, 2 * index + 1, 1, s.holder.layout.block_tokens)
            for index, name in enumerate(names)
        )
        fetcher = Fetcher(s.receiver, [s.pulling], SystemClock(), Deadlines(), NullMeter())
        report = await fetcher.fetch(FetchJob(1, targets), remote_kv(s.holder, s.receiver, (s.address,)))
        assert report.code == "transfer_failed"
        assert report.reason is not None
        assert "encrypts KV" in report.reason
        assert receiver.refused


async def test_renewed_certificates_hold_for_the_next_pulls_and_running_ones_go_on(tmp_path: Path) -> None:
    ours = make_certificates(tmp_path / "ours")
    over = both(ours)
    async with parted(over, over) as (s, _, _receiver):
        names = tuple(name_of(index) for index in range(4))
        s.holder.lease("lease", names)
        s.holder.complete("lease", 0)
        pull = await s.open(s.request(names))
        async with aclosing(one_by_one(pull)) as events:
            assert isinstance(await anext(events), BlockReceived)
            # A new certificate, then a new authority altogether: the connection outlives both.
            issue(tmp_path / "ours")
            fresh = make_certificates(tmp_path / "fresh")
            reuse = tuple(names[:1])
            await _pulls_from_anew(s, over, reuse)
            for file in ("end.pem", "end.key", "ca.pem"):
                (tmp_path / "fresh" / file).replace(tmp_path / "ours" / file)
            assert fresh.authority is not None
            await _pulls_from_anew(s, over, reuse)
            for index in range(1, 4):
                s.holder.complete("lease", index)
            s.holder.sample("lease")
            rest = [event async for event in events if isinstance(event, BlockReceived)]
        assert [event.index for event in rest] == [1, 2, 3]
        await pull.close()


async def _pulls_from_anew(s: Stage, over: Encryption, names: tuple[bytes, ...]) -> None:
    """Over a connection of its own."""
    other = TcpTransport(TcpSettings(limits=LIMITS), over)
    try:
        pull = await other.open(s.address, s.request(names), SlotSink(s.receiver, 100), 1.0)
        async with aclosing(one_by_one(pull)) as events:
            assert isinstance(await anext(events), BlockReceived)
        await pull.close()
    finally:
        await other.close()


# ---- damage between the ends -------------------------------------------------------------------------------------


@dataclass
class Between:
    """A proxy that lets `through` bytes of the holder pass, and then does what `then` says."""

    through: int
    then: str
    passed: int = 0


@asynccontextmanager
async def between(address: str, what: Between) -> AsyncGenerator[str, None]:
    port = int(address.removesuffix("/tls").rpartition(":")[2])
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        below, above = await asyncio.open_connection("127.0.0.1", port)
        tasks.append(asyncio.create_task(_copy(reader, above, None)))
        with suppress(ConnectionError):
            await _copy(below, writer, what)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield marked(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", on=True)
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: Between | None) -> None:
    while data := await reader.read(4096):
        if what is not None and what.passed + len(data) > what.through:
            keep = max(0, what.through - what.passed)
            head, rest = data[:keep], data[keep:]
            what.passed = what.through
            if what.then == "flip":
                writer.write(head + bytes([rest[0] ^ 0x40]) + rest[1:])
                what.through = 1 << 60
            else:
                writer.write(head)
                await writer.drain()
                if what.then == "cut":
                    writer.close()
                elif what.then == "half-close":
                    writer.write_eof()
                await asyncio.sleep(10)
        else:
            writer.write(data)
        if what is not None:
            what.passed += len(data)
        await writer.drain()


@pytest.mark.parametrize("then", ["flip", "cut", "half-close", "freeze"])
@pytest.mark.parametrize("through", [0, 700, 100_000])
async def test_a_damaged_or_cut_stream_ends_the_pull_with_a_type_and_in_time(then: str, through: int) -> None:
    async with stage("tls", 64 << 10, 17) as s:
        names = ready_lease(s.holder, 8)
        async with between(s.address, Between(through, then)) as s.address:
            async with asyncio.timeout(AT_LAST_S):
                with pytest.raises(TandemError) as caught:
                    await s.events(s.request(names))
            assert caught.value.code == "transfer_failed"
        await eventually(lambda: s.exporter.pulls == 0)


async def test_a_pull_that_is_called_off_in_the_middle_of_a_record_closes_its_connection_and_the_next_is_whole() -> (
    None
):
    async with stage("tls", 1 << 20, 33) as s:
        names, address = ready_lease(s.holder, 16), s.address
        async with between(address, Between(3_000_000, "freeze")) as s.address:
            task = asyncio.create_task(s.events(s.request(names)))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        s.address = address
        assert len(await s.events(s.request(names))) == 17
        assert s.got(15) == content(names[15], 1 << 20)
        await eventually(lambda: s.exporter.pulls == 0)


async def test_a_deadline_holds_against_a_peer_that_never_shakes_hands() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = marked(f"tcp://127.0.0.1:{silent.getsockname()[1]}", on=True)
        async with stage("tls") as s:
            s.address = address
            async with asyncio.timeout(AT_LAST_S):
                with pytest.raises(TandemError, match=r"handshake|did not answer") as caught:
                    await s.open(s.request((name_of(0),)))
            assert caught.value.code == "transfer_failed"


async def secured(address: str) -> ssl.SSLSocket:
    """A blocking client that shows the right certificate."""
    context = encrypted().dialing
    assert context is not None
    port = int(address.removesuffix("/tls").rpartition(":")[2])

    def dial() -> ssl.SSLSocket:
        return context.wrap_socket(socket.create_connection(("127.0.0.1", port), 2.0), server_hostname="127.0.0.1")

    return await asyncio.to_thread(dial)


async def test_babble_inside_the_encryption_and_unread_pulls_end_their_own_connection() -> None:
    async with stage("tls", 1 << 20, 66) as s:
        names = ready_lease(s.holder, 32)
        request = rpc.encode_open(s.request(names * 60))
        open_frame = GREETING + struct.pack("<I", len(request)) + request
        babble = (b"GET / HTTP/1.1\r\n\r\n", GREETING + struct.pack("<I", 1 << 31), GREETING[:3])
        for data in babble:
            with await secured(s.address) as sock:
                sock.sendall(data)
                assert await asyncio.to_thread(_until_closed, sock) < 4096
        with await secured(s.address) as sock:
            sock.sendall(open_frame)
            await eventually(lambda: s.exporter.pulls == 1)
            await eventually(lambda: s.exporter.pulls == 0, AT_LAST_S)
        assert len(await s.events(s.request(names))) == 33


def _until_closed(sock: ssl.SSLSocket) -> int:
    count = 0
    with suppress(OSError):
        while data := sock.recv(65536):
            count += len(data)
    return count


async def test_a_handshake_that_is_not_finished_is_cut_and_nothing_stays_open() -> None:
    async with stage("tls") as s:
        names = ready_lease(s.holder, 2)
        assert len(await s.events(s.request(names))) == 3
        before = descriptors()
        port = int(s.address.removesuffix("/tls").rpartition(":")[2])
        for data in (b"", b"\x16\x03\x01"):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.setblocking(False)
                sock.sendall(data)
                async with asyncio.timeout(100.0):
                    with suppress(ConnectionError):
                        while await asyncio.get_running_loop().sock_recv(sock, 4096):
                            pass
        # What earlier tests had left may go meanwhile.
        await eventually(lambda: descriptors() <= before)


def test_others_get_their_turn_on_the_loop_while_much_is_pulled() -> None:
    async def main() -> float:
        async with stage("tls", 1 << 20, 130) as s:
            names, worst, over = ready_lease(s.holder, 64), 0.0, asyncio.Event()

            async def beat() -> None:
                nonlocal worst
                while not over.is_set():
                    began = time.thread_time()
                    await asyncio.sleep(0)
                    worst = max(worst, time.thread_time() - began)

            beating = asyncio.create_task(beat())
            assert len(await s.events(s.request(names))) == 65
            over.set()
            await beating
            return worst

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # Seconds of this thread's own work between two turns; a block is about a millisecond of it.
        assert runner.run(main()) < 0.05
