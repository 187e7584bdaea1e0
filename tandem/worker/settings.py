"""Settings of the host that every worker has."""

from dataclasses import dataclass
from typing import Final

from tandem.core.errors import TandemError

REUSES: Final = ("auto", "always", "never")
STREAM_INTERVAL_MAX: Final = 64
"""Bursts of more tokens come close to the time after which a router takes a stream to stand still."""


@dataclass(frozen=True)
class HostSettings:
    """`load_every_s` bounds how often load is told besides the heartbeat. With `canary` a worker proves its own KV
    path before it is ready, each of its transports within `canary_s`."""

    load_every_s: float = 0.05
    canary: bool = True
    canary_s: float = 10.0
    resumable_bytes_max: int = 64 << 20
    """What resumable requests that wait for a router may take besides their KV blocks; the oldest are given up."""
    reuse: str = "auto"
    """Blocks that a tier or another holder has are brought where that is expected to be faster than computing them;
    `always` and `never` are for comparing the two."""

    kv_events: bool = True
    """Whether routers, stores and the shared index are told which blocks there are. Without, routers guess from what
    they have sent here."""

    stream_interval: int = 1
    """Routers are told of new tokens every so many engine steps. A sequence's first token and its last are told at
    once, as is every one that carries log-probabilities or may be part of a stop string. More than 1 costs routers,
    links and clients less per token, and streams go in bursts of as many tokens."""

    def __post_init__(self) -> None:
        if not 1 <= self.stream_interval <= STREAM_INTERVAL_MAX:
            problem = f"expected 1 to {STREAM_INTERVAL_MAX}"
            raise TandemError(
                "bad_setting",
                f"host.stream_interval = {self.stream_interval}: {problem}",
                param="host.stream_interval",
            )
        if self.reuse not in REUSES:
            raise TandemError(
                "bad_setting", f"host.reuse = {self.reuse!r}: expected {', '.join(REUSES)}", param="host.reuse"
            )
