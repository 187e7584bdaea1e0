"""A simulated worker process: the real worker service over simulated parts, which can be killed and come back."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from decode_worker.service import decode_worker
from kv_transfer.memory import MemoryFabric, MemoryTransport
from kv_transfer.tickets import Keyring
from prefill_worker.service import prefill_worker
from tandem.core.clock import Clock
from tandem.core.deadlines import Deadlines
from tandem.core.entropy import SeededEntropy
from tandem.core.metrics import Meter
from tandem.engine.local import LocalEngine
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.runner import SimulatedRunner
from tandem.service.memory_link import MemoryLinks
from tandem.worker.parts import Parts
from tandem.worker.service import WorkerService
from tandem.worker.simple_decoder import SimpleDecoder


@dataclass(frozen=True)
class NodeSettings:
    """What every simulated worker is made of."""

    model: SimulatedModel
    scheduler: SchedulerSettings
    deadlines: Deadlines
    meter: Meter


@dataclass
class _Process:
    """One incarnation. Frozen references, so that a late task of a dead one cannot touch its successor."""

    engine: LocalEngine
    service: WorkerService
    transport: MemoryTransport
    loaded: bool = False
    failure: Exception | None = None


class WorkerNode:
    """One machine with one worker. Its address, and its name on the KV fabric, is `name`."""

    def __init__(
        self,
        name: str,
        role: str,
        settings: NodeSettings,
        clock: Clock,
        entropy: SeededEntropy,
        links: MemoryLinks,
        fabric: MemoryFabric,
        keyring: Keyring,
    ) -> None:
        self.name = name
        self.role = role
        self.incarnations = 0
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._links = links
        self._fabric = fabric
        self._keyring = keyring
        self._process: _Process | None = None
        self._life: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Begin a new incarnation."""
        assert not self.alive, f"{self.name} runs already"
        self.incarnations += 1
        entropy = self._entropy.fork(f"{self.name}/{self.incarnations}")
        runner = SimulatedRunner(self._settings.model)
        engine = LocalEngine(runner, self._settings.scheduler, self._clock, entropy.u64())
        transport = MemoryTransport(self._fabric, self.name)
        parts = Parts(
            engine,
            SimpleDecoder(),
            self._clock,
            entropy,
            meter=self._settings.meter,
            deadlines=self._settings.deadlines,
        )
        self._process = process = _Process(engine, self._service(parts, engine, transport), transport)
        self._life = asyncio.get_running_loop().create_task(_live(process), name=f"process {self.name}")

    def _service(self, parts: Parts, engine: LocalEngine, transport: MemoryTransport) -> WorkerService:
        server, begin = self._links.server(self.name), engine.begin_epoch
        if self.role == "prefill":
            return prefill_worker(parts, self.name, server, [transport], self._keyring, begin)
        return decode_worker(parts, self.name, server, [transport], begin, role=self.role)

    def kill(self) -> None:
        """The process is gone between two instructions: nothing it would still do reaches anybody."""
        assert self._process is not None, f"{self.name} is dead already"
        assert self._life is not None
        self._links.kill(self.name)
        self._process.transport.kill()
        self._life.cancel()
        self._process = self._life = None

    # -- what the world looks at --

    def check(self) -> None:
        """The worker's invariants; cheap enough for every few steps."""
        process = self._process
        if process is None or not process.loaded:
            return
        if process.failure is not None:
            raise AssertionError(f"{self.name} ended by itself: {process.failure!r}") from process.failure
        process.engine.scheduler.check()

    def held(self) -> str | None:
        """What this worker still holds for anybody, in one sentence; None when everything is free."""
        process = self._process
        if process is None or not process.loaded:
            return None
        pool = process.engine.scheduler.residence.pool
        if process.service.host.attempts:
            return f"{self.name} holds {process.service.host.attempts} attempts"
        if pool.used or pool.quarantined:
            return f"{self.name} holds {pool.used} blocks, {pool.quarantined} in quarantine"
        return None


async def _live(process: _Process) -> None:
    try:
        await process.service.start()
        process.loaded = True
        async with asyncio.TaskGroup() as group:
            for name, root in process.service.roots().items():
                group.create_task(_run(root), name=name)
            await process.service.serve()
    except Exception as error:  # noqa: BLE001 - the edge of a simulated process
        process.failure = error


async def _run(root: Callable[[], Awaitable[None]]) -> None:
    await root()
