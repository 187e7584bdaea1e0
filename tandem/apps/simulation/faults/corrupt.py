"""Blocks change on their way."""

from dataclasses import dataclass

from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.core.entropy import Entropy, below


@dataclass(frozen=True)
class Corrupt:
    """From `at_s` on, the next `blocks` blocks pulled from this worker arrive with a flipped byte."""

    at_s: float
    worker: str
    blocks: int

    async def apply(self, injector: FaultInjector) -> None:
        injector.network.corrupt(self.worker, self.blocks)


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> Corrupt:
    return Corrupt(at_s, worker, 1 + below(entropy, 8))
