"""A process stops for a while and does not know it."""

import asyncio
from dataclasses import dataclass

from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.core.entropy import Entropy, unit


@dataclass(frozen=True)
class Freeze:
    """Stops the worker's process while its connections stay open; later the process resumes as if nothing had
    happened."""

    at_s: float
    worker: str
    for_s: float

    async def apply(self, injector: FaultInjector) -> None:
        node = injector.machines[self.worker]
        now = node.incarnation
        if now is None or node.frozen:
            return
        epoch = now.service.host.incarnation.epoch
        injector.strike(node.name)
        node.freeze()
        await asyncio.sleep(self.for_s)
        if now is not node.incarnation:
            return
        node.thaw()
        injector.strike(node.name)
        injector.trace.note("", f"{node.name} goes on")
        if self.for_s > injector.deadlines.heartbeat_lost_s:
            await asyncio.sleep(injector.deadlines.heartbeat_every_s)
            if now is node.incarnation and not node.frozen and now.service.host.incarnation.epoch == epoch:
                raise Violation(f"{node.name} was frozen for {self.for_s:.1f} s and is still the same incarnation")


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> Freeze:
    return Freeze(at_s, worker, 0.5 + unit(entropy) * 5.5)
