"""Certificates for tests, made with the `openssl` program: an authority and one certificate that it has signed."""

import atexit
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tandem.process.tls_settings import TlsSettings

HAS_OPENSSL: Final = shutil.which("openssl") is not None
HERE: Final = "DNS:localhost,IP:127.0.0.1"
_SHARED: Final = "TANDEM_TEST_CERTIFICATES"
_CURVE: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_certificates(folder: Path, names: str = HERE) -> TlsSettings:
    """A fresh authority, in a folder that is made, and a certificate of it for `names`."""
    folder.mkdir()
    _openssl(
        folder, "req", "-x509", *_CURVE, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test", "-days", "2"
    )
    issue(folder, names)
    return settings_of(folder)


def issue(folder: Path, names: str = HERE) -> None:
    """Another certificate of the authority there, instead of the one before."""
    _openssl(folder, "req", *_CURVE, "-keyout", "new.key", "-out", "end.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text(f"subjectAltName={names}\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
    _openssl(folder, "x509", "-req", "-in", "end.csr", "-out", "new.pem", *signed)
    (folder / "new.key").replace(folder / "end.key")
    (folder / "new.pem").replace(folder / "end.pem")


def settings_of(folder: Path) -> TlsSettings:
    return TlsSettings(folder / "end.pem", folder / "end.key", folder / "ca.pem")


def shared_certificates() -> TlsSettings:
    """The same for this process and those it starts; gone when it ends."""
    if _SHARED not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        make_certificates(folder / "shared")
        os.environ[_SHARED] = str(folder / "shared")
    return settings_of(Path(os.environ[_SHARED]))


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
