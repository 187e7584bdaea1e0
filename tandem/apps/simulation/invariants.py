"""The invariants that must hold after every few rounds of the event loop, whatever has been broken."""

from collections.abc import Callable

from router.settings import RouterSettings
from tandem.apps.simulation.checks import Outcome
from tandem.apps.simulation.demand import Demand
from tandem.apps.simulation.judge import Record
from tandem.apps.simulation.lease_watch import LeaseWatch
from tandem.apps.simulation.owner_watch import OwnerWatch
from tandem.apps.simulation.platform import Platform
from tandem.apps.simulation.router_watch import RouterWatch


class Invariants:
    """Looks at a whole platform. Each check does only what has become necessary since the last one."""

    def __init__(
        self, platform: Platform, settings: RouterSettings, model: str, stall_s: float, calm_s: Callable[[], float]
    ) -> None:
        self.demands: list[Demand] = []
        """The minimum demand of every request, as in `Record.demands`."""
        self.strikes: list[float] = []
        """Times at which something affected the work of a worker that decodes, as in `Record.strikes`."""
        self._stall_s = stall_s
        self._clock = platform.clock
        self._routers = {router.name: RouterWatch(router, platform, settings, model) for router in platform.routers}
        machines = tuple(platform.machines.values())
        self._turns = (machines[::2], machines[1::2])
        self._looks = 0
        self._prefills = tuple(node for node in platform.nodes.values() if not node.decodes)
        self._prefill_outages: list[tuple[float, float]] = []
        self._prefill_out_since: float | None = None
        self._leases = LeaseWatch(platform.clock, platform.nodes, calm_s)
        self._owners = OwnerWatch(platform.clock, platform.nodes, platform.routers, calm_s)

    def check(self) -> None:
        """Check the invariants. Raises `AssertionError`, of which `Violation` is one kind. Machines take turns: each
        is checked about once a step."""
        for router in self._routers.values():
            router.check_promises()
        self._looks += 1
        for node in self._turns[self._looks % len(self._turns)]:
            node.check()
        for router in self._routers.values():
            router.check_knowledge()
        self._watch_prefill()
        for router in self._routers.values():
            router.check_let_go()
        self._leases.check()
        self._owners.check()

    def record(self, outcome: Outcome) -> Record:
        """The record to judge a request by: what happened to the routers that it was sent to, and to the workers."""
        outages = [span for name in dict.fromkeys(outcome.routers) for span in self._routers[name].outages]
        return Record(outages, self._prefill_outages, self.strikes, self._stall_s, self.demands)

    def _watch_prefill(self) -> None:
        now = self._clock.now()
        if not self._prefills or any(node.alive and not node.frozen for node in self._prefills):
            self._prefill_out_since = None
        elif self._prefill_out_since is None:
            self._prefill_out_since = now
            self._prefill_outages.append((now, now))
        else:
            self._prefill_outages[-1] = (self._prefill_out_since, now)
