"""Certificates of links: mutual TLS when they are given, plain text when none is."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from tandem.core.errors import TandemError


@dataclass(frozen=True)
class TlsSettings:
    """PEM files. All three are set, or none: both ends of a link show a certificate of the same authority."""

    certificate: Path | None = None
    private_key: Path | None = None
    authority: Path | None = None

    def __post_init__(self) -> None:
        given = [path is not None for path in (self.certificate, self.private_key, self.authority)]
        if any(given) and not all(given):
            raise TandemError("bad_setting", "certificate, private_key and authority belong together", param="tls")


@dataclass(frozen=True)
class PemFiles:
    """The contents of all three files."""

    certificate: bytes
    private_key: bytes
    authority: bytes


def read_pem(tls: TlsSettings) -> PemFiles | None:
    """None without certificates. Raises `bad_setting` for a file that cannot be read."""
    if tls.certificate is None or tls.private_key is None or tls.authority is None:
        return None
    return PemFiles(_read(tls.certificate), _read(tls.private_key), _read(tls.authority))


def server_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """For a server that asks its clients for a certificate. Raises `bad_setting` for files that are no good."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _filled(context, tls)


def client_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """For a client that shows a certificate and checks the server's, name included. Raises `bad_setting`."""
    return _filled(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tls)


def _filled(context: ssl.SSLContext, tls: TlsSettings) -> ssl.SSLContext | None:
    if tls.certificate is None or tls.private_key is None or tls.authority is None or read_pem(tls) is None:
        return None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password given, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(tls.certificate, tls.private_key, password="")
        context.load_verify_locations(tls.authority)
    except (ssl.SSLError, ValueError) as error:
        problem = f"{tls.certificate}, {tls.private_key} and {tls.authority} cannot be used: {error}"
        raise TandemError("bad_setting", problem, param="tls") from None
    return context


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TandemError("bad_setting", f"{path} cannot be read: {error.strerror or error}", param="tls") from None
