"""A shortage of KV blocks: for a while, a worker cannot use a share of its pool."""

import asyncio
from dataclasses import dataclass

from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.core.entropy import Entropy, unit


@dataclass(frozen=True)
class Shortage:
    """For `for_s` up to `share` of the worker's blocks cannot be allocated: those that are free when the fault
    begins."""

    at_s: float
    worker: str
    share: float
    for_s: float

    async def apply(self, injector: FaultInjector) -> None:
        """Take the blocks, and give them back unless the process is gone."""
        now = injector.nodes[self.worker].incarnation
        if now is None:
            return
        pool = now.engine.scheduler.kv_cache.pool
        taken = pool.allocate(min(pool.available, int(self.share * pool.blocks)))
        for slot in taken:
            pool.quarantine(slot)
        now.engine.quarantine_over(())
        await asyncio.sleep(self.for_s)
        now.engine.quarantine_over(tuple(taken))


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> Shortage:
    return Shortage(at_s, worker, 0.2 + 0.8 * unit(entropy), 0.2 + 2.8 * unit(entropy))
