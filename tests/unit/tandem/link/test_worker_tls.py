"""Links with certificates: both ends must show one of the same authority."""

import asyncio
import logging
import shutil
import subprocess
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.messages import KvSnapshot, Pong, StateUpdate
from tandem.link.dialer import open_dialer
from tandem.link.protocol import Dialer, WorkerLink
from tandem.link.queue import LinkLimits
from tandem.link.servers import open_server
from tandem.link.tcp_server import TcpLinkServer
from tandem.process.grpc_tls import server_credentials
from tandem.process.tls import client_context, server_context
from tandem.process.tls_settings import TlsSettings
from tests.worlds.certificates import issue, make_certificates

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def _certificates(folder: Path, names: str = "DNS:localhost,IP:127.0.0.1") -> TlsSettings:
    """A fresh authority and one certificate for localhost signed by it."""
    folder.mkdir()
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl(folder, "req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test", "-days", "2")
    _openssl(folder, "req", *curve, "-keyout", "end.key", "-out", "end.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text(f"subjectAltName={names}\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
    _openssl(folder, "x509", "-req", "-in", "end.csr", "-out", "end.pem", *signed)
    return TlsSettings(folder / "end.pem", folder / "end.key", folder / "ca.pem")


async def _to_its_end(link: WorkerLink) -> None:
    with suppress(TandemError):
        while True:
            await link.tokens.receive()


def _dialer(name: str, tls: TlsSettings) -> Dialer:
    return open_dialer(name, SeededEntropy(1, name), tls)


@needs_openssl
async def test_only_peers_of_the_same_authority_get_a_link(tmp_path: Path) -> None:
    ours, theirs = _certificates(tmp_path / "ours"), _certificates(tmp_path / "theirs")

    async def accept(link: WorkerLink) -> None:
        link.tokens.send(Pong(1, 1))
        await _to_its_end(link)

    server = open_server("127.0.0.1:0", None, ours, 2.0)
    address = await server.start(accept)
    assert address.startswith("tcp://")
    link = await _dialer("friend", ours).dial(address, 5.0)
    assert await link.tokens.receive() == (Pong(1, 1),)
    for strange in (theirs, TlsSettings()):
        with pytest.raises(TandemError) as caught:
            await _dialer("stranger", strange).dial(address, 2.0)
        assert caught.value.code == "link_lost"
    link.close("done")
    await server.stop()


@needs_openssl
async def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    ours = _certificates(tmp_path / "ours", names="DNS:elsewhere.example")
    server = open_server("127.0.0.1:0", None, ours, 2.0)
    address = await server.start(_to_its_end)
    with pytest.raises(TandemError, match="cannot be reached") as caught:
        await _dialer("friend", ours).dial(address, 2.0)
    assert caught.value.code == "link_lost"
    await server.stop()


@needs_openssl
async def test_one_name_may_stand_for_the_addresses_of_all(tmp_path: Path) -> None:
    ours = _certificates(tmp_path / "ours", names="DNS:tandem-worker")
    server = open_server("127.0.0.1:0", None, ours, 2.0)
    address = await server.start(_to_its_end)
    link = await _dialer("friend", replace(ours, server_name="tandem-worker")).dial(address, 5.0)
    link.close("done")
    with pytest.raises(TandemError) as caught:
        await _dialer("friend", replace(ours, server_name="tandem-router")).dial(address, 2.0)
    assert caught.value.code == "link_lost"
    await server.stop()


def _tenants(folder: Path) -> dict[str, TlsSettings]:
    """Certificates of one authority for routers, and for the workers of two namespaces."""
    make_certificates(folder)
    found = {}
    for name in ("tandem-router", "tandem-worker.a", "tandem-worker.b"):
        issue(folder, f"DNS:{name}")
        for part in ("end.pem", "end.key"):
            shutil.copy(folder / part, folder / f"{name}.{part}")
        found[name] = TlsSettings(folder / f"{name}.end.pem", folder / f"{name}.end.key", folder / "ca.pem")
    return found


async def _tenants_links(folder: Path) -> None:
    certificates = _tenants(folder)
    a, b, router = (certificates[name] for name in ("tandem-worker.a", "tandem-worker.b", "tandem-router"))
    servers, places = [], {}
    for name, tls in (("a", a), ("b", b)):
        letting_in = replace(tls, client_names=("tandem-router", f"tandem-worker.{name}"))
        servers.append(open_server("127.0.0.1:0", None, letting_in, 2.0))
        places[name] = await servers[-1].start(_to_its_end)

    async def dials(tls: TlsSettings, place: str, name: str) -> None:
        expecting = replace(tls, server_name=f"tandem-worker.{name}")
        link = await _dialer("someone", expecting).dial(places[place], 5.0)
        link.close("done")

    await dials(router, "a", "a")
    await dials(router, "b", "b")
    await dials(b, "b", "b")
    for tls, place, name in ((a, "b", "b"), (b, "a", "a"), (router, "a", "b")):
        with pytest.raises(TandemError) as caught:
            await dials(tls, place, name)
        assert caught.value.code == "link_lost"
    await dials(router, "b", "b")
    for server in servers:
        await server.stop()


@needs_openssl
@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
def test_a_tenants_certificate_opens_no_link_to_another_tenants_worker(
    tmp_path: Path, loop: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    loop(_tenants_links(tmp_path / "authority"))


@needs_openssl
async def test_renewed_certificates_hold_for_the_next_links(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours, renewed = _certificates(tmp_path / "ours"), _certificates(tmp_path / "renewed")
    server = open_server("127.0.0.1:0", None, ours, 2.0)
    address = await server.start(_to_its_end)
    dialer, stranger = _dialer("friend", ours), _dialer("stranger", renewed)
    old = await dialer.dial(address, 5.0)
    with pytest.raises(TandemError):
        await stranger.dial(address, 2.0)
    assert ours.private_key is not None
    ours.private_key.replace(tmp_path / "kept.key")
    ours.private_key.write_text("half written")
    with caplog.at_level(logging.WARNING):
        (await dialer.dial(address, 5.0)).close("files that are no good change nothing")
    assert "certificates_ignored" in caplog.text
    for name in ("end.pem", "end.key", "ca.pem"):
        (tmp_path / "renewed" / name).replace(tmp_path / "ours" / name)
    for other in (dialer, stranger, _dialer("late", ours)):
        (await other.dial(address, 5.0)).close("done")
    old.close("done")
    await server.stop()


@needs_openssl
async def test_links_with_certificates_deliver_their_last_words_and_bound_their_queues(tmp_path: Path) -> None:
    ours = _certificates(tmp_path / "ours")
    links: asyncio.Queue[WorkerLink] = asyncio.Queue()

    async def accept(link: WorkerLink) -> None:
        links.put_nowait(link)
        await _to_its_end(link)

    limits = LinkLimits(queue_messages=100_000, queue_bytes=4 << 20, inbox_frames=4, flush_s=1.0)
    server = TcpLinkServer("127.0.0.1:0", limits, server_context(ours))
    address = await server.start(accept)
    for _ in range(2):
        link = await _dialer("friend", ours).dial(address, 5.0)
        worker = await links.get()
        pieces = [KvSnapshot(1, number, b"k" * 200_000, False) for number in range(10)]
        for piece in pieces:
            worker.state.send(piece)
        worker.close("last words")
        got: list[StateUpdate] = []
        while len(got) < len(pieces):
            got.extend(await asyncio.wait_for(link.state.receive(), 5.0))
        assert got == pieces
        with pytest.raises(TandemError, match="last words"):
            await link.tokens.receive()
    link = await _dialer("slow", ours).dial(address, 5.0)
    worker = await links.get()
    for _ in range(200):
        worker.state.send(KvSnapshot(1, 1, b"f" * 500_000, False))
        await asyncio.sleep(0)
    with pytest.raises(TandemError, match="does not read"):
        await worker.state.receive()
    await server.stop()


@needs_openssl
def test_certificates_that_are_no_good_are_a_bad_setting(tmp_path: Path) -> None:
    ours, theirs = _certificates(tmp_path / "ours"), _certificates(tmp_path / "theirs")
    mixed = TlsSettings(ours.certificate, theirs.private_key, ours.authority)
    _openssl(
        tmp_path / "ours", "ec", "-in", "end.key", "-out", "locked.key", "-aes128", "-passout", "pass:long secret"
    )
    locked = TlsSettings(ours.certificate, tmp_path / "ours" / "locked.key", ours.authority)
    (tmp_path / "text").write_text("no certificate")
    text = TlsSettings(ours.certificate, ours.private_key, tmp_path / "text")
    for tls in (mixed, locked, text):
        for make in (server_context, client_context):
            with pytest.raises(TandemError) as caught:
                make(tls)
            assert caught.value.code == "bad_setting"


def test_certificate_files_come_together_and_must_exist(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match="belong together"):
        TlsSettings(certificate=tmp_path / "a")
    for make in (server_credentials, server_context, client_context):
        with pytest.raises(TandemError, match="cannot be read"):
            make(TlsSettings(tmp_path / "a", tmp_path / "b", tmp_path / "c"))
        assert make(TlsSettings()) is None
