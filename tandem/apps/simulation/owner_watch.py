"""Watches work that routers wait for: a worker has it, or it is on its way there or back.

What a worker ends for one router must not be another router's, and no answer about it may get lost.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Final

from router.dispatch.attempt import WorkerStream
from router.dispatch.phase import Phase
from router.dispatch.request_state import RequestState
from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.node import WorkerNode
from tandem.apps.simulation.router_node import RouterLife
from tandem.apps.simulation.routers import Routers
from tandem.core.clock import Clock

_LOOK_EVERY_S: Final = 0.1
_ON_ITS_WAY_S: Final = 1.0
"""Much longer than a message takes when nothing is wrong, and than a router takes to give up a lost link."""

_Place = tuple[str, str, int]
"""Router, worker, handle."""


class OwnerWatch:
    """The watch over the work that the routers of one world wait for. `calm_s` gives the seconds for which nothing
    has been broken or slow."""

    def __init__(
        self, clock: Clock, nodes: Mapping[str, WorkerNode], routers: Routers, calm_s: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._nodes = nodes
        self._routers = routers
        self._calm_s = calm_s
        self._looked = -inf
        self._missing: dict[_Place, float] = {}

    def check(self) -> None:
        """Raises `Violation` when a router waits for work that a worker with a link to it does not have."""
        now = self._clock.now()
        if now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        if self._calm_s() < _ON_ITS_WAY_S:
            self._missing.clear()
            return
        places = [place for life in self._routers.lives() for place in self._unowned(life)]
        self._missing = {place: self._missing.get(place, now) for place in places}
        for (router, worker, handle), since in self._missing.items():
            if now - since > _ON_ITS_WAY_S:
                reason = f"{router} waits for work {handle} on {worker}, which has had none for {now - since:.1f} s"
                raise Violation(reason)

    def _unowned(self, life: RouterLife) -> list[_Place]:
        """The attempts that this router waits for and no worker has. A frozen worker may have one unread, and its
        link detects that."""
        return [
            (life.name, peer.worker_id, handle)
            for peer in life.fleet.peers()
            if peer.worker_id in self._nodes
            for handle, target in peer.targets()
            if isinstance(target, WorkerStream) and _waited_for(target)
            if not self._has(peer.worker_id, life.name, handle) and not self._nodes[peer.worker_id].frozen
        ]

    def _has(self, worker: str, router: str, handle: int) -> bool:
        """Whether the worker has it, or is stopped, which its router has yet to notice."""
        node = self._nodes[worker]
        now = node.incarnation
        if now is None or node.frozen:
            return node.frozen
        host = now.service.host
        return any(
            session.link.peer == router and host._desk._table.by_handle(session_id, handle) is not None
            for session_id, session in host._sessions.items()
        )


def _waited_for(leg: WorkerStream) -> bool:
    """Whether more is to come: its report, or the tokens of a request that it generates."""
    if not leg.live:
        return False
    request = leg.owner
    if not leg.reported or not isinstance(request, RequestState):
        return not leg.reported
    attempt = request._attempt
    return request.phase is Phase.RUNNING and attempt is not None and attempt.decode is leg
