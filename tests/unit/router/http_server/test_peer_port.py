"""The routers' port for the control plane: one certificate authority on both ends, and nobody else."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from control_plane.reports.http_get import Endpoint, get
from router.http_server.server import HttpServer
from router.process_settings import ProcessSettings
from tandem.core.errors import TandemError
from tandem.process.settings import load_settings
from tandem.process.tls import client_context, server_context
from tandem.process.tls_settings import TlsSettings
from tests.worlds.certificates import HAS_OPENSSL, make_certificates, settings_of

pytestmark = pytest.mark.skipif(not HAS_OPENSSL, reason="makes certificates with openssl")
NAME = "DNS:tandem-worker"


async def _app(scope: Any, _receive: Any, send: Any) -> None:
    body = scope["path"].encode() * 3000
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def listening(tls: TlsSettings) -> AsyncIterator[tuple[Endpoint, int]]:
    """Where peers ask, and the port of everybody else."""
    app: Any = _app
    server = HttpServer(app)
    public = await server.start("127.0.0.1", 0)
    peers = await server.start("127.0.0.1", 0, server_context(tls))
    try:
        yield Endpoint("127.0.0.1", peers, secure=True), public
    finally:
        await server.close(0.2)


def named(tls: TlsSettings) -> TlsSettings:
    return replace(tls, server_name="tandem-worker")


async def _code(place: Endpoint, tls: TlsSettings) -> str:
    with pytest.raises(TandemError) as caught:
        await get(place, "/v1/workers", 2.0, client_context(tls))
    return caught.value.code


def test_only_who_shows_a_certificate_of_the_same_authority_is_answered(tmp_path: Path) -> None:
    ours, theirs = make_certificates(tmp_path / "ours", NAME), make_certificates(tmp_path / "theirs", NAME)
    both = tmp_path / "both.pem"
    both.write_bytes((tmp_path / "ours" / "ca.pem").read_bytes() + (tmp_path / "theirs" / "ca.pem").read_bytes())

    async def main() -> None:
        async with listening(ours) as (place, public):
            assert await get(place, "/v1/workers", 2.0, client_context(named(ours))) == b"/v1/workers" * 3000
            assert await get(Endpoint("127.0.0.1", public), "/v1/workers", 2.0) == b"/v1/workers" * 3000
            assert await _code(place, named(theirs)) == "link_lost", "we do not trust the router"
            assert await _code(place, named(replace(theirs, authority=both))) == "link_lost", "it does not trust us"
            assert await _code(place, replace(ours, server_name="tandem-router")) == "link_lost"
            assert await _code(replace(place, secure=False), TlsSettings()) == "link_lost", "no plain text there"
            assert await _code(place, TlsSettings()) == "bad_setting"

    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())


async def test_renewed_certificates_hold_for_the_next_poll(tmp_path: Path) -> None:
    ours, renewed = make_certificates(tmp_path / "ours", NAME), make_certificates(tmp_path / "renewed", NAME)
    async with listening(ours) as (place, _):
        old, fresh = client_context(named(ours)), client_context(named(renewed))
        assert await get(place, "/a", 2.0, old)
        with pytest.raises(TandemError):
            await get(place, "/a", 2.0, fresh)
        for file in ("end.pem", "end.key", "ca.pem"):
            (tmp_path / "ours" / file).write_bytes((tmp_path / "renewed" / file).read_bytes())
        for context in (old, fresh, client_context(named(settings_of(tmp_path / "ours")))):
            assert await get(place, "/a", 2.0, context)


async def test_silence_in_a_handshake_holds_up_nobody(tmp_path: Path) -> None:
    ours = make_certificates(tmp_path / "ours", NAME)
    async with listening(ours) as (place, _):
        with closing(socket.create_connection((place.host, place.port))):
            assert await get(place, "/a", 2.0, client_context(named(ours)))


def test_the_port_needs_certificates() -> None:
    with pytest.raises(TandemError, match="peer_port: it needs the certificates") as caught:
        load_settings(ProcessSettings, ["--peer_port=8443", "--workers=a:1"], {})
    assert caught.value.code == "bad_setting"
