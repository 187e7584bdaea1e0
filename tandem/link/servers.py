"""The link server of a worker or store, with certificates or with keys."""

from tandem.link.proof import LinkKeys, keys_without
from tandem.link.tcp_server import TcpLinkServer
from tandem.process.tls import server_context
from tandem.process.tls_settings import TlsSettings


def open_server(
    bind: str, advertise: str | None, tls: TlsSettings, pair_s: float, keys: LinkKeys | None = None
) -> TcpLinkServer:
    """A server at `bind`. `keys` are for links without certificates. Raises `bad_setting` for certificates that are
    no good."""
    keys = keys_without(tls, keys)
    return TcpLinkServer(bind, context=server_context(tls), pair_s=pair_s, advertise=advertise, keys=keys)
