"""Watches for unwanted leases: whatever became of the fetch under a lease, its holder must release it."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Final

from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.node import WorkerNode
from tandem.core.clock import Clock

_LOOK_EVERY_S: Final = 0.05
_CALM_S: Final = 6.0
"""Seconds after the last fault by which every loss has been noticed: heartbeats missed in one direction, then in the
other."""
_LET_GO_S: Final = 0.1
"""Seconds that a release takes once it is calm: a message from decode to the router and one on to prefill."""


class LeaseWatch:
    """The watch over the leases of one world. `calm_s` gives the seconds for which nothing has been broken or
    slow."""

    def __init__(self, clock: Clock, nodes: Mapping[str, WorkerNode], calm_s: Callable[[], float]) -> None:
        self._clock = clock
        self._nodes = nodes
        self._calm_s = calm_s
        self._looked = -inf
        self._unwanted: dict[tuple[str, str], float] = {}

    def check(self) -> None:
        """Check that no holder keeps blocks that it has computed and that no attempt will fetch. Raises
        `Violation`."""
        now = self._clock.now()
        if now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        kept = self._kept()
        wanted = self._wanted() if kept else {}
        self._unwanted = {place: self._unwanted.get(place, now) for place in kept if place[1] not in wanted}
        if not self._unwanted:
            return
        bound_s = _LET_GO_S if self._calm_s() > _CALM_S else _CALM_S
        for place, since in self._unwanted.items():
            if now - since > bound_s + kept[place]:
                node, lease_id = place
                reason = f"{node} keeps blocks under lease {lease_id}, which nobody wants for {now - since:.2f} s"
                raise Violation(reason)

    def _kept(self) -> dict[tuple[str, str], float]:
        """All leases whose work is over, on nodes that are able to release them, by (node, lease id); each with the
        seconds that a release may take beyond the time of a message. Only the receiver of a shared lease can report
        that it no longer wants it; when that message is lost, the lease, which is short, expires."""
        return {
            (name, lease.lease_id): lease.length_s if lease.shared else 0.0
            for name, node in self._nodes.items()
            if (now := node.incarnation) is not None and not now.process.frozen
            for lease in now.engine.scheduler.leases.finished()
        }

    def _wanted(self) -> dict[str, None]:
        """Leases under which an attempt fetches or will."""
        wanted: dict[str, None] = {}
        for node in self._nodes.values():
            if (now := node.incarnation) is not None:
                wanted.update(dict.fromkeys(now.service.host.leases_wanted()))
        return wanted
