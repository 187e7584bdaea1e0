"""A simulated platform without clients: the real router and workers over an in-memory network, on virtual time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from kv_transfer.memory import MemoryFabric
from kv_transfer.tickets import Keyring, TicketKey
from router.settings import RouterSettings
from tandem.core.entropy import SeededEntropy, unit
from tandem.core.spans import Recorder
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.service.memory_link import MemoryLinks
from tandem.sim.checks import Violation
from tandem.sim.counting import CountingMeter
from tandem.sim.loop import LoopClock, VirtualLoop
from tandem.sim.network import NetworkProfile, SimNetwork
from tandem.sim.node import Ground, WorkerNode
from tandem.sim.router_node import RouterGround, RouterNode
from tandem.sim.watch import Broken


@dataclass(frozen=True)
class Shape:
    """What a platform consists of. `workers` are (name, role); wall clocks are wrong by at most `skew_s`."""

    workers: tuple[tuple[str, str], ...]
    model: SimulatedModel
    scheduler: SchedulerSettings
    router: RouterSettings
    network: NetworkProfile
    skew_s: float = 0.0


class Platform:
    """The parts of one platform, wired as in production. What the seams are given is all that differs."""

    def __init__(
        self,
        shape: Shape,
        seed: int,
        loop: VirtualLoop,
        recorder: Recorder,
        names: frozenset[bytes] | None,
        broken: Broken,
    ) -> None:
        """`names` are the blocks that may ever be in the router's index, None for any. `broken` is told of what
        must not pass a seam."""
        self._loop = loop
        self._shape = shape
        self._recorder = recorder
        self._broken = broken
        self._entropy = SeededEntropy(seed, "world")
        self.clock = LoopClock(loop)
        self.network = SimNetwork(shape.network, seed)
        self.meter = CountingMeter()
        self.links, self._fabric = MemoryLinks(self.network), MemoryFabric(self.network)
        self._keyring = Keyring(TicketKey("sim", self._entropy.token(32)))
        self.nodes = self._make_nodes()
        self.router = RouterNode(self._router_ground(names), self._entropy.fork("router"))

    def _make_nodes(self) -> dict[str, WorkerNode]:
        shape = self._shape
        ground = Ground(
            self._loop,
            shape.model,
            shape.scheduler,
            shape.router.deadlines,
            self.meter,
            self._recorder,
            self.links,
            self._fabric,
            self._keyring,
            self._broken,
        )
        return {
            name: WorkerNode(name, role, ground, self._skewed(name), self._entropy) for name, role in shape.workers
        }

    def _router_ground(self, names: frozenset[bytes] | None) -> RouterGround:
        return RouterGround(
            self._loop,
            self._skewed("router"),
            self.links,
            self._keyring,
            self._shape.router,
            self.meter,
            self._recorder,
            tuple(self.nodes),
            names,
            self._broken,
        )

    def _skewed(self, name: str) -> LoopClock:
        return LoopClock(self._loop, (2 * unit(self._entropy.fork(f"skew {name}")) - 1) * self._shape.skew_s)

    def start(self) -> None:
        """Start every process; `ready` tells when they serve."""
        for node in self.nodes.values():
            node.start()
        self.router.start()

    def ready(self) -> bool:
        """Whether the router is connected with every worker."""
        life = self.router.life
        return life is not None and life.dispatcher.ready() is None and not life.fleet.problems()

    def paired(self) -> bool:
        """Whether the router has proved every pair that it keeps."""
        life = self.router.life
        pairs = [pair for worker in life.fleet.listing() for pair in worker.pairs] if life is not None else []
        return all(pair.state == "closed" for pair in pairs)

    def held(self) -> str | None:
        """What a worker still holds for anybody, in one sentence; None when everything is free."""
        for node in self.nodes.values():
            if held := node.held():
                return held
        return None

    async def until(self, holds: Callable[[], bool], within_s: float, what: str) -> None:
        """Wait for something, in virtual seconds. Raises `Violation` when it does not come in time."""
        deadline = self.clock.now() + within_s
        while not holds():
            if self.clock.now() > deadline:
                life = self.router.life
                raise Violation(f"{what} after {within_s} s: {self.held() or (life and life.fleet.problems())}")
            await asyncio.sleep(0.05)


def named_workers(prefill: int, decode: int) -> tuple[tuple[str, str], ...]:
    """Names and roles: `p0` … and `d0` …, the latter unified where nobody prefills for them."""
    names = [(f"p{index}", "prefill") for index in range(prefill)]
    return (*names, *((f"d{index}", "decode" if prefill else "unified") for index in range(decode)))
