"""Bounds how many connections the router's listening sockets may have open, within the descriptors of its process."""

from dataclasses import dataclass
from typing import Final

OVER_LIMIT: Final = 2048
"""Connections in excess of the bound that are turned away at the same time, at most."""
PROBES: Final = 64
"""Connections of the port for probes, and as many of that for the control plane, with those they turn away."""


@dataclass(frozen=True)
class ConnectionsMax:
    """Each is a number of connections: of HTTP clients, of those being turned away, of each port of our own, and of
    gRPC clients."""

    public: int
    turned: int = OVER_LIMIT
    probes: int = PROBES
    grpc: int = 0

    @property
    def descriptors(self) -> int:
        """The descriptors that all connections take at most. The ports besides the public one turn away a quarter of
        what they serve."""
        return self.public + self.turned + 2 * (self.probes + self.probes // 4) + self.grpc


def connections_within(descriptors: int, wanted: int, grpc: int = 0) -> ConnectionsMax:
    """The bounds that fit into so many descriptors, with at most `wanted` connections of HTTP clients and `grpc` of
    gRPC clients; of the latter at least one where any are wanted."""
    whole = ConnectionsMax(wanted, grpc=grpc)
    if whole.descriptors <= descriptors:
        return whole
    turned = min(OVER_LIMIT, max(1, descriptors // 8))
    probes = min(PROBES, max(4, descriptors // 16))
    grpc = min(grpc, max(1, descriptors // 8))
    beside = ConnectionsMax(0, turned, probes, grpc).descriptors
    return ConnectionsMax(max(1, min(wanted, descriptors - beside)), turned, probes, grpc)
