"""Bounds of the KV connections of one process. All are settings; none is infinite."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ConnectionLimits:
    """`stall_s` bounds any single wait for a peer that owes bytes; `idle_s` how long a used connection is kept."""

    stall_s: float = 10.0
    greeting_s: float = 5.0
    idle_s: float = 30.0
    connections_max: int = 256
    """Connections served at once; more are closed on arrival."""
    idle_per_peer_max: int = 8
    """Idle connections a receiver keeps to one address."""
