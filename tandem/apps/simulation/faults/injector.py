"""Carries out the faults of a world, heals them again, and remembers which nodes were in trouble when."""

import asyncio
from typing import Protocol

from tandem.apps.simulation.drains import Drains
from tandem.apps.simulation.loop import VirtualLoop
from tandem.apps.simulation.names import ROUTER
from tandem.apps.simulation.node import WorkerNode
from tandem.apps.simulation.platform import Platform
from tandem.apps.simulation.store_node import StoreNode
from tandem.apps.simulation.trace import Trace
from tandem.core.deadlines import Deadlines

Machine = WorkerNode | StoreNode


class Fault(Protocol):
    """A fault that strikes a world at `at_s`, in seconds from the start of its requests. A value: its text is in the
    trace."""

    @property
    def at_s(self) -> float: ...

    async def apply(self, injector: "FaultInjector") -> None:
        """Do it, and undo what does not undo itself."""
        ...


class FaultInjector:
    """One per world. `tick` is called after every round of the loop while something waits for it, the rest
    runs as tasks."""

    def __init__(
        self,
        loop: VirtualLoop,
        deadlines: Deadlines,
        platform: Platform,
        trace: Trace,
    ) -> None:
        self._loop = loop
        self._clock = clock = platform.clock
        self.deadlines = deadlines
        self.network = network = platform.network
        self._links = platform.links
        self.nodes = platform.nodes
        self.machines = platform.machines
        self._stores = tuple(platform.stores)
        self.routers = platform.routers
        self.redis = platform.redis
        self.trace = trace
        self.damaging: dict[str, int] = {}
        """By worker, the number of partial blocks to damage as soon as there are any; `tick` damages them."""
        self.rotten = 0
        """Copies below a worker's pool that were changed so far."""
        self.damaged = 0
        """Partial blocks that were changed in their holder's memory so far."""
        self.struck: list[tuple[float, str]] = []
        """Time and node of every event that affected a node's work."""
        network.broken = self._broken
        network.lost_one = lambda holder: self.struck.append((clock.now(), f"a pull from {holder}"))
        self.drains = Drains(clock, self.nodes, self.routers, self.strike, self._struck)

    async def carry_out(self, fault: Fault, began: float) -> None:
        """Wait for the fault's time, do it, and undo what does not undo itself."""
        await asyncio.sleep(max(0.0, began + fault.at_s - self._clock.now()))
        self.trace.note("", str(fault))
        await fault.apply(self)

    def tick(self) -> None:
        """Damage what was to be damaged as soon as it is there."""
        for name, count in tuple(self.damaging.items()):
            if self.nodes[name].damage_tail():
                self.damaged += 1
                self.trace.note("", f"damaged a partial block of {name}")
                self.damaging[name] = count - 1
                if count == 1:
                    del self.damaging[name]

    def calm_s(self) -> float:
        """Seconds for which nothing has been broken, stopped, lost or slow."""
        if self.network.disturbed or self.routers.frozen:
            return 0.0
        return self._clock.now() - self.struck[-1][0] if self.struck else float("inf")

    def calm(self) -> None:
        """Nothing that was prepared happens any more."""
        self.damaging.clear()
        self.network.forgive()

    # -- what several kinds of faults do --

    async def kill(self, node: Machine, back_after_s: float) -> None:
        """Kill the process of a node that is alive, and start it again after `back_after_s`."""
        if node.alive:
            self.strike(node.name)
            node.kill()
            await asyncio.sleep(back_after_s)
            node.start()
            self.strike(node.name)

    def cut(self, worker: str, reason: str) -> None:
        self.strike(worker)
        for other in (*(life.name for life in self.routers.lives()), *self.machines):
            if other in self._stores or worker in self._stores or other not in self.machines:
                self._links.cut(other, worker, reason)

    def _broken(self, source: str, target: str) -> None:
        self.trace.note("", f"the link breaks with a frame from {source} to {target}")
        worker = target if source.startswith(ROUTER) else source
        self._loop.call_soon(self.cut, worker, "the connection broke")

    def reconsider(self) -> None:
        """Let connections that were kept from being made be tried again."""
        self._links.reconsider()
        if self.redis is not None:
            self.redis.reconsider()

    def strike(self, node: str) -> None:
        self.struck.append((self._clock.now(), node))

    def _struck(self, node: str, since: float) -> bool:
        return any(name == node and at >= since for at, name in self.struck)
