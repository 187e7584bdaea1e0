"""A simulated worker process: the real worker service over simulated parts. It can die, freeze, fail and return."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from decode_worker.service import decode_worker
from kv_transfer.memory import MemoryFabric
from kv_transfer.tickets import Keyring
from prefill_worker.service import prefill_worker
from tandem.core.clock import Clock
from tandem.core.deadlines import Deadlines
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter
from tandem.core.spans import Recorder
from tandem.engine.local import LocalEngine
from tandem.engine.scheduler import Scheduler
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.service.memory_link import MemoryLinks
from tandem.sim.loop import Process, VirtualLoop
from tandem.sim.watch import Broken, WatchedRunner, WatchedTransport
from tandem.worker.parts import Parts
from tandem.worker.service import WorkerService
from tandem.worker.simple_decoder import SimpleDecoder

_OVERDUE_S: Final = 0.5
"""How late a worker may notice a deadline: the longest step, and then some."""


@dataclass(frozen=True)
class Ground:
    """What all simulated workers of a world share."""

    loop: VirtualLoop
    model: SimulatedModel
    scheduler: SchedulerSettings
    deadlines: Deadlines
    meter: Meter
    recorder: Recorder
    links: MemoryLinks
    fabric: MemoryFabric
    keyring: Keyring
    broken: Broken


@dataclass(eq=False)
class Incarnation:
    """One life of a worker's process. Frozen references, so that a late task of a dead one cannot touch its
    successor."""

    process: Process
    runner: WatchedRunner
    engine: LocalEngine
    service: WorkerService
    transport: WatchedTransport
    drain_s: float
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    loaded: bool = False
    left: bool = False
    """It was asked to leave, and has."""
    thawed_s: float = float("-inf")
    """When it went on after having been frozen."""
    failure: BaseException | None = None
    checked: tuple[int, ...] = ()
    """What the scheduler looked like when its invariants were checked last."""

    @property
    def broken_down(self) -> bool:
        """Whether the process ended because its engine was made to fail."""
        return self.runner.fail_next and _engine_failed(self.failure)


class WorkerNode:
    """One machine with one worker. Its address, and its name on the KV fabric, is `name`."""

    def __init__(self, name: str, role: str, ground: Ground, clock: Clock, entropy: SeededEntropy) -> None:
        self.name = name
        self.role = role
        self.incarnations = 0
        self._ground = ground
        self._clock = clock
        self._entropy = entropy
        self._now: Incarnation | None = None
        self._life: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._now is not None

    @property
    def frozen(self) -> bool:
        return self._now is not None and self._now.process.frozen

    @property
    def decodes(self) -> bool:
        return self.role != "prefill"

    @property
    def incarnation(self) -> Incarnation | None:
        """The running process, once it has loaded."""
        return self._now if self._now is not None and self._now.loaded else None

    # -- life and death --

    def start(self) -> None:
        """Begin a new incarnation."""
        assert not self.alive, f"{self.name} runs already"
        self.incarnations += 1
        ground = self._ground
        entropy = self._entropy.fork(f"{self.name}/{self.incarnations}")
        runner = WatchedRunner(ground.model)
        scheduler = replace(ground.scheduler, queue_s=ground.deadlines.queue_s)
        engine = LocalEngine(runner, scheduler, self._clock, entropy.u64())
        transport = WatchedTransport(ground.fabric, self.name, lambda: engine.epoch, ground.broken)
        parts = Parts(
            engine,
            SimpleDecoder(),
            self._clock,
            entropy,
            recorder=ground.recorder,
            meter=ground.meter,
            deadlines=ground.deadlines,
        )
        process = Process(f"{self.name}/{self.incarnations}")
        self._now = Incarnation(
            process, runner, engine, self._service(parts, engine, transport), transport, ground.deadlines.drain_s
        )
        self._life = ground.loop.create_task(_live(self._now), name=f"process {self.name}", context=process.context)

    def _service(self, parts: Parts, engine: LocalEngine, transport: WatchedTransport) -> WorkerService:
        server, begin, keyring = self._ground.links.server(self.name), engine.begin_epoch, self._ground.keyring
        if self.role == "prefill":
            return prefill_worker(parts, self.name, server, [transport], keyring, begin)
        return decode_worker(parts, self.name, server, [transport], begin, role=self.role, keyring=keyring)

    def kill(self) -> None:
        """The process is gone between two instructions: nothing it would still do reaches anybody."""
        assert self._now is not None, f"{self.name} is dead already"
        assert self._life is not None
        self._ground.links.kill(self.name)
        self._now.transport.kill()
        self._life.cancel()
        if self._now.process.frozen:
            self._ground.loop.thaw(self._now.process)
        self._now = self._life = None

    def freeze(self) -> None:
        """Stop the process where it stands."""
        assert self._now is not None
        self._ground.loop.freeze(self._now.process)

    def thaw(self) -> None:
        """Let it go on, late."""
        assert self._now is not None
        self._now.thawed_s = self._clock.now()
        self._ground.loop.thaw(self._now.process)

    # -- what the world looks at --

    def check(self) -> None:
        """The worker's invariants. Nothing is done while nothing has changed since the last call."""
        now = self._now
        if now is None:
            return
        if now.failure is not None and not now.broken_down:
            raise AssertionError(f"{self.name} ended by itself: {now.failure!r}") from now.failure
        if not now.loaded or now.failure is not None:
            return
        scheduler = now.engine.scheduler
        pool = scheduler.residence.pool
        looks = (now.runner.steps, now.service.host.attempts, pool.used, pool.quarantined, len(scheduler.leases))
        if looks != now.checked:
            scheduler.check()
            now.service.host.check()
            now.checked = looks
            self._check_deadlines(now)

    def _check_deadlines(self, now: Incarnation) -> None:
        """No work lives much longer than it may; a process that was stopped needs a moment to notice."""
        at = self._clock.now()
        late_s = max(now.engine.scheduler.overdue_s(at), now.service.host.overdue_s(at))
        if late_s > _OVERDUE_S and not now.process.frozen and at - now.thawed_s > _OVERDUE_S:
            raise AssertionError(f"{self.name} works on something whose deadline passed {late_s:.2f} s ago")

    def held(self) -> str | None:
        """What this worker still holds for anybody, in one sentence; None when everything is free."""
        now = self.incarnation
        if now is None:
            return None
        pool = now.engine.scheduler.residence.pool
        if now.service.host.attempts:
            return f"{self.name} holds {now.service.host.attempts} attempts"
        if pool.used or pool.quarantined:
            return f"{self.name} holds {pool.used} blocks, {pool.quarantined} in quarantine"
        return None

    def names_in_sync(self, epoch: int, count: int) -> tuple[bytes, ...] | None:
        """The blocks this worker has, if event number `count` of `epoch` was the last there is; None otherwise."""
        now = self.incarnation
        if now is None or now.engine.scheduler.residence.pool.has_changes:
            return None
        if now.service.host.told != (epoch, count):
            return None
        return now.engine.snapshot()

    def damage_tail(self) -> bool:
        """Change a byte of a partial block that waits to be pulled and that nobody here will read again."""
        now = self.incarnation
        if now is None or not now.service.host.ready:
            return False
        slot = _idle_tail(now.engine.scheduler)
        if slot is None:
            return False
        now.engine.memory.block(slot)[0] ^= 1
        return True


def _idle_tail(scheduler: Scheduler) -> int | None:
    """A slot with an unnamed block that is nobody's but a lease's whose work is over."""
    pool = scheduler.residence.pool
    for lease in scheduler.leases._leases.values():
        for name, slot in lease.exports.items() if lease.first is not None else ():
            if slot is not None and pool.refs(slot) == 1 and pool.find(name) is None:
                return slot
    return None


async def _live(now: Incarnation) -> None:
    try:
        await now.service.start()
        now.loaded = True
        async with asyncio.TaskGroup() as group:
            roots = [group.create_task(_run(root), name=name) for name, root in now.service.roots().items()]
            await now.service.serve()
            within_s = await now.service.asked_to_leave()
            await now.service.drain(within_s if within_s is not None else now.drain_s)
            for task in roots:
                task.cancel()
        now.left = True
        now.ended.set()
    except Exception as error:  # noqa: BLE001 - the edge of a simulated process
        now.failure = error
        now.ended.set()


def _engine_failed(failure: BaseException | None) -> bool:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return isinstance(failure, TandemError) and failure.code == "engine_failed"


async def _run(root: Callable[[], Awaitable[None]]) -> None:
    await root()
