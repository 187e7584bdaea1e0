"""Settings of the host that every worker has."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HostSettings:
    """`load_every_s` bounds how often load is told besides the heartbeat."""

    load_every_s: float = 0.05
