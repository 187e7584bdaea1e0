"""A peer without a ticket key gets no link, and a worker without one is none."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.tickets import Keyring, TicketKey
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.messages import PROTOCOL_VERSION
from tandem.link.dialer import open_dialer
from tandem.link.proof import NONCE_BYTES, LinkKeys, both, keys_without
from tandem.link.protocol import Dialer, LinkServer, WorkerLink
from tandem.link.servers import open_server
from tandem.link.tcp_dialer import TcpDialer
from tandem.link.tcp_frames import Answer, Challenge, FrameCutter, Greeting, Welcome, pack_greeting, read_greeting
from tandem.link.tcp_server import TcpLinkServer
from tandem.process.tls_settings import TlsSettings

FIRST, SECOND, THIRD = (bytes([number]) * 32 for number in (1, 2, 3))
OURS = LinkKeys([FIRST])
WITHIN_S = 20.0
Made = tuple[Callable[[LinkKeys | None], LinkServer], Callable[[LinkKeys | None], Dialer]]
MADE: dict[str, Made] = {
    "tcp": (
        lambda keys: TcpLinkServer("127.0.0.1:0", keys=keys),
        lambda keys: TcpDialer("router", SeededEntropy(1), keys=keys),
    ),
}


@asynccontextmanager
async def listening(server: LinkServer) -> AsyncIterator[tuple[str, asyncio.Queue[WorkerLink]]]:
    """Its address, and the links it has accepted so far."""
    accepted: asyncio.Queue[WorkerLink] = asyncio.Queue()
    over = asyncio.Event()

    async def accept(link: WorkerLink) -> None:
        accepted.put_nowait(link)
        await over.wait()

    address = await server.start(accept)
    try:
        yield address, accepted
    finally:
        over.set()
        await server.stop()


@pytest.mark.parametrize("over", MADE)
@pytest.mark.parametrize(
    ("worker", "router"), [(OURS, None), (OURS, LinkKeys([SECOND])), (None, OURS), (LinkKeys([SECOND, THIRD]), OURS)]
)
async def test_ends_without_a_common_key_have_no_link(
    over: str, worker: LinkKeys | None, router: LinkKeys | None
) -> None:
    server, dialer = MADE[over]
    async with listening(server(worker)) as (address, accepted):
        with pytest.raises(TandemError, match="ticket key") as refused:
            await dialer(router).dial(address, WITHIN_S)
        assert address in refused.value.message
        assert worker is None or accepted.empty()


@pytest.mark.parametrize("over", MADE)
@pytest.mark.parametrize(
    ("worker", "router"),
    [
        ([FIRST], [FIRST]),
        ([FIRST, SECOND], [SECOND, FIRST]),
        ([SECOND], [FIRST, SECOND]),
        ([SECOND, FIRST], [SECOND]),
    ],
)
async def test_one_common_key_is_enough_while_keys_are_rotated(
    over: str, worker: list[bytes], router: list[bytes]
) -> None:
    server, dialer = MADE[over]
    async with listening(server(LinkKeys(worker))) as (address, accepted):
        link = await dialer(LinkKeys(router)).dial(address, WITHIN_S)
        async with asyncio.timeout(WITHIN_S):
            await accepted.get()
        link.close("seen")


@pytest.mark.parametrize("what", ["nothing", "zeros", "the worker's own proof", "that of the other stream"])
async def test_what_a_stranger_can_say_is_no_proof(what: str) -> None:
    """By hand, without the key, over the frames of a link."""
    async with listening(TcpLinkServer("127.0.0.1:0", keys=OURS)) as (address, accepted):
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        streams = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        nonce = bytes(NONCE_BYTES)
        proofs = []
        for (reader, writer), name in zip(streams, ("tokens", "state"), strict=True):
            writer.write(pack_greeting(Greeting(PROTOCOL_VERSION, "pair", name, "router", nonce)))  # type: ignore[arg-type]
            proofs.append(read_greeting(Challenge, *await _frame(reader)).proof)
        said = {
            "nothing": [b"", b""], "zeros": [bytes(32)] * 2, "the worker's own proof": proofs,
            "that of the other stream": proofs[::-1],
        }[what]  # fmt: skip
        for (_, writer), proof in zip(streams, said, strict=True):
            writer.write(pack_greeting(Answer(proof)))
        for reader, writer in streams:
            async with asyncio.timeout(WITHIN_S):
                assert await reader.read() == b"", "the connection ends without a word"
            writer.close()
        assert accepted.empty()


async def test_a_router_without_a_nonce_is_told_what_it_lacks() -> None:
    async with listening(TcpLinkServer("127.0.0.1:0", keys=OURS)) as (address, _):
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(pack_greeting(Greeting(PROTOCOL_VERSION, "pair", "tokens", "router")))
        welcome = read_greeting(Welcome, *await _frame(reader))
        assert welcome.refused is not None
        assert "ticket_key_file" in welcome.refused
        writer.close()


def test_certificates_take_the_place_of_the_key() -> None:
    some = Path("some")
    assert keys_without(TlsSettings(), OURS) is OURS
    assert keys_without(TlsSettings(some, some, some), OURS) is None


async def test_servers_and_dialers_of_settings_prove_the_key() -> None:
    keyring = Keyring(TicketKey("a", FIRST), TicketKey("b", SECOND))
    assert keyring.secrets == (FIRST, SECOND)
    server = open_server("127.0.0.1:0", None, TlsSettings(), 5.0, LinkKeys(keyring.secrets))
    async with listening(server) as (address, _):
        link = await open_dialer("router", SeededEntropy(1), TlsSettings(), OURS).dial(address, WITHIN_S)
        link.close("seen")
        with pytest.raises(TandemError, match="ticket_key_file"):
            await open_dialer("router", SeededEntropy(1), TlsSettings()).dial(address, WITHIN_S)


@given(
    st.sampled_from(["router", "worker"]), st.text(max_size=8), st.text(max_size=8),
    st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16), st.integers(0, 4),
)  # fmt: skip
def test_a_proof_is_good_for_nothing_else(
    side: str, link: str, stream: str, ours: bytes, theirs: bytes, other: int
) -> None:
    changed = [
        (link + "x", stream, ours, theirs), (link, stream + "x", ours, theirs),
        (link, stream, bytes(b ^ 1 for b in ours), theirs), (link, stream, ours, bytes(b ^ 1 for b in theirs)),
        (link + stream, "", ours, theirs) if stream else (link, "y", ours, theirs),
    ][other]  # fmt: skip
    place = 0 if side == "router" else 1
    proofs, others = both(link, stream, ours, theirs), both(*changed)
    given_proof = OURS.prove(proofs[place])
    OURS.answer(proofs[place], given_proof, proofs[1 - place])
    for wrong in (others[place], proofs[1 - place]):
        with pytest.raises(TandemError):
            OURS.answer(wrong, given_proof, proofs[1 - place])


@pytest.mark.parametrize("length", [0, 15, 17])
def test_short_and_long_nonces_are_refused(length: int) -> None:
    for nonces in ((bytes(length), bytes(16)), (bytes(16), bytes(length))):
        with pytest.raises(TandemError, match="16 bytes"):
            both("pair", "tokens", *nonces)


async def _frame(reader: asyncio.StreamReader) -> tuple[int, memoryview]:
    cutter = FrameCutter()
    async with asyncio.timeout(WITHIN_S):
        while (frame := cutter.next()) is None:
            cutter.feed(await reader.read(4096))
    return frame
