"""Links with certificates: both ends must show one of the same authority."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.messages import Pong
from tandem.service.grpc_link import GrpcDialer, GrpcLinkServer
from tandem.service.grpc_tls import TlsSettings, channel_credentials, server_credentials
from tandem.service.link import WorkerLink

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def _certificates(folder: Path) -> TlsSettings:
    """A fresh authority and one certificate for localhost signed by it."""
    folder.mkdir()
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl(folder, "req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test", "-days", "2")
    _openssl(folder, "req", *curve, "-keyout", "end.key", "-out", "end.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
    _openssl(folder, "x509", "-req", "-in", "end.csr", "-out", "end.pem", *signed)
    return TlsSettings(folder / "end.pem", folder / "end.key", folder / "ca.pem")


@needs_openssl
async def test_only_peers_of_the_same_authority_get_a_link(tmp_path: Path) -> None:
    ours, theirs = _certificates(tmp_path / "ours"), _certificates(tmp_path / "theirs")

    async def accept(link: WorkerLink) -> None:
        link.tokens.send(Pong(1, 1))
        await asyncio.Event().wait()

    server = GrpcLinkServer("127.0.0.1:0", credentials=server_credentials(ours))
    address = await server.start(accept)
    link = await GrpcDialer("friend", SeededEntropy(1), credentials=channel_credentials(ours)).dial(address, 5.0)
    assert await link.tokens.receive() == (Pong(1, 1),)
    for credentials in (channel_credentials(theirs), None):
        with pytest.raises(TandemError) as caught:
            await GrpcDialer("stranger", SeededEntropy(2), credentials=credentials).dial(address, 2.0)
        assert caught.value.code == "link_lost"
    link.close("done")
    await server.stop()


def test_certificate_files_come_together_and_must_exist(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match="belong together"):
        TlsSettings(certificate=tmp_path / "a")
    with pytest.raises(TandemError, match="cannot be read"):
        server_credentials(TlsSettings(tmp_path / "a", tmp_path / "b", tmp_path / "c"))
    assert server_credentials(TlsSettings()) is None
    assert channel_credentials(TlsSettings()) is None
