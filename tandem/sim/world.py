"""One simulated platform under traffic and faults: the real router, workers, links and KV transfer, virtual time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from kv_transfer.memory import MemoryFabric
from kv_transfer.memory_index import MemoryIndex
from kv_transfer.tickets import Keyring, TicketKey
from router.context import Tools
from router.dispatch import Dispatcher
from router.fleet import Fleet
from router.generation import Generation
from router.placement import CostModel
from router.settings import RouterSettings
from tandem.core import simple_tokenizer
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.messages import TokenLogprob
from tandem.core.request import Branch
from tandem.core.spans import NullRecorder, TraceContext
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.reference import reference_tokens
from tandem.service.memory_link import MemoryLinks
from tandem.sim.checks import CheckingSink, Outcome, Truth, Violation
from tandem.sim.counting import CountingMeter
from tandem.sim.faults import Corrupt, Fault, FaultProfile, Kill, draw_faults
from tandem.sim.loop import LoopClock, VirtualLoop, run
from tandem.sim.network import NetworkProfile, SimNetwork
from tandem.sim.node import NodeSettings, WorkerNode
from tandem.sim.traffic import SimRequest, TrafficProfile, draw_traffic


@dataclass(frozen=True)
class WorldSettings:
    """One kind of world. A seed draws its traffic, delays and faults."""

    prefill: int = 2
    decode: int = 2
    model: SimulatedModel = field(default_factory=lambda: SimulatedModel(blocks=160, token_s=0.0001, base_s=0.008))
    scheduler: SchedulerSettings = field(default_factory=lambda: SchedulerSettings(max_batched_tokens=256))
    router: RouterSettings = field(default_factory=RouterSettings)
    network: NetworkProfile = field(default_factory=NetworkProfile)
    traffic: TrafficProfile = field(default_factory=TrafficProfile)
    faults: FaultProfile = field(default_factory=FaultProfile)
    check_every: int = 8
    """Rounds of the event loop between two looks at the invariants."""
    settle_s: float = 120.0
    """Virtual time within which everything must be free again after the last request."""
    timeout_s: float = 300.0


@dataclass(frozen=True)
class Report:
    """How a seed went. `trace` is a digest over every output with its virtual time."""

    seed: int
    outcomes: tuple[Outcome, ...]
    faults: tuple[Fault, ...]
    corrupted: int
    handed_off: int
    """Attempts that went through prefill, transfer and decode."""
    refused: int
    """Pulled blocks that did not verify or did not come, and were computed instead."""
    virtual_s: float
    rounds: int
    trace: str


def simulate(settings: WorldSettings, seed: int) -> Report:
    """Run one seed. Raises `Violation`, `AssertionError`, `Deadlock` or `TimeLimit` when a promise is broken."""
    world: list[World] = []

    def after_step() -> None:
        if world:
            world[0].look()

    async def main(loop: VirtualLoop) -> Report:
        world.append(World(settings, seed, loop))
        return await world[0].live()

    return run(main, limit_s=settings.timeout_s + settings.settle_s + 600.0, after_step=after_step)


class World:
    """The platform of one seed, its clients and its misfortunes."""

    def __init__(self, settings: WorldSettings, seed: int, loop: VirtualLoop) -> None:
        self._settings = settings
        self._seed = seed
        self._loop = loop
        self._clock = LoopClock(loop)
        entropy = SeededEntropy(seed, "world")
        self._network = SimNetwork(settings.network, seed)
        links, fabric = MemoryLinks(self._network), MemoryFabric(self._network)
        keyring = Keyring(TicketKey("sim", entropy.token(32)))
        router = _router_settings(settings.router, seed)
        self._meter = meter = CountingMeter()
        self._fleet = Fleet(links.dialer("router"), self._clock, router.deadlines, MemoryIndex(), meter, router.fleet)
        costs = CostModel(router.priors)
        tools = Tools(loop, self._clock, entropy.fork("router"), keyring, router, costs, NullRecorder(), meter)
        self._dispatcher = Dispatcher(self._fleet, tools)
        node_settings = NodeSettings(settings.model, settings.scheduler, router.deadlines, meter)
        names = [(f"p{index}", "prefill") for index in range(settings.prefill)]
        names += [(f"d{index}", "decode" if settings.prefill else "unified") for index in range(settings.decode)]
        self._nodes = {
            name: WorkerNode(name, role, node_settings, self._clock, entropy, links, fabric, keyring)
            for name, role in names
        }
        self._traffic = draw_traffic(settings.traffic, seed)
        self._faults = draw_faults(settings.faults, seed, tuple(self._nodes))
        self._trace = blake2b(digest_size=16)
        self._outcomes: list[Outcome] = []
        self._rounds = 0
        self._violation: Violation | None = None

    async def live(self) -> Report:
        """Start, serve all traffic through all faults, and wait until nothing is held any more."""
        for node in self._nodes.values():
            node.start()
        self._fleet.set_members(self._nodes)
        fleet = self._loop.create_task(self._fleet.run(self._dispatcher), name="fleet")
        await self._until(lambda: self._dispatcher.ready() is None, 30.0, "the platform is not ready")
        began = self._clock.now()
        async with asyncio.TaskGroup() as group:
            for fault in self._faults:
                group.create_task(self._carry_out(fault, began), name=f"fault {fault}")
            for request in self._traffic:
                group.create_task(self._ask(request, began), name=f"client {request.request_id}")
        await self._until(lambda: not self._held(), self._settings.settle_s, "something is still held")
        self._judge()
        fleet.cancel()
        return Report(
            self._seed,
            tuple(self._outcomes),
            self._faults,
            self._network.corrupted,
            self._meter.sum("tandem_placements_total", "disaggregated"),
            self._meter.refused_blocks(),
            self._clock.now() - began,
            self._loop.steps,
            self._trace.hexdigest(),
        )

    def look(self) -> None:
        """Invariants, after a round of the event loop."""
        self._rounds += 1
        if self._violation is not None:
            raise self._violation
        if self._rounds % self._settings.check_every:
            return
        self._dispatcher.check()
        for node in self._nodes.values():
            node.check()

    # -- clients --

    async def _ask(self, request: SimRequest, began: float) -> None:
        await asyncio.sleep(max(0.0, began + request.arrive_s - self._clock.now()))
        ended = asyncio.Event()
        sink = _TracingSink(request, self._truths(request), self._clock.now, self._trace.update)
        sink.ended = ended.set
        sink.broken = self._note
        self._outcomes.append(sink.outcome)
        try:
            running = self._dispatcher.start(self._generation(request), sink)
        except TandemError as error:
            sink.failed(error)
            return
        patience_s = self._settings.timeout_s + 1.0
        try:
            async with asyncio.timeout(request.cancel_after_s or patience_s):
                await ended.wait()
        except TimeoutError:
            if request.cancel_after_s is None:
                raise Violation(f"{request.request_id} had no end after {patience_s} s") from None
            running.cancel("client went away")
            sink.cancelled()

    def _generation(self, request: SimRequest) -> Generation:
        context = TraceContext(SeededEntropy(self._seed, request.request_id).token(16).hex(), "00" * 7 + "01")
        now = self._clock.now()
        return Generation(
            request_id=request.request_id,
            model=self._settings.model.name,
            tenant="tenant",
            tenant_salt="",
            prompt=request.prompt,
            n=request.n,
            seed=request.seed,
            sampling=request.sampling,
            stopping=request.stopping,
            timeout_s=self._settings.timeout_s,
            received=now,
            received_wall=self._clock.wall(),
            trace=context,
        )

    def _truths(self, request: SimRequest) -> tuple[Truth, ...]:
        truths = []
        for sequence in range(request.n):
            branch = Branch(sequence, request.seed)
            answer = reference_tokens(
                self._settings.model, request.prompt, branch, request.sampling, request.stopping
            )
            spoken = answer.tokens[:-1] if answer.finish == "stop" else answer.tokens
            truths.append(Truth(answer.tokens, simple_tokenizer.decode(spoken), answer.finish))
        return tuple(truths)

    def _note(self, violation: Violation) -> None:
        if self._violation is None:
            self._violation = violation

    # -- faults --

    async def _carry_out(self, fault: Fault, began: float) -> None:
        await asyncio.sleep(max(0.0, began + fault.at_s - self._clock.now()))
        node = self._nodes[fault.worker]
        match fault:
            case Kill() if node.alive:
                node.kill()
                await asyncio.sleep(fault.back_after_s)
                node.start()
            case Corrupt():
                self._network.corrupt(fault.worker, fault.blocks)
            case _:
                pass

    # -- the end --

    def _held(self) -> str | None:
        for node in self._nodes.values():
            if held := node.held():
                return held
        return None

    async def _until(self, holds: Callable[[], bool], within_s: float, what: str) -> None:
        deadline = self._clock.now() + within_s
        while not holds():
            if self._clock.now() > deadline:
                raise Violation(f"{what} after {within_s} s: {self._held() or self._dispatcher.ready()}")
            await asyncio.sleep(0.05)

    def _judge(self) -> None:
        """With workers left to serve, every client that waited has its whole answer."""
        for outcome in self._outcomes:
            if outcome.end not in ("done", "cancelled"):
                raise Violation(f"{outcome.request_id} ended as {outcome.end} {outcome.error}")


def _router_settings(settings: RouterSettings, seed: int) -> RouterSettings:
    """Every second seed hands off whatever can be handed off, so that short prompts travel too."""
    if seed % 2 == 0:
        return settings
    return replace(settings, placement=replace(settings.placement, prefer="disaggregated"))


class _TracingSink(CheckingSink):
    """A checking client whose every observation goes into the world's trace."""

    def __init__(
        self,
        request: SimRequest,
        truths: tuple[Truth, ...],
        now: Callable[[], float],
        trace: Callable[[bytes], None],
    ) -> None:
        super().__init__(request.request_id, truths, now, now())
        self._write = trace
        self._clock_now = now

    def output(
        self,
        sequence: int,
        position: int,
        tokens: tuple[int, ...],
        text: str,
        logprobs: tuple[TokenLogprob, ...],
        finish: str | None,
        stop_reason: str | int | None,
    ) -> None:
        line = f"{self._clock_now():.9f} {self.outcome.request_id} {sequence} {position} {tokens} {text!r}\n"
        self._write(line.encode())
        super().output(sequence, position, tokens, text, logprobs, finish, stop_reason)
