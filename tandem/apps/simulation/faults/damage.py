"""A block changes in its holder's memory."""

from dataclasses import dataclass

from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.core.entropy import Entropy


@dataclass(frozen=True)
class Damage:
    """The next partial block this worker has exported is changed in its memory before it leaves."""

    at_s: float
    worker: str

    async def apply(self, injector: FaultInjector) -> None:
        injector.damaging[self.worker] = injector.damaging.get(self.worker, 0) + 1


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> Damage:
    return Damage(at_s, worker)
