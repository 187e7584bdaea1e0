"""State kept of each service between decisions: speeds and history. Synchronous; the loop owns it."""

from dataclasses import dataclass, field

from control_plane.autoscale import History, Scaling, ServiceLoad, decide
from control_plane.autoscale.learning import Measured, speeds
from control_plane.reports.aggregator import ReportAggregate
from control_plane.reports.service import PoolObserved, ServiceObserved, samples, service_load


@dataclass
class _Memory:
    """The scaling state of one service; `started` has, by pool, the pods whose start has been counted."""

    history: History = field(default_factory=History)
    measured: dict[str, Measured] = field(default_factory=dict)
    started: dict[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class ScalingDecision:
    """One decision with what it was made from."""

    load: ServiceLoad
    scaling: Scaling


class ScalingState:
    """One per process."""

    def __init__(self) -> None:
        self._memories: dict[tuple[str, str], _Memory] = {}

    def look(self, service: ServiceObserved, books: ReportAggregate, now: float) -> ScalingDecision:
        """Decide for one service at wall-clock time `now`."""
        memory = self._memories.setdefault((service.namespace, service.name), _Memory())
        told = samples(service, books, now)
        for name, pool in service.pools.items():
            measured = self._with_starts(memory, name, pool)
            memory.measured[name] = measured.learn(told.get(name, ()), now)
        load = service_load(service, books, now)
        scaling = decide(service.spec, load, speeds(memory.measured), memory.history, now)
        memory.history = scaling.history
        return ScalingDecision(load, scaling)

    def keep(self, services: set[tuple[str, str]]) -> None:
        """Forget those that are gone."""
        self._memories = {key: memory for key, memory in self._memories.items() if key in services}

    def measured(self, namespace: str, service: str) -> dict[str, Measured]:
        """Measured speeds of a service's pools, by pool, for metrics and people."""
        memory = self._memories.get((namespace, service))
        return {} if memory is None else dict(memory.measured)

    def _with_starts(self, memory: _Memory, name: str, pool: PoolObserved) -> Measured:
        """The measurements of a pool with the cold starts that have ended since the last look."""
        measured = memory.measured.get(name, Measured())
        counted = memory.started.get(name, frozenset())
        ready = {pod: each for pod, each in pool.pods.items() if each.ready_s is not None}
        for pod in sorted(ready.keys() - counted, key=lambda pod: ready[pod].made_s):
            ready_s = ready[pod].ready_s
            assert ready_s is not None
            measured = measured.started(ready_s - ready[pod].made_s)
        memory.started[name] = frozenset(ready) | (counted & pool.pods.keys())
        return measured
