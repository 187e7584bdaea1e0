"""A whole platform in this process with nothing simulated: torch engines, TCP links, KV over sockets and memory.

Workers are the services that the worker processes run, under `run_service`; the router is the dispatcher and fleet
of the router process, both without canaries, which would meet what a test has broken before its requests do. What a
test wants to break it wraps: a runner, a transport, or a worker's life.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from decode_worker.service import decode_worker
from kv_transfer.index.memory_index import MemoryIndex
from kv_transfer.tickets import Keyring, TicketKey
from kv_transfer.transport.protocol import Transport
from kv_transfer.transport.shm import ShmSettings, ShmTransport
from kv_transfer.transport.tcp import TcpSettings, TcpTransport
from prefill_worker.service import prefill_worker
from router.dispatch.deps import DispatchDeps
from router.dispatch.dispatcher import Dispatcher
from router.fleet.fleet import Fleet
from router.generation import Running
from router.placement import CostModel
from router.settings import PlacementSettings, RetrySettings, RouterSettings, SplitSettings
from router.split.plan import Planner
from tandem.core.deadlines import Deadlines
from tandem.core.metrics import NullMeter
from tandem.engine.local import LocalEngine
from tandem.engine.scheduler.plan import Runner
from tandem.engine.settings import SchedulerSettings
from tandem.engine.torch.build import build_runner
from tandem.engine.torch.settings import TorchSettings
from tandem.link.tcp_dialer import TcpDialer
from tandem.link.tcp_server import TcpLinkServer
from tandem.process.health import Health
from tandem.process.logs import EventLines
from tandem.process.run import StopSignal, run_service
from tandem.process.system import SystemClock, SystemEntropy
from tandem.process.telemetry import RingRecorder
from tandem.worker.deps import WorkerDeps
from tandem.worker.detokenizer import Decoder
from tandem.worker.service import WorkerService
from tandem.worker.settings import HostSettings
from tests.worlds.asking import Answer, Ask, Listener
from tests.worlds.tap import Seen, Tap

READY_S = 60.0
ANSWER_S = 90.0
PATIENT = Deadlines(heartbeat_lost_s=20.0, transfer_progress_s=10.0)
"""For everything that is not about losing workers: a busy machine must not look like a dead one."""


class CountingMeter(NullMeter):
    """Keeps the counters."""

    def __init__(self) -> None:
        self.added: dict[tuple[str, ...], float] = {}

    def add(self, name: str, value: float = 1.0, *labels: str) -> None:
        super().add(name, value, *labels)
        self.added[name, *labels] = self.added.get((name, *labels), 0.0) + value


def _same_runner(_name: str, runner: Runner) -> Runner:
    return runner


def _same_transport(_name: str, transport: Transport) -> Transport:
    return transport


@dataclass(frozen=True)
class PlatformSettings:
    """What to build. Without prefill workers the decode workers are unified ones."""

    torch: TorchSettings
    decoder: Decoder
    prefill: int = 2
    decode: int = 2
    auto: int = 0
    planner: Callable[[SplitSettings], Planner] = Planner
    """Decides which of the `auto` workers take prompts for others, with these settings."""
    split: SplitSettings = field(default_factory=SplitSettings)
    schemes: tuple[str, ...] = ("tcp",)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    prefer: str = "disaggregated"
    deadlines: Deadlines = PATIENT
    wrap_runner: Callable[[str, Runner], Runner] = _same_runner
    wrap_transport: Callable[[str, Transport], Transport] = _same_transport


class Worker:
    """One worker service with everything it stands on."""

    def __init__(self, settings: PlatformSettings, name: str, role: str, keyring: Keyring) -> None:
        clock, entropy = SystemClock(), SystemEntropy()
        self.name = name
        self.meter = CountingMeter()
        self.runner = settings.wrap_runner(name, build_runner(settings.torch))
        self.engine = LocalEngine(self.runner, settings.scheduler, clock, entropy.u64())
        self.transports = [settings.wrap_transport(name, _transport(scheme)) for scheme in settings.schemes]
        parts = WorkerDeps(
            self.engine,
            settings.decoder,
            clock,
            entropy,
            meter=self.meter,
            deadlines=settings.deadlines,
            settings=HostSettings(canary=False),
        )
        links, begin = TcpLinkServer("127.0.0.1:0"), self.engine.begin_epoch
        self.service: WorkerService = (
            prefill_worker(parts, name, links, self.transports, keyring, begin)
            if role == "prefill"
            else decode_worker(
                parts,
                name,
                links,
                self.transports,
                begin,
                role=role,
                keyring=keyring if role == "auto" else None,
            )
        )
        self._stop = StopSignal()
        self._life: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return self.service.address

    @property
    def kv_addresses(self) -> tuple[str, ...]:
        """Where its blocks can be pulled."""
        return self.service.host.identity.addresses

    def start(self) -> None:
        health = Health(EventLines())
        life = run_service(self.service, self._stop, health, drain_s=5.0)
        self._life = asyncio.get_running_loop().create_task(life, name=self.name)

    async def listening(self) -> None:
        """Until routers can dial. A worker that ends instead raises what it ended with."""
        assert self._life is not None
        while not self.service.address:
            if self._life.done():
                self._life.result()
            await asyncio.sleep(0.005)

    async def end(self) -> None:
        """Stop without draining. A worker that has ended by itself is left in peace."""
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait((self._life,))

    def held(self) -> str | None:
        """What is still held for anybody; None when everything is free."""
        pool = self.engine.scheduler.kv_cache.pool
        if self.service.host.attempts:
            return f"{self.name} holds {self.service.host.attempts} attempts"
        if pool.used or pool.quarantined:
            return f"{self.name} holds {pool.used} blocks, {pool.quarantined} in quarantine"
        return None


class Platform:
    """Router and workers that are up. `settings.wrap_*` see worker names `prefill-0`, `decode-0`, …"""

    def __init__(self, settings: PlatformSettings) -> None:
        self.settings = settings
        self.recorder = RingRecorder()
        clock, entropy = SystemClock(), SystemEntropy()
        self._clock = clock
        keyring = Keyring(TicketKey("platform", entropy.token(32)))
        self.keyring = keyring
        last = "decode" if settings.prefill else "unified"
        counts = (("prefill", settings.prefill), (last, settings.decode), ("auto", settings.auto))
        roles = [(role, i) for role, count in counts for i in range(count)]
        self.workers = {f"{role}-{i}": Worker(settings, f"{role}-{i}", role, keyring) for role, i in roles}
        router = RouterSettings(
            deadlines=settings.deadlines,
            placement=PlacementSettings(prefer=settings.prefer),
            retry=RetrySettings(share=1.0),
            usage_wait_s=1.0,
            split=settings.split,
        )
        self.meter = CountingMeter()
        self.tap = Tap(TcpDialer("router", entropy))
        self._fleet = Fleet(self.tap, clock, router.deadlines, MemoryIndex(), self.meter, router.fleet)
        loop = asyncio.get_running_loop()
        costs = CostModel(router.priors)
        tools = DispatchDeps(
            loop, clock, entropy, keyring, router, costs, self.recorder, self.meter, settings.planner
        )
        self.dispatcher = Dispatcher(self._fleet, tools)
        self._routing: asyncio.Task[None] | None = None
        self._asked = 0

    async def start(self) -> None:
        """Until every worker is reachable."""
        async with asyncio.timeout(READY_S):
            for worker in self.workers.values():
                worker.start()
            for worker in self.workers.values():
                await worker.listening()
            self._fleet.set_members([worker.address for worker in self.workers.values()])
            routing = self._fleet.run(self.dispatcher)
            self._routing = asyncio.get_running_loop().create_task(routing, name="fleet")
            await until(lambda: len(self._fleet.peers()) == len(self.workers), READY_S, "not every worker joined")

    async def stop(self) -> None:
        if self._routing is not None:
            self._routing.cancel()
            await asyncio.wait((self._routing,))
        for worker in self.workers.values():
            await worker.end()

    async def kill(self, name: str) -> None:
        """The worker is gone at once: what is on its way to the router is lost, and nothing more will come."""
        self.tap.sever(self.workers[name].address, f"{name} was killed")
        await self.workers[name].end()

    # -- clients --

    def begin(self, ask: Ask, on_output: Callable[[int], None] = lambda _count: None) -> "Asked":
        """Start a request. Raises what dispatch refuses it with."""
        self._asked += 1
        request_id = f"request-{self._asked}"
        listener = Listener(ask.n, on_output)
        generation = ask.generation(request_id, self._model(), self._clock.now(), self._clock.wall())
        return Asked(request_id, listener, self.dispatcher.start(generation, listener))

    async def ask(self, ask: Ask) -> Answer:
        """One request from start to end."""
        return await self.begin(ask).answer()

    def _model(self) -> str:
        (model,) = self.dispatcher.models()
        return model.name

    # -- what a test looks at --

    def attempts(self, request_id: str, mode: str) -> list[Seen]:
        """Where a request's attempts of one mode went, in order, with the reports that have come."""
        return list(self.tap.of(request_id, mode))

    def worker_at(self, address: str) -> Worker:
        return next(worker for worker in self.workers.values() if worker.address == address)

    async def reported(self, request_id: str, mode: str, within_s: float = 60.0) -> list[Seen]:
        """As `attempts`, once every worker that is alive has reported."""
        await until(
            lambda: all(seen.report is not None for seen in self.attempts(request_id, mode)),
            within_s,
            f"a worker has not reported on {request_id}",
        )
        return self.attempts(request_id, mode)

    def refused(self, reason: str) -> float:
        """Pulled blocks that were not used, over all workers."""
        return sum(
            worker.meter.added.get(("tandem_kv_blocks_refused_total", reason), 0.0)
            for worker in self.workers.values()
        )

    def held(self) -> str | None:
        """What is still held for anybody; None when everything is free."""
        return next(filter(None, (worker.held() for worker in self.workers.values())), None)

    async def idle(self, within_s: float = 60.0) -> None:
        """Until nothing is held for anybody any more."""
        await until(lambda: self.held() is None, within_s, lambda: str(self.held()))


@dataclass(frozen=True)
class Asked:
    """A running request."""

    request_id: str
    listener: Listener
    running: Running

    async def answer(self) -> Answer:
        async with asyncio.timeout(ANSWER_S):
            await self.listener.ended.wait()
        return self.listener.answer()


async def until(holds: Callable[[], bool], within_s: float, what: str | Callable[[], str]) -> None:
    """Wait for something that nobody announces. Raises `AssertionError` with `what` when it does not come."""
    clock = SystemClock()
    deadline = clock.now() + within_s
    while not holds():
        assert clock.now() < deadline, f"{what if isinstance(what, str) else what()} after {within_s:g} s"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def platform(settings: PlatformSettings) -> AsyncIterator[Platform]:
    """A platform that is up, and taken down again."""
    running = Platform(settings)
    try:
        await running.start()
        yield running
    finally:
        await running.stop()


def _transport(scheme: str) -> Transport:
    return TcpTransport(TcpSettings()) if scheme == "tcp" else ShmTransport(ShmSettings())
