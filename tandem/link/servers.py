"""A link server of the kind a worker's settings ask for."""

from tandem.link.address import GRPC, TCP
from tandem.link.proof import LinkKeys, keys_without
from tandem.link.protocol import LinkServer
from tandem.link.tcp_server import TcpLinkServer
from tandem.process.tls import server_context
from tandem.process.tls_settings import TlsSettings


def open_server(
    transport: str, bind: str, advertise: str | None, tls: TlsSettings, pair_s: float, keys: LinkKeys | None = None
) -> LinkServer:
    """`transport` is `tcp` or `grpc`; the rest is as for both servers. `keys` are for links without certificates.
    Raises `bad_setting`."""
    keys = keys_without(tls, keys)
    if transport == TCP:
        return TcpLinkServer(bind, context=server_context(tls), pair_s=pair_s, advertise=advertise, keys=keys)
    assert transport == GRPC, f"unknown transport {transport!r}"
    # Imported on use: a worker that speaks TCP starts faster and stays smaller without it.
    from tandem.link.grpc_link import GrpcLinkServer
    from tandem.link.grpc_tls import server_credentials

    return GrpcLinkServer(bind, credentials=server_credentials(tls), pair_s=pair_s, advertise=advertise, keys=keys)
