"""Carries out the faults of a world, heals them again, and remembers which workers were in trouble when."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from tandem.core.clock import Clock
from tandem.core.deadlines import Deadlines
from tandem.service.memory_link import MemoryLinks
from tandem.sim.checks import Violation
from tandem.sim.drains import Drains
from tandem.sim.faults import (
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
from tandem.sim.loop import VirtualLoop
from tandem.sim.message_faults import Lose, Repeat, lose, repeat
from tandem.sim.network import SimNetwork
from tandem.sim.node import WorkerNode
from tandem.sim.pair_faults import BreakPair, break_pair
from tandem.sim.router_faults import FreezeRouter, freeze_router
from tandem.sim.router_node import RouterNode
from tandem.sim.shortage import Shortage, withhold
from tandem.sim.trace import Trace

_NEXT_STEP_S = 2.0
"""How long a fault waits for the step it is to strike."""


class Misfortune:
    """One per world. `tick` is called after every round of the loop, the rest runs as tasks."""

    def __init__(
        self,
        loop: VirtualLoop,
        clock: Clock,
        deadlines: Deadlines,
        network: SimNetwork,
        links: MemoryLinks,
        nodes: Mapping[str, WorkerNode],
        router: RouterNode,
        trace: Trace,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._deadlines = deadlines
        self._network = network
        self._links = links
        self._nodes = nodes
        self._router = router
        self._trace = trace
        self._damaging: dict[str, int] = {}
        self.damaged = 0
        """Partial blocks that were changed in their holder's memory so far."""
        self.struck: list[tuple[float, str]] = []
        """When something happened to the work of which node."""
        network.broken = self._broken
        self._drains = Drains(clock, nodes, router, self._strike, self._struck)

    async def carry_out(self, fault: Fault, began: float) -> None:
        """Wait for the fault's time, do it, and undo what does not undo itself."""
        await asyncio.sleep(max(0.0, began + fault.at_s - self._clock.now()))
        self._trace.note("", str(fault))
        match fault:
            case Kill():
                await self._kill(self._nodes[fault.worker], fault.back_after_s)
            case EngineError():
                await self._fail_engine(self._nodes[fault.worker], fault.back_after_s)
            case Freeze():
                await self._freeze(self._nodes[fault.worker], fault.for_s)
            case Corrupt():
                self._network.corrupt(fault.worker, fault.blocks)
            case Damage():
                self._damaging[fault.worker] = self._damaging.get(fault.worker, 0) + 1
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
                await self._restart_router(fault.back_after_s)
            case Leave():
                await self._drains.carry_out(fault)
            case BreakPair():
                await break_pair(fault, self._network)
            case Repeat():
                repeat(fault, self._network)
            case Lose():
                lose(fault, self._network)
            case FreezeRouter():
                await freeze_router(fault, self._router)
            case Shortage():
                await withhold(fault, self._nodes[fault.worker])

    def tick(self) -> None:
        """Damage what was to be damaged as soon as it is there."""
        if not self._damaging:
            return
        for name, count in tuple(self._damaging.items()):
            if self._nodes[name].damage_tail():
                self.damaged += 1
                self._trace.note("", f"damaged a partial block of {name}")
                self._damaging[name] = count - 1
                if count == 1:
                    del self._damaging[name]

    def calm_s(self) -> float:
        """For how long nothing has been broken, stopped, lost or slow."""
        if self._network.disturbed or self._router.frozen_since is not None:
            return 0.0
        return self._clock.now() - self.struck[-1][0] if self.struck else float("inf")

    def calm(self) -> None:
        """Nothing that was prepared happens any more."""
        self._damaging.clear()
        self._network.forgive()

    # -- workers --

    async def _kill(self, node: WorkerNode, back_after_s: float) -> None:
        if node.alive:
            self._strike(node.name)
            node.kill()
            await self._come_back(node, back_after_s)

    async def _come_back(self, node: WorkerNode, after_s: float) -> None:
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

    async def _freeze(self, node: WorkerNode, for_s: float) -> None:
        now = node.incarnation
        if now is None or node.frozen:
            return
        epoch = now.engine.epoch
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
            if now is node.incarnation and not node.frozen and now.engine.epoch == epoch:
                raise Violation(f"{node.name} was frozen for {for_s:.1f} s and is still the same incarnation")

    # -- network --

    def _cut(self, worker: str, reason: str) -> None:
        self._strike(worker)
        if self._router.life is not None:
            self._links.cut(self._router.life.name, worker, reason)

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

    async def _slow(self, fault: Slow) -> None:
        paths = ((fault.one, fault.other), (fault.other, fault.one))
        for path in paths:
            self._network.slow(path, fault.factor)
        await asyncio.sleep(fault.for_s)
        for path in paths:
            self._network.quicken(path, fault.factor)

    # -- router --

    async def _restart_router(self, back_after_s: float) -> None:
        if self._router.life is not None:
            self._strike(ROUTER)
            self._router.kill()
            await asyncio.sleep(back_after_s)
            self._router.start()

    def _strike(self, node: str) -> None:
        self.struck.append((self._clock.now(), node))

    def _struck(self, node: str, since: float) -> bool:
        return any(name == node and at >= since for at, name in self.struck)
