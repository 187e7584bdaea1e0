"""Counts the workers in each state, and keeps those that are fenced: lost for silence or for an epoch that was
refused, and not admitted again."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from router.fleet.peer import Peer
from tandem.core.messages import Hello
from tandem.core.metrics import Meter

ROLES: Final = ("prefill", "decode", "unified", "auto", "store")
STATES: Final = ("alive", "ready", "draining", "fenced")


@dataclass(frozen=True)
class Fenced:
    """A worker whose word counts for nothing until it introduces itself again."""

    address: str
    hello: Hello
    reason: str


def state_of(peer: Peer) -> str:
    """The state of a worker that has a link."""
    if peer.view.draining:
        return "draining"
    return "ready" if peer.view.ready and not peer.view.overdue else "alive"


class WorkerCounts:
    """Owned by the fleet."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._fenced: dict[str, Fenced] = {}

    @property
    def fenced(self) -> tuple[Fenced, ...]:
        return tuple(self._fenced.values())

    def fence(self, address: str, hello: Hello, reason: str) -> None:
        """Count this member as fenced from now on until `clear`."""
        self._fenced[address] = Fenced(address, hello, reason)

    def clear(self, address: str) -> None:
        """The member was admitted, or is wanted no longer."""
        self._fenced.pop(address, None)

    def count(self, peers: Iterable[Peer]) -> None:
        """Set the gauge."""
        counts = {(role, state): 0 for role in ROLES for state in STATES}
        for peer in peers:
            counts[peer.view.role, state_of(peer)] += 1
        for fenced in self._fenced.values():
            counts[fenced.hello.role, "fenced"] += 1
        for (role, state), number in counts.items():
            self._meter.set("tandem_workers", float(number), role, state)
