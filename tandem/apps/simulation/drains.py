"""Asks workers to leave in good order, and holds them to it: within their bound, nothing left, nothing lost."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final

from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.node import WorkerLife, WorkerNode
from tandem.apps.simulation.routers import Routers
from tandem.core.clock import Clock

_ASK_WITHIN_S: Final = 2.0
"""Seconds the routers may take to pass the drain request on, before the worker gets a signal instead."""
_LATE_S: Final = 0.5
"""Seconds by which a worker may leave later than its bound: the work that it cuts off then still has to be freed."""
_FROZEN_S: Final = 40.0
"""Seconds for which other faults may keep a worker from leaving."""


class Drains:
    """The drains of one world. `strike` is called when a worker has left, and `struck` says whether another fault
    befell it since."""

    def __init__(
        self,
        clock: Clock,
        nodes: Mapping[str, WorkerNode],
        routers: Routers,
        strike: Callable[[str], None],
        struck: Callable[[str, float], bool],
    ) -> None:
        self._clock = clock
        self._nodes = nodes
        self._routers = routers
        self._strike = strike
        self._struck = struck
        self._asked: dict[str, float] = {}
        self._followed: dict[WorkerLife, None] = {}
        """Incarnations of workers that a fault has asked to leave, and brings back."""
        self._context = copy_context()
        self._returns: dict[asyncio.Task[None], None] = {}
        for node in nodes.values():
            node.on_left = partial(self._left, node)

    async def drain(self, worker: str, within_s: float, back_after_s: float, *, by_signal: bool) -> None:
        """Drain the worker, by its router or by a signal, and start a new incarnation of it when it has left."""
        node = self._nodes[worker]
        now = node.incarnation
        if now is None or now.service.host.drain_state.left_s is not None:
            return
        began = self._clock.now()
        self._followed[now] = None
        await self._ask(worker, within_s, now, by_signal)
        if not await _before(now.ended, within_s + _FROZEN_S) and node.incarnation is now:
            raise Violation(f"{node.name} was to leave within {within_s:.1f} s and is still there")
        if node.incarnation is not now or not now.left:
            return
        self._check(node, now, within_s, began)
        self._strike(node.name)
        node.kill()
        await asyncio.sleep(back_after_s)
        node.start()
        self._strike(node.name)

    def _left(self, node: WorkerNode, now: WorkerLife) -> None:
        """A drain holds for an address: it may reach the successor of the one that it was meant for."""
        if now not in self._followed:
            task = asyncio.get_running_loop().create_task(
                self._replace(node, now), name=f"return of {node.name}", context=self._context
            )
            self._returns[task] = None
            task.add_done_callback(self._returns.pop)

    async def _replace(self, node: WorkerNode, now: WorkerLife) -> None:
        if node.incarnation is now:
            self._strike(node.name)
            node.kill()
            node.start()

    async def _ask(self, worker: str, within_s: float, now: WorkerLife, by_signal: bool) -> None:
        """Ask a worker to drain through the routers, as a scale-down does; by a signal when that request does not
        arrive."""
        drain_state = now.service.host.drain_state
        if not by_signal:
            self._tell_router({**self._asked, worker: within_s})
            asked = await _before(drain_state.asked, _ASK_WITHIN_S)
            self._tell_router({name: bound for name, bound in self._asked.items() if name != worker})
            if asked:
                return
        now.service.host.start_drain(within_s)

    def _tell_router(self, asked: dict[str, float]) -> None:
        self._asked = asked
        for router in self._routers:
            if router.life is not None and router.frozen_since is None:
                router.life.fleet.set_drains(asked)

    def _check(self, node: WorkerNode, now: WorkerLife, within_s: float, began: float) -> None:
        took_s = self._clock.now() - began
        if took_s > _ASK_WITHIN_S + within_s + _LATE_S and not self._struck(node.name, began):
            raise Violation(f"{node.name} took {took_s:.1f} s to leave within {within_s:.1f} s")
        if (attempts := now.service.host.attempts) and not now.service.host.drain_state.farewell.cut:
            raise Violation(f"{node.name} left with {attempts} attempts")


async def _before(event: asyncio.Event, within_s: float) -> bool:
    """Whether the event comes in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
    return event.is_set()
