"""The certificates of `tandem.process.tls` as gRPC wants them."""

import logging

import grpc

from tandem.core.errors import TandemError
from tandem.process.logs import event
from tandem.process.tls import PemFiles, read_pem
from tandem.process.tls_settings import TlsSettings

_log = logging.getLogger(__name__)


def server_credentials(tls: TlsSettings) -> grpc.ServerCredentials | None:
    """Credentials of a server that asks its clients for a certificate. Replaced files take effect with the next
    connections; while they cannot be read, the previous ones stay in effect. Raises `bad_setting` for a file that
    cannot be read at first."""
    pem = read_pem(tls)
    return None if pem is None else _Renewed(tls, pem).credentials()


class _Renewed:
    """Asked at every handshake, by a thread of gRPC's."""

    def __init__(self, tls: TlsSettings, pem: PemFiles) -> None:
        self._tls = tls
        self._pem = pem
        self._held = _configured(pem)

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(self._held, self._fetch, True)

    def _fetch(self) -> grpc.ServerCertificateConfiguration:
        try:
            pem = read_pem(self._tls)
        except TandemError as error:
            event(_log, "certificates_ignored", level=logging.WARNING, reason=error.message)
            return self._held
        if pem is not None and pem != self._pem:
            self._pem, self._held = pem, _configured(pem)
            event(_log, "certificates_renewed", certificate=str(self._tls.certificate))
        return self._held


def _configured(pem: PemFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.private_key, pem.certificate)], pem.authority)
