"""How many connections the router's listening sockets may have open, within the descriptors of its process."""

from dataclasses import dataclass
from typing import Final

TURNED: Final = 2048
"""Connections that are told that there are too many, at once."""
PROBES: Final = 64
"""Connections of the port for probes, and as many of that for the control plane, with those they turn away."""


@dataclass(frozen=True)
class ConnectionsMax:
    """Each is a number of connections: of clients, of clients being turned away, and of each other port."""

    public: int
    turned: int = TURNED
    probes: int = PROBES

    @property
    def descriptors(self) -> int:
        """What they take at most. Other ports turn away a quarter of what they serve."""
        return self.public + self.turned + 2 * (self.probes + self.probes // 4)


def connections_within(descriptors: int, wanted: int) -> ConnectionsMax:
    """The bounds that fit into so many descriptors, with at most `wanted` connections of clients."""
    whole = ConnectionsMax(wanted)
    if whole.descriptors <= descriptors:
        return whole
    turned = min(TURNED, max(1, descriptors // 8))
    probes = min(PROBES, max(4, descriptors // 16))
    beside = ConnectionsMax(0, turned, probes).descriptors
    return ConnectionsMax(max(1, min(wanted, descriptors - beside)), turned, probes)
