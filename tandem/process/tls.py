"""Certificates of links and other connections between parts: mutual TLS when they are given, plain text when none is.

Files that are replaced while a process runs hold for its next connections, so renewing them, for example as a Secret
of a cluster, requires no restart.
"""

import logging
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tandem.core.errors import TandemError
from tandem.process.logs import event
from tandem.process.tls_settings import TlsSettings

_log = logging.getLogger(__name__)

_HOSTNAME_MISMATCH: Final = 62
"""OpenSSL's number for a certificate of another name."""


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


class _Object(ssl.SSLObject):
    """The end of a connection whose bytes an event loop carries."""

    def do_handshake(self) -> None:
        super().do_handshake()
        _check_client(self)


class _Socket(ssl.SSLSocket):
    """The end of a connection that reads and writes for itself."""

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        _check_client(self)


def _check_client(end: ssl.SSLObject | ssl.SSLSocket) -> None:
    """Raises `ssl.SSLCertVerificationError` for a client whose certificate has none of the names that are let in."""
    context = end.context
    if not (isinstance(context, LinkContext) and context.client_names and end.server_side):
        return
    shown: Any = end.getpeercert() or {}
    named = [name for kind, name in shown.get("subjectAltName", ()) if kind == "DNS"]
    if not context.client_names & set(named):
        theirs, ours = ", ".join(named) or "nobody", " or ".join(sorted(context.client_names))
        said = f"it names {theirs}, and {ours} is let in"
        error = ssl.SSLCertVerificationError(said)
        error.verify_code, error.verify_message = _HOSTNAME_MISMATCH, said
        raise error


class LinkContext(ssl.SSLContext):
    """A context that reads its files again, before a connection begins, once they have been replaced.

    An authority that is no longer in its file stays trusted until the process ends. Invalid files change nothing: the
    log gives the reason, and the next connection checks again.
    """

    sslobject_class = _Object
    sslsocket_class = _Socket
    client_names: frozenset[str] = frozenset()
    """Names of which a client's certificate must have one; none lets every client of the authority in."""
    _tls = TlsSettings()
    _seen: tuple[int, ...] = ()

    def fill(self, tls: TlsSettings) -> None:
        """Take the files. Raises `bad_setting` for ones that are no good."""
        seen = _stamps(tls)
        _load(self, tls)
        self._tls, self._seen, self.client_names = tls, seen, frozenset(tls.client_names)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Wrap the buffers of a connection; event loops call this for each connection."""
        self._look()
        name = server_hostname if server_side else self._tls.server_name or server_hostname
        return super().wrap_bio(incoming, outgoing, server_side, name, session)

    def wrap_socket(
        self,
        sock: socket.socket,
        server_side: bool = False,
        do_handshake_on_connect: bool = True,
        suppress_ragged_eofs: bool = True,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLSocket:
        """Wrap the socket of a connection that reads and writes for itself."""
        self._look()
        name = server_hostname if server_side else self._tls.server_name or server_hostname
        return super().wrap_socket(sock, server_side, do_handshake_on_connect, suppress_ragged_eofs, name, session)

    def _look(self) -> None:
        try:
            if _stamps(self._tls) == self._seen:
                return
            # Tried elsewhere first: a key that does not go with its certificate would spoil what works.
            _load(ssl.SSLContext(self.protocol), self._tls)
            self.fill(self._tls)
        except TandemError as error:
            event(_log, "certificates_ignored", level=logging.WARNING, reason=error.message)
        else:
            event(_log, "certificates_renewed", certificate=str(self._tls.certificate))


def server_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """The context of a server that asks its clients for a certificate. Raises `bad_setting` for invalid files."""
    context = LinkContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _filled(context, tls)


def client_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """The context of a client that shows a certificate and checks the server's, name included. Raises
    `bad_setting`."""
    return _filled(LinkContext(ssl.PROTOCOL_TLS_CLIENT), tls)


def _filled(context: LinkContext, tls: TlsSettings) -> ssl.SSLContext | None:
    if read_pem(tls) is None:
        return None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.fill(tls)
    return context


def _load(context: ssl.SSLContext, tls: TlsSettings) -> None:
    assert tls.certificate is not None
    assert tls.private_key is not None
    try:
        # Without a password given, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(tls.certificate, tls.private_key, password="")
        context.load_verify_locations(tls.authority)
    except (OSError, ValueError) as error:
        problem = f"{tls.certificate}, {tls.private_key} and {tls.authority} cannot be used: {error}"
        raise TandemError("bad_setting", problem, param="tls") from None


def _stamps(tls: TlsSettings) -> tuple[int, ...]:
    """The inode, modification time and size of each file, which change when a file is replaced. Raises `bad_setting`
    while one is missing."""
    try:
        found = [path.stat() for path in (tls.certificate, tls.private_key, tls.authority) if path is not None]
    except OSError as error:
        raise TandemError("bad_setting", f"the certificates cannot be read: {error}", param="tls") from None
    return tuple(part for status in found for part in (status.st_ino, status.st_mtime_ns, status.st_size))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TandemError("bad_setting", f"{path} cannot be read: {error.strerror or error}", param="tls") from None
