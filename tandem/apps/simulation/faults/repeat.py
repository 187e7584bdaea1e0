"""Messages come twice."""

from dataclasses import dataclass

from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.apps.simulation.names import ROUTER
from tandem.core.entropy import Entropy, below


@dataclass(frozen=True)
class Repeat:
    """The next `frames` frames of the link with this worker arrive twice: commands when `down`, outputs and state
    else."""

    at_s: float
    worker: str
    frames: int
    down: bool

    async def apply(self, injector: FaultInjector) -> None:
        ends = (ROUTER, self.worker) if self.down else (self.worker, ROUTER)
        injector.network.repeat(ends, self.frames)


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> Repeat:
    return Repeat(at_s, worker, 20 + below(entropy, 200), below(entropy, 2) == 0)
