"""The GPUs of a platform on this machine: which worker has which, and what its process has to know of them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tandem.apps.cli.gpu_fit import check_fit
from tandem.apps.cli.single_node import local_source
from tandem.core.clock import Clock
from tandem.devices.assigning import Assignment, Wanted, assign, environment_of
from tandem.devices.topology import Topology
from tandem.devices.visible import restricted
from tandem.spec.pool import Pool, engine_of
from tandem.spec.service import ModelService

_COMING_S: Final = 1.0
"""Seconds after it got its GPUs during which a worker counts although it is not among the members yet."""


@dataclass(frozen=True)
class DeviceBinding:
    """The environment and settings that bind a worker's process to its devices."""

    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)


UNBOUND: Final = DeviceBinding()


class Gpus:
    """Which worker has which GPUs. The topology is read when the first worker wants a GPU."""

    def __init__(
        self,
        environment: Mapping[str, str],
        locks: Path,
        clock: Clock,
        read: Callable[[], Topology | None],
    ) -> None:
        """`locks`: where files are made that workers on one GPU lock while they start."""
        self._environment = environment
        self._locks = locks
        self._clock = clock
        self._read = read
        self._topology: Topology | None = None
        self._looked = False
        self._given: dict[str, tuple[Assignment, float]] = {}
        self.notes: list[str] = []
        """One line for every worker that got a GPU, and for what could not be found out."""

    def give(
        self, service: ModelService, workers: Sequence[tuple[Pool, int]], present: Collection[str] = ()
    ) -> dict[str, DeviceBinding]:
        """Assign GPUs to the workers; gives the binding of each by name, an empty one for a worker on CPUs. `present`
        are the workers that run. Raises `bad_setting` with the arithmetic where a worker does not fit."""
        wanted = {f"{pool.name}-{index}": (pool, _wanted(service, pool, index)) for pool, index in workers}
        on_gpus = [each for pool, each in wanted.values() if _on_gpu(service, pool)]
        bounds = dict.fromkeys(wanted, UNBOUND)
        topology = self._seen() if on_gpus else None
        if topology is None:
            return bounds
        now = self._clock.now()
        staying = {
            name: (assignment, at)
            for name, (assignment, at) in self._given.items()
            if name not in wanted and (name in present or now - at < _COMING_S)
        }
        plan = assign(topology, on_gpus, [assignment for assignment, _ in staying.values()])
        self._given = staying
        for assignment in plan.assignments:
            pool = wanted[assignment.name][0]
            engine = engine_of(service.spec.engine, pool)
            fits = check_fit(local_source(service.spec.model.source), engine, assignment)
            self.notes.append(f"{assignment.name}: {'; '.join((*assignment.reasons, fits))}")
            self._given[assignment.name] = assignment, now
            bounds[assignment.name] = self._bound(topology, engine.type, assignment)
        self.notes += plan.idle
        return bounds

    def _seen(self) -> Topology | None:
        if not self._looked:
            found, self._looked = self._read(), True
            self._topology = None if found is None else restricted(found, self._environment)
            if found is None:
                self.notes.append(
                    "GPUs are not assigned, and memory is not checked: neither nvidia-smi nor rocm-smi tells of any; "
                    "every worker sees what this process sees"
                )
        return self._topology

    def _bound(self, topology: Topology, engine: str, given: Assignment) -> DeviceBinding:
        settings: dict[str, object] = {f"{engine}.gpu_memory_share": given.share}
        if engine == "vllm":
            files = sorted({f"gpu-{gpu.uuid or gpu.token}.lock" for gpu in given.gpus})
            settings["vllm.start_locks"] = ",".join(str(self._locks / name) for name in files)
        return DeviceBinding(environment_of(topology, given, self._environment), settings)


def _on_gpu(service: ModelService, pool: Pool) -> bool:
    engine = engine_of(service.spec.engine, pool)
    return engine.device == "cuda" and engine.type != "simulated"


def _wanted(service: ModelService, pool: Pool, index: int) -> Wanted:
    engine = engine_of(service.spec.engine, pool)
    return Wanted(f"{pool.name}-{index}", pool.role, engine.parallelism.ranks, engine.gpu_memory_share)
