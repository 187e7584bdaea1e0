"""The simulated router process: the real fleet and dispatcher, which can die and be replaced by a new one."""

import asyncio
from dataclasses import dataclass

from kv_transfer.tickets import Keyring
from router.dispatch.context import Tools
from router.dispatch.dispatcher import Dispatcher
from router.fleet.fleet import Fleet
from router.generation import Generation, Running
from router.placement import CostModel
from router.settings import RouterSettings
from tandem.core.clock import Clock
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter
from tandem.core.spans import Recorder
from tandem.service.memory_link import MemoryLinks
from tandem.sim.checks import CheckingSink
from tandem.sim.faults import ROUTER
from tandem.sim.loop import Process, VirtualLoop
from tandem.sim.watch import Broken, WatchedIndex


@dataclass(frozen=True)
class RouterGround:
    """What every incarnation of the router stands on. `names` are those its index may hold."""

    loop: VirtualLoop
    clock: Clock
    links: MemoryLinks
    keyring: Keyring
    settings: RouterSettings
    meter: Meter
    recorder: Recorder
    members: tuple[str, ...]
    names: frozenset[bytes]
    broken: Broken


@dataclass(eq=False)
class RouterLife:
    """One incarnation of the router's process."""

    name: str
    fleet: Fleet
    dispatcher: Dispatcher
    index: WatchedIndex
    running: asyncio.Task[None]


class RouterNode:
    """The place where clients find a router."""

    def __init__(self, ground: RouterGround, entropy: SeededEntropy) -> None:
        self._ground = ground
        self._entropy = entropy
        self._incarnations = 0
        self._clients: dict[str, CheckingSink] = {}
        self.life: RouterLife | None = None
        self.deaths: list[tuple[float, str]] = []
        """When a router died, and its name."""

    def start(self) -> None:
        """Begin a new incarnation."""
        assert self.life is None, "the router runs already"
        self._incarnations += 1
        ground, name = self._ground, f"{ROUTER}-{self._incarnations}"
        settings, process = ground.settings, Process(name)
        index = WatchedIndex(ground.names, ground.broken)
        dialer = ground.links.dialer(name)
        fleet = Fleet(dialer, ground.clock, settings.deadlines, index, ground.meter, settings.fleet)
        tools = Tools(
            ground.loop,
            ground.clock,
            self._entropy.fork(name),
            ground.keyring,
            settings,
            CostModel(settings.priors),
            ground.recorder,
            ground.meter,
        )
        dispatcher = Dispatcher(fleet, tools)
        fleet.set_members(ground.members)
        running = ground.loop.create_task(fleet.run(dispatcher), name=name, context=process.context)
        self.life = RouterLife(name, fleet, dispatcher, index, running)

    def kill(self) -> None:
        """The process is gone, and with it the connections of all its clients."""
        life, self.life = self.life, None
        assert life is not None, "the router is dead already"
        self.deaths.append((self._ground.clock.now(), life.name))
        self._ground.links.kill(life.name)
        clients, self._clients = self._clients, {}
        for sink in clients.values():
            if sink.outcome.end == "running":
                sink.disconnected()
        life.running.cancel()
        life.dispatcher.close(TandemError("internal", "this process is dead"))

    def ask(self, generation: Generation, sink: CheckingSink) -> Running:
        """Start a generation for a client whose connection lives no longer than this router."""
        assert self.life is not None, "nobody listens"
        running = self.life.dispatcher.start(generation, sink)
        self._clients[generation.request_id] = sink
        return running

    def can_be_asked(self) -> bool:
        """Whether a load balancer would send requests here."""
        return self.life is not None and bool(self.life.dispatcher.models())

    def check(self) -> None:
        """The router's invariants."""
        if self.life is not None:
            self.life.dispatcher.check()
