"""What must hold after every few rounds of the event loop, whatever has been broken."""

from collections.abc import Callable, Mapping
from typing import Final

from router.settings import RouterSettings
from tandem.core.clock import Clock
from tandem.sim.checks import Violation
from tandem.sim.judge import Record
from tandem.sim.lease_watch import LeaseWatch
from tandem.sim.node import WorkerNode
from tandem.sim.router_node import RouterLife, RouterNode

_FREED_WITHIN_S: Final = 2.0
"""How much longer than the time of missing heartbeats a worker may hold what belongs to a dead router."""


class Invariants:
    """Looks at a whole platform. Each check does only what has become necessary since the last one."""

    def __init__(
        self,
        clock: Clock,
        settings: RouterSettings,
        model: str,
        nodes: Mapping[str, WorkerNode],
        router: RouterNode,
        stall_s: float,
        calm_s: Callable[[], float],
    ) -> None:
        self.record = Record([], [], stall_s)
        self._clock = clock
        self._settings = settings
        self._model = model
        self._nodes = nodes
        self._router = router
        self._compared: dict[str, tuple[int, int]] = {}
        self._out_since: float | None = None
        self._leases = LeaseWatch(clock, nodes, calm_s)

    def check(self) -> None:
        """Raises `AssertionError`, or `Violation` as one."""
        self._router.check()
        for node in self._nodes.values():
            node.check()
        life = self._router.life
        if life is not None:
            self._check_index(life)
            self._watch_outage(life)
        if self._router.deaths:
            self._check_freed()
        if self._router.frozen_since is not None:
            self._check_given_up(self._router.frozen_since)
        self._leases.check()

    def _check_index(self, life: RouterLife) -> None:
        """The index holds exactly what a worker has when all its events have arrived, and nothing of lost workers."""
        for name, node in self._nodes.items():
            peer = life.fleet.peer(name)
            known = life.index.names(name)
            if peer is None:
                if known:
                    raise Violation(f"the index holds {len(known)} blocks of {name}, which is lost")
                continue
            if peer.feed.idle and known:
                raise Violation(f"the index holds {len(known)} blocks of {name}, of which nothing is known now")
            last = peer.feed.last
            if last is None or self._compared.get(name) == last:
                continue
            names = node.names_in_sync(*last)
            if names is None:
                continue
            if known != frozenset(names):
                wrong = len(known - frozenset(names))
                raise Violation(f"the index holds {wrong} blocks that {name} does not have, and lacks others")
            self._compared[name] = last

    def _watch_outage(self, life: RouterLife) -> None:
        now = self._clock.now()
        stopped = self._router.frozen_since is not None
        if not stopped and any(
            view.role != "prefill" and not view.draining for view in life.fleet.views(self._model)
        ):
            self._out_since = None
        elif self._out_since is None:
            self._out_since = now
            self.record.outages.append((now, now))
        else:
            self.record.outages[-1] = (self._out_since, now)

    def _check_given_up(self, since: float) -> None:
        """Workers have let go of what belongs to a router that was stopped for too long."""
        life, now = self._router.life, self._clock.now()
        if life is None or now - since <= self._settings.deadlines.heartbeat_lost_s + _FREED_WITHIN_S:
            return
        for node in self._nodes.values():
            worker = node.incarnation
            if worker is None or node.frozen or now - worker.thawed_s < 1.0:
                continue
            if life.name in worker.service.host.routers:
                raise Violation(f"{node.name} still serves {life.name}, which was stopped {now - since:.1f} s ago")

    def _check_freed(self) -> None:
        """Workers have let go of what belonged to a dead router, at the latest when its heartbeats are missed."""
        at, name = self._router.deaths[0]
        late_s = self._clock.now() - at - self._settings.deadlines.heartbeat_lost_s - _FREED_WITHIN_S
        if late_s <= 0:
            return
        for node in self._nodes.values():
            now = node.incarnation
            if now is None:
                continue
            if node.frozen or self._clock.now() - now.thawed_s < 1.0:
                return
            if name in now.service.host.routers:
                raise Violation(f"{node.name} still serves {name}, {late_s:.1f} s after it had to notice its death")
        del self._router.deaths[0]
