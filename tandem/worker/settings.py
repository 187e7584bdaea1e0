"""Settings of the host that every worker has."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HostSettings:
    """`load_every_s` bounds how often load is told besides the heartbeat. With `canary` a worker proves its own KV
    path before it is ready, each of its transports within `canary_s`."""

    load_every_s: float = 0.05
    canary: bool = True
    canary_s: float = 10.0
    resumable_bytes_max: int = 64 << 20
    """What resumable requests that wait for a router may take besides their KV blocks; the oldest are given up."""
