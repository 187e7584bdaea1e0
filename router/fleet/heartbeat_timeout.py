"""Whom a heartbeat gives up. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from tandem.core.deadlines import Deadlines


class HeartbeatPeer(Protocol):
    """The state of a linked worker that heartbeats are judged by."""

    worker_id: str
    heard_at: float


@dataclass(frozen=True)
class TimedOutWorkers:
    """Workers by id, each with the sentence why. `fenced`: it is they who are at fault, not this process."""

    reasons: dict[str, str]
    fenced: bool = False


_NOBODY: Final = TimedOutWorkers({})


def timed_out_workers(
    peers: Iterable[HeartbeatPeer], now: float, due: float, deadlines: Deadlines
) -> TimedOutWorkers:
    """The workers that have been silent too long at a beat that was due at `due`. A beat that comes late itself
    judges no worker: this process was stopped, and what the workers sent meanwhile has not been read yet. When the
    beat comes so late that the workers have given this router up, the router gives up all of them."""
    stopped_s = now - due + deadlines.heartbeat_every_s
    if stopped_s > deadlines.heartbeat_lost_s:
        return TimedOutWorkers(
            dict.fromkeys((peer.worker_id for peer in peers), f"this router was stopped for {stopped_s:.1f} s")
        )
    if now - due >= deadlines.heartbeat_every_s:
        return _NOBODY
    silent = {
        peer.worker_id: f"worker {peer.worker_id} has been silent for {now - peer.heard_at:.1f} s"
        for peer in peers
        if now - peer.heard_at > deadlines.heartbeat_lost_s
    }
    return TimedOutWorkers(silent, fenced=True) if silent else _NOBODY
