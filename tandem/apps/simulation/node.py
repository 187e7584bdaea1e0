"""A simulated worker: the real worker service over simulated parts. Its engine can be made to fail."""

from dataclasses import dataclass, replace
from typing import Final

from decode_worker.service import decode_worker
from kv_transfer.tiers.memory_tiers import memory_tiers
from kv_transfer.tiers.protocol import Tiers
from prefill_worker.service import prefill_worker
from tandem.apps.simulation.environment import NodeEnvironment
from tandem.apps.simulation.loop import Process
from tandem.apps.simulation.process_node import Life, Names, ProcessNode, Service
from tandem.apps.simulation.watch import WatchedRunner, WatchedTransport
from tandem.core.clock import Clock
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.engine.local import LocalEngine
from tandem.engine.protocol import BlockSpace, EngineInfo
from tandem.engine.scheduler.scheduler import Scheduler
from tandem.worker.block_events import POOL
from tandem.worker.deps import OpenPublisher, WorkerDeps
from tandem.worker.service import WorkerService
from tandem.worker.settings import HostSettings
from tandem.worker.simple_decoder import SimpleDecoder

_OVERDUE_S: Final = 0.5
"""Seconds by which a worker may notice a deadline late: the longest step and a little more."""


@dataclass(eq=False, kw_only=True)
class WorkerLife(Life):
    """One life of a worker's process."""

    runner: WatchedRunner
    engine: LocalEngine
    service: WorkerService
    checked: tuple[int, ...] = ()
    """The state of the scheduler when its invariants were last checked."""

    @property
    def broken_down(self) -> bool:
        """Whether the process ended because its engine was made to fail."""
        return self.runner.fail_next and _engine_failed(self.failure)


class WorkerNode(ProcessNode[WorkerLife]):
    """One machine with one worker."""

    def __init__(self, name: str, role: str, ground: NodeEnvironment, clock: Clock, entropy: SeededEntropy) -> None:
        super().__init__(name, ground.loop, ground.links, clock)
        self.role = role
        self.tells = name not in ground.shared.silent
        """Whether routers hear which blocks there are."""
        self._ground = ground
        self._entropy = entropy

    @property
    def decodes(self) -> bool:
        return self.role != "prefill"

    # -- life --

    def _begin(self, process: Process) -> tuple[WorkerLife, Service]:
        ground = self._ground
        entropy = self._entropy.fork(process.name)
        runner = WatchedRunner(ground.model)
        scheduler = replace(ground.scheduler, queue_s=ground.deadlines.queue_s)
        engine = LocalEngine(runner, scheduler, self._clock, entropy.u64())
        transport = WatchedTransport(ground.fabric, self.name, lambda: engine.epoch, ground.broken)
        parts = WorkerDeps(
            engine,
            SimpleDecoder(),
            self._clock,
            entropy,
            recorder=ground.recorder,
            meter=ground.meter,
            deadlines=ground.deadlines,
            settings=HostSettings(kv_events=self.tells, stream_interval=ground.stream_interval),
            open_tiers=self._open_tiers if ground.tiers.wanted else None,
            open_publisher=self._publishing(),
        )
        service = self._service(parts, engine, transport)
        now = WorkerLife(
            process=process,
            transport=transport,
            drain_s=ground.deadlines.drain_s,
            runner=runner,
            engine=engine,
            service=service,
        )
        return now, service

    def _publishing(self) -> OpenPublisher | None:
        return self._ground.publishing(self.name, self._clock, self._publishes)

    def _open_tiers(self, space: BlockSpace, _info: EngineInfo) -> Tiers:
        dram, nvme = self.disks["dram"], self.disks["nvme"]
        self._tiers = memory_tiers(self._ground.tiers, space, self._clock, self._ground.meter, nvme, dram)
        return self._tiers

    def _service(self, parts: WorkerDeps, engine: LocalEngine, transport: WatchedTransport) -> WorkerService:
        server, begin, keyring = self._ground.links.server(self.name), engine.begin_epoch, self._ground.keyring
        if self.role == "prefill":
            return prefill_worker(parts, self.name, server, [transport], keyring, begin)
        return decode_worker(parts, self.name, server, [transport], begin, role=self.role, keyring=keyring)

    # -- what the world looks at --

    def _check(self, now: WorkerLife) -> None:
        """Nothing is done while nothing has changed since the last call."""
        scheduler = now.engine.scheduler
        pool = scheduler.kv_cache.pool
        looks = (now.runner.steps, now.service.host.attempts, pool.used, pool.quarantined, len(scheduler.leases))
        if looks != now.checked:
            scheduler.check()
            now.service.host.check()
            now.checked = looks
            self._check_deadlines(now)

    def _check_deadlines(self, now: WorkerLife) -> None:
        """Check that no work lives much longer than its deadline allows. A process that was stopped needs a moment to
        notice the deadline."""
        at = self._clock.now()
        late_s = max(now.engine.scheduler.overdue_s(at), now.service.host.overdue_s(at))
        if late_s > _OVERDUE_S and not now.process.frozen and at - now.thawed_s > _OVERDUE_S:
            raise AssertionError(f"{self.name} works on something whose deadline passed {late_s:.2f} s ago")

    def held(self) -> str | None:
        now = self.incarnation
        if now is None:
            return None
        pool = now.engine.scheduler.kv_cache.pool
        if now.service.host.attempts:
            return f"{self.name} holds {now.service.host.attempts} attempts"
        if pool.used or pool.quarantined or pool.held:
            return f"{self.name} holds {pool.used} blocks, {pool.quarantined} in quarantine, copies {pool.held}"
        return None

    def names_in_sync(self, epoch: int, count: int) -> Names | None:
        now = self.incarnation
        if now is None or now.engine.scheduler.kv_cache.pool.has_changes:
            return None
        if now.service.host.told != (epoch, count):
            return None
        return self.names()

    def names(self) -> Names:
        """The blocks there are now."""
        now = self.incarnation
        return {} if now is None else {POOL: now.engine.snapshot(), **self._lower_names()}

    def damage_tail(self) -> bool:
        """Change a byte of a partial block that waits to be pulled and that this worker will not read again."""
        now = self.incarnation
        if now is None or not now.service.host.ready:
            return False
        slot = _idle_tail(now.engine.scheduler)
        if slot is None:
            return False
        now.engine.memory.block(slot)[0] ^= 1
        return True


def _idle_tail(scheduler: Scheduler) -> int | None:
    """A slot with an unnamed block that is used only by a lease whose work is over."""
    pool = scheduler.kv_cache.pool
    for lease in scheduler.leases._leases.values():
        for name, slot in lease.exports.items() if lease.first is not None else ():
            if slot is not None and pool.refs(slot) == 1 and pool.find(name) is None:
                return slot
    return None


def _engine_failed(failure: BaseException | None) -> bool:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return isinstance(failure, TandemError) and failure.code == "engine_failed"
