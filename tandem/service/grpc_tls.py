"""Certificates of links: mutual TLS when they are given, plain text when none is."""

from dataclasses import dataclass
from pathlib import Path

import grpc

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


def server_credentials(tls: TlsSettings) -> grpc.ServerCredentials | None:
    """For a `GrpcLinkServer`. Raises `bad_setting` for a file that cannot be read."""
    if tls.certificate is None or tls.private_key is None or tls.authority is None:
        return None
    pair = (_read(tls.private_key), _read(tls.certificate))
    return grpc.ssl_server_credentials([pair], root_certificates=_read(tls.authority), require_client_auth=True)


def channel_credentials(tls: TlsSettings) -> grpc.ChannelCredentials | None:
    """For a `GrpcDialer`. Raises `bad_setting` for a file that cannot be read."""
    if tls.certificate is None or tls.private_key is None or tls.authority is None:
        return None
    return grpc.ssl_channel_credentials(_read(tls.authority), _read(tls.private_key), _read(tls.certificate))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TandemError("bad_setting", f"{path} cannot be read: {error.strerror or error}", param="tls") from None
