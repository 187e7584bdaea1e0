"""A way takes many times as long."""

import asyncio
from dataclasses import dataclass

from tandem.apps.simulation.faults.chances import ends
from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.core.entropy import Entropy, unit


@dataclass(frozen=True)
class Slow:
    """Everything between two nodes takes `factor` times as long."""

    at_s: float
    one: str
    other: str
    for_s: float
    factor: float

    async def apply(self, injector: FaultInjector) -> None:
        network, paths = injector.network, ((self.one, self.other), (self.other, self.one))
        for path in paths:
            network.slow(path, self.factor)
        await asyncio.sleep(self.for_s)
        for path in paths:
            network.quicken(path, self.factor)


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> Slow:
    one, other = ends(worker, workers, entropy)
    return Slow(at_s, one, other, 0.5 + unit(entropy) * 5.0, 50.0)
