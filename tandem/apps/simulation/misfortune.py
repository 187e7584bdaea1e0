"""Carries out the faults of a world, heals them again, and remembers which workers were in trouble when."""

import asyncio
from contextlib import suppress

from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.drains import Drains
from tandem.apps.simulation.faults import (
    ROUTER,
    Break,
    Corrupt,
    Cut,
    Damage,
    EngineError,
    Fault,
    Freeze,
    Kill,
    Leave,
    Partition,
    RestartRouter,
    Slow,
)
from tandem.apps.simulation.loop import VirtualLoop
from tandem.apps.simulation.message_faults import Lose, Repeat, lose, repeat
from tandem.apps.simulation.node import WorkerNode
from tandem.apps.simulation.pair_faults import BreakPair, break_pair
from tandem.apps.simulation.platform import Platform
from tandem.apps.simulation.redis_faults import RedisFault, break_redis
from tandem.apps.simulation.router_faults import FreezeRouter, freeze_router
from tandem.apps.simulation.router_node import RouterNode
from tandem.apps.simulation.shortage import Shortage, withhold
from tandem.apps.simulation.store_node import StoreNode
from tandem.apps.simulation.tier_faults import TierFault, break_tier
from tandem.apps.simulation.trace import Trace
from tandem.core.deadlines import Deadlines

Machine = WorkerNode | StoreNode

_NEXT_STEP_S = 2.0
"""How long a fault waits for the step it is to strike."""


class Misfortune:
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
        self._deadlines = deadlines
        self._network = network = platform.network
        self._links = platform.links
        self._nodes = platform.nodes
        self._machines = platform.machines
        self._stores = tuple(platform.stores)
        self._routers = platform.routers
        self._redis = platform.redis
        self._trace = trace
        self.damaging: dict[str, int] = {}
        """How many partial blocks of which worker are to be damaged as soon as there are any: `tick` does it."""
        self.rotten = 0
        """Copies below a worker's pool that were changed so far."""
        self.damaged = 0
        """Partial blocks that were changed in their holder's memory so far."""
        self.struck: list[tuple[float, str]] = []
        """When something happened to the work of which node."""
        network.broken = self._broken
        network.lost_one = lambda holder: self.struck.append((clock.now(), f"a pull from {holder}"))
        self._drains = Drains(clock, self._nodes, self._routers, self._strike, self._struck)

    async def carry_out(self, fault: Fault, began: float) -> None:
        """Wait for the fault's time, do it, and undo what does not undo itself."""
        await asyncio.sleep(max(0.0, began + fault.at_s - self._clock.now()))
        self._trace.note("", str(fault))
        match fault:
            case Kill():
                await self._kill(self._machines[fault.worker], fault.back_after_s)
            case EngineError():
                await self._fail_engine(self._nodes[fault.worker], fault.back_after_s)
            case Freeze():
                await self._freeze(self._machines[fault.worker], fault.for_s)
            case Corrupt():
                self._network.corrupt(fault.worker, fault.blocks)
            case Damage():
                self.damaging[fault.worker] = self.damaging.get(fault.worker, 0) + 1
            case Cut():
                self._cut(fault.worker, "a fault cut the link")
            case Break():
                ends = (ROUTER, fault.worker) if fault.down else (fault.worker, ROUTER)
                self._network.break_at(ends, fault.frames)
            case Partition():
                await self._partition(fault)
            case Slow():
                await self._slow(fault)
            case RestartRouter():
                await self._restart_router(self._routers.named(fault.router), fault.back_after_s)
            case Leave():
                await self._drains.carry_out(fault)
            case BreakPair():
                await break_pair(fault, self._network)
            case Repeat():
                repeat(fault, self._network)
            case Lose():
                lose(fault, self._network)
            case FreezeRouter():
                await freeze_router(fault, self._routers.named(fault.router))
            case TierFault():
                self.rotten += await break_tier(fault, self._machines)
            case RedisFault():
                await break_redis(fault, self._redis)
            case Shortage():
                await withhold(fault, self._nodes[fault.worker])

    def tick(self) -> None:
        """Damage what was to be damaged as soon as it is there."""
        for name, count in tuple(self.damaging.items()):
            if self._nodes[name].damage_tail():
                self.damaged += 1
                self._trace.note("", f"damaged a partial block of {name}")
                self.damaging[name] = count - 1
                if count == 1:
                    del self.damaging[name]

    def calm_s(self) -> float:
        """For how long nothing has been broken, stopped, lost or slow."""
        if self._network.disturbed or self._routers.frozen:
            return 0.0
        return self._clock.now() - self.struck[-1][0] if self.struck else float("inf")

    def calm(self) -> None:
        """Nothing that was prepared happens any more."""
        self.damaging.clear()
        self._network.forgive()

    # -- workers --

    async def _kill(self, node: Machine, back_after_s: float) -> None:
        if node.alive:
            self._strike(node.name)
            node.kill()
            await self._come_back(node, back_after_s)

    async def _come_back(self, node: Machine, after_s: float) -> None:
        await asyncio.sleep(after_s)
        node.start()
        self._strike(node.name)

    async def _fail_engine(self, node: WorkerNode, back_after_s: float) -> None:
        """Wait for the worker's next step; its process ends with it, unless something else ended it before."""
        now = node.incarnation
        if now is None or now.runner.fail_next:
            return
        now.runner.fail_next = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_NEXT_STEP_S):
                await now.ended.wait()
        if now is not node.incarnation:
            return
        if now.broken_down:
            self._trace.note("", f"the engine of {node.name} failed")
            await self._kill(node, back_after_s)
        else:
            now.runner.fail_next = False

    async def _freeze(self, node: Machine, for_s: float) -> None:
        now = node.incarnation
        if now is None or node.frozen:
            return
        epoch = now.service.host.incarnation.epoch
        self._strike(node.name)
        node.freeze()
        await asyncio.sleep(for_s)
        if now is not node.incarnation:
            return
        node.thaw()
        self._strike(node.name)
        self._trace.note("", f"{node.name} goes on")
        if for_s > self._deadlines.heartbeat_lost_s:
            await asyncio.sleep(self._deadlines.heartbeat_every_s)
            if now is node.incarnation and not node.frozen and now.service.host.incarnation.epoch == epoch:
                raise Violation(f"{node.name} was frozen for {for_s:.1f} s and is still the same incarnation")

    # -- network --

    def _cut(self, worker: str, reason: str) -> None:
        self._strike(worker)
        for other in (*(life.name for life in self._routers.lives()), *self._machines):
            if other in self._stores or worker in self._stores or other not in self._machines:
                self._links.cut(other, worker, reason)

    def _broken(self, source: str, target: str) -> None:
        self._trace.note("", f"the link breaks with a frame from {source} to {target}")
        worker = target if source.startswith(ROUTER) else source
        self._loop.call_soon(self._cut, worker, "the connection broke")

    async def _partition(self, fault: Partition) -> None:
        paths = [(fault.source, fault.target)]
        if fault.both:
            paths.append((fault.target, fault.source))
        for path in paths:
            self._network.block(path)
            self._strike(path[0])
        await asyncio.sleep(fault.for_s)
        for path in paths:
            self._network.unblock(path)
            self._strike(path[0])
        self._links.reconsider()
        if self._redis is not None:
            self._redis.reconsider()

    async def _slow(self, fault: Slow) -> None:
        paths = ((fault.one, fault.other), (fault.other, fault.one))
        for path in paths:
            self._network.slow(path, fault.factor)
        await asyncio.sleep(fault.for_s)
        for path in paths:
            self._network.quicken(path, fault.factor)

    # -- router --

    async def _restart_router(self, router: RouterNode, back_after_s: float) -> None:
        if router.life is not None:
            self._strike(router.name)
            router.kill()
            await asyncio.sleep(back_after_s)
            router.start()

    def _strike(self, node: str) -> None:
        self.struck.append((self._clock.now(), node))

    def _struck(self, node: str, since: float) -> bool:
        return any(name == node and at >= since for at, name in self.struck)
