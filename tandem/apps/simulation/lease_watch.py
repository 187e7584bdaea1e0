"""Watches leases that nobody wants: whatever became of the fetch under one, its holder must let go."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Final

from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.node import WorkerNode
from tandem.core.clock import Clock

_LOOK_EVERY_S: Final = 0.05
_CALM_S: Final = 6.0
"""How long after the last misfortune every loss has been noticed: heartbeats missed on one way, then the other."""
_LET_GO_S: Final = 0.1
"""How long letting go takes then: a word from decode to the router and one on to prefill."""


class LeaseWatch:
    """One per world. `calm_s` tells for how long nothing has been broken or slow."""

    def __init__(self, clock: Clock, nodes: Mapping[str, WorkerNode], calm_s: Callable[[], float]) -> None:
        self._clock = clock
        self._nodes = nodes
        self._calm_s = calm_s
        self._looked = -inf
        self._unwanted: dict[tuple[str, str], float] = {}

    def check(self) -> None:
        """Raises `Violation` when a holder keeps blocks that it has computed and nobody will fetch."""
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
        """All leases whose work is over, by (node, lease id), where somebody could let go of them; and how much
        longer that may take than a word does. Of a shared lease only its receiver can say that it is not wanted any
        more; when that word gets lost the lease, which is short, runs out."""
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
