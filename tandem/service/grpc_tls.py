"""The certificates of `tandem.service.tls` as gRPC wants them."""

import grpc

from tandem.service.tls import TlsSettings, read_pem


def server_credentials(tls: TlsSettings) -> grpc.ServerCredentials | None:
    """For a `GrpcLinkServer`. Raises `bad_setting` for a file that cannot be read."""
    pem = read_pem(tls)
    if pem is None:
        return None
    pair = (pem.private_key, pem.certificate)
    return grpc.ssl_server_credentials([pair], root_certificates=pem.authority, require_client_auth=True)


def channel_credentials(tls: TlsSettings) -> grpc.ChannelCredentials | None:
    """For a `GrpcDialer`. Raises `bad_setting` for a file that cannot be read."""
    pem = read_pem(tls)
    return None if pem is None else grpc.ssl_channel_credentials(pem.authority, pem.private_key, pem.certificate)
