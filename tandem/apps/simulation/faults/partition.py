"""A network partition: nothing gets through, and neither end is notified."""

import asyncio
from dataclasses import dataclass

from tandem.apps.simulation.faults.chances import ends
from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.core.entropy import Entropy, below, unit


@dataclass(frozen=True)
class Partition:
    """A partition: nothing gets through from `source` to `target`, nor, with `both`, the other way. Neither end is
    notified."""

    at_s: float
    source: str
    target: str
    for_s: float
    both: bool

    async def apply(self, injector: FaultInjector) -> None:
        network, paths = injector.network, [(self.source, self.target)]
        if self.both:
            paths.append((self.target, self.source))
        for path in paths:
            network.block(path)
            injector.strike(path[0])
        await asyncio.sleep(self.for_s)
        for path in paths:
            network.unblock(path)
            injector.strike(path[0])
        injector.reconsider()


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> Partition:
    source, target = ends(worker, workers, entropy)
    return Partition(at_s, source, target, 0.2 + unit(entropy) * 5.0, below(entropy, 2) == 0)


def draw_sever(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> Partition:
    """One that lasts longer than heartbeats are waited for."""
    source, target = ends(worker, workers, entropy)
    return Partition(at_s, source, target, 6.5 + unit(entropy) * 3.0, below(entropy, 2) == 0)
