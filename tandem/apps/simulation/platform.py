"""A simulated platform without clients: the real router and workers over an in-memory network, on virtual time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from kv_transfer.tickets import Keyring, TicketKey
from kv_transfer.tiers.settings import TierSettings
from kv_transfer.transport.memory import MemoryNetwork
from router.settings import RouterSettings
from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.counting import CountingMeter
from tandem.apps.simulation.environment import NodeEnvironment
from tandem.apps.simulation.loop import LoopClock, VirtualLoop
from tandem.apps.simulation.names import REDIS
from tandem.apps.simulation.network import NetworkProfile, SimNetwork
from tandem.apps.simulation.node import WorkerNode
from tandem.apps.simulation.redis_node import RedisNode
from tandem.apps.simulation.router_node import RouterEnvironment, RouterNode
from tandem.apps.simulation.routers import Routers
from tandem.apps.simulation.store_node import StoreNode
from tandem.apps.simulation.topology import PlatformTopology
from tandem.apps.simulation.watch import Broken
from tandem.core.entropy import SeededEntropy, unit
from tandem.core.spans import Recorder
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.link.memory_link import MemoryLinks


@dataclass(frozen=True)
class Shape:
    """The composition of a platform. `workers` are (name, role); wall clocks are wrong by at most `skew_s`."""

    workers: tuple[tuple[str, str], ...]
    model: SimulatedModel
    scheduler: SchedulerSettings
    router: RouterSettings
    network: NetworkProfile
    skew_s: float = 0.0
    tiers: TierSettings = field(default_factory=TierSettings)
    fabric: PlatformTopology = field(default_factory=PlatformTopology)
    stream_interval: int = 1


class Platform:
    """The parts of one platform, wired as in production. Only what is passed in at the seams differs."""

    def __init__(
        self,
        shape: Shape,
        seed: int,
        loop: VirtualLoop,
        recorder: Recorder,
        names: frozenset[bytes] | None,
        broken: Broken,
    ) -> None:
        """Build the platform. `names` are the blocks that may ever be in the router's index, None for any. `broken`
        is called with each violation: something that must not pass a seam."""
        self._loop = loop
        self._shape = shape
        self._recorder = recorder
        self._broken = broken
        self._entropy = SeededEntropy(seed, "world")
        self.fabric = shape.fabric
        self.clock = LoopClock(loop)
        self.network = SimNetwork(shape.network, seed)
        self.meter = CountingMeter()
        self.links, self._paths = MemoryLinks(self.network), MemoryNetwork(self.network)
        self._keyring = Keyring(TicketKey("sim", self._entropy.token(32)))
        self.redis = RedisNode(self.network, self._skewed(REDIS)) if shape.fabric.redis.urls else None
        ground = self._ground()
        self.nodes = {
            name: WorkerNode(name, role, ground, self._skewed(name), self._entropy) for name, role in shape.workers
        }
        self.stores = {
            name: StoreNode(name, tuple(self.nodes), ground, self._skewed(name), self._entropy)
            for name in shape.fabric.store_names
        }
        self.routers = Routers([self._router(name, names) for name in shape.fabric.router_names], seed)

    @property
    def router(self) -> RouterNode:
        """The only router of a platform that has one."""
        return self.routers.nodes[0]

    @property
    def machines(self) -> dict[str, WorkerNode | StoreNode]:
        """Everybody who keeps blocks."""
        return {**self.nodes, **self.stores}

    def _ground(self) -> NodeEnvironment:
        shape = self._shape
        return NodeEnvironment(
            self._loop,
            shape.model,
            shape.scheduler,
            shape.router.deadlines,
            self.meter,
            self._recorder,
            self.links,
            self._paths,
            self._keyring,
            self._broken,
            shape.tiers,
            shape.fabric,
            self.redis,
            shape.stream_interval,
        )

    def _router(self, name: str, names: frozenset[bytes] | None) -> RouterNode:
        fabric = self._shape.fabric
        ground = RouterEnvironment(
            self._loop,
            self._skewed(name),
            self.links,
            self._keyring,
            self._shape.router,
            self.meter,
            self._recorder,
            (*self.nodes, *(self.stores if fabric.linked else ())),
            names,
            self._broken,
            self.redis,
            fabric.redis,
        )
        return RouterNode(name, ground, self._entropy.fork(name))

    def _skewed(self, name: str) -> LoopClock:
        return LoopClock(self._loop, (2 * unit(self._entropy.fork(f"skew {name}")) - 1) * self._shape.skew_s)

    def start(self) -> None:
        """Start every process; `ready` says when they serve."""
        if self.redis is not None and not self._shape.fabric.redis_down:
            self.redis.start()
        for node in self.machines.values():
            node.start()
        for router in self.routers:
            router.start()

    def ready(self) -> bool:
        """Whether every router is connected with everybody, and every store serves."""
        return self.routers.ready() and all(store.incarnation is not None for store in self.stores.values())

    def held(self) -> str | None:
        """What a worker or store still holds on behalf of others, in one sentence; None when everything is free."""
        for node in self.machines.values():
            if held := node.held():
                return held
        return None

    async def until(
        self, holds: Callable[[], bool], within_s: float, what: str, why_not: Callable[[], object] | None = None
    ) -> None:
        """Wait for something, in virtual seconds. Raises `Violation` with `why_not` when it does not come in time."""
        deadline = self.clock.now() + within_s
        while not holds():
            if self.clock.now() > deadline:
                why = why_not() if why_not is not None else self.held() or self.routers.problems()
                raise Violation(f"{what} after {within_s} s: {why}")
            await asyncio.sleep(0.05)


def named_workers(prefill: int, decode: int) -> tuple[tuple[str, str], ...]:
    """Names and roles of workers: `p0` … prefill and `d0` … decode; the latter are unified where there are no prefill
    workers."""
    names = [(f"p{index}", "prefill") for index in range(prefill)]
    return (*names, *((f"d{index}", "decode" if prefill else "unified") for index in range(decode)))
