"""The dialer of a router whose workers are of several tenants, each with keys and a certificate of its own."""

from collections.abc import Callable, Mapping

from tandem.link.protocol import Dialer, RouterLink


class TenantDialer:
    """`tandem.link.protocol.Dialer` that dials each worker as one of its namespace: with `dialers` by namespace, and
    `otherwise` where the namespace has none. `namespace_of` gives that of an address, empty where it is not known."""

    def __init__(self, dialers: Mapping[str, Dialer], otherwise: Dialer, namespace_of: Callable[[str], str]) -> None:
        self._dialers = dialers
        self._otherwise = otherwise
        self._namespace_of = namespace_of

    async def dial(self, address: str, timeout_s: float) -> RouterLink:
        """Connect both streams. Raises as the dialer of the namespace."""
        dialer = self._dialers.get(self._namespace_of(address), self._otherwise)
        return await dialer.dial(address, timeout_s)
