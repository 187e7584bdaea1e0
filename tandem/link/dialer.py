"""A dialer for any worker: the scheme of its address says over what."""

from collections.abc import Callable, Mapping

from tandem.core.entropy import Entropy
from tandem.link.address import GRPC, TCP, parse_address
from tandem.link.proof import LinkKeys, keys_without
from tandem.link.protocol import Dialer, RouterLink
from tandem.link.tcp_dialer import TcpDialer
from tandem.process.tls import client_context
from tandem.process.tls_settings import TlsSettings


class SchemeDialer:
    """`tandem.link.protocol.Dialer` over one dialer per scheme, each made when the first address asks for it."""

    def __init__(self, makers: Mapping[str, Callable[[], Dialer]]) -> None:
        self._makers = makers
        self._dialers: dict[str, Dialer] = {}

    async def dial(self, address: str, timeout_s: float) -> RouterLink:
        """As the scheme's dialer does it. Raises `bad_setting` for an address that is none."""
        scheme = parse_address(address).scheme
        dialer = self._dialers.get(scheme)
        if dialer is None:
            dialer = self._dialers[scheme] = self._makers[scheme]()
        return await dialer.dial(address, timeout_s)


def open_dialer(name: str, entropy: Entropy, tls: TlsSettings, keys: LinkKeys | None = None) -> SchemeDialer:
    """For workers that listen on TCP or gRPC. `keys` are for links without certificates. Raises `bad_setting` for
    certificates that are no good."""
    context, keys = client_context(tls), keys_without(tls, keys)
    return SchemeDialer(
        {
            TCP: lambda: TcpDialer(name, entropy, context=context, keys=keys),
            GRPC: lambda: _over_grpc(name, entropy, tls, keys),
        }
    )


def _over_grpc(name: str, entropy: Entropy, tls: TlsSettings, keys: LinkKeys | None) -> Dialer:
    # Imported on use: megabytes and a polling thread that most routers never need for their links.
    from tandem.link.grpc_link import GrpcDialer
    from tandem.link.grpc_tls import channel_credentials

    return GrpcDialer(name, entropy, credentials=channel_credentials(tls), server_name=tls.server_name, keys=keys)
