"""Links break, and both ends learn of it."""

from dataclasses import dataclass

from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.core.entropy import Entropy


@dataclass(frozen=True)
class Cut:
    """The links between router and worker break; both learn of it."""

    at_s: float
    worker: str

    async def apply(self, injector: FaultInjector) -> None:
        injector.cut(self.worker, "a fault cut the link")


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> Cut:
    return Cut(at_s, worker)
