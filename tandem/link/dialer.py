"""The dialer of a router or store, with certificates or with keys."""

from tandem.core.entropy import Entropy
from tandem.link.proof import LinkKeys, keys_without
from tandem.link.tcp_dialer import TcpDialer
from tandem.process.tls import client_context
from tandem.process.tls_settings import TlsSettings


def open_dialer(name: str, entropy: Entropy, tls: TlsSettings, keys: LinkKeys | None = None) -> TcpDialer:
    """A dialer of workers. `keys` are for links without certificates. Raises `bad_setting` for certificates that are
    no good."""
    return TcpDialer(name, entropy, context=client_context(tls), keys=keys_without(tls, keys))
