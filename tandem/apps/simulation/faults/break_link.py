"""A link breaks in the middle of what is sent."""

from dataclasses import dataclass

from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.apps.simulation.names import ROUTER
from tandem.core.entropy import Entropy, below


@dataclass(frozen=True)
class Break:
    """The link breaks with the frame number `frames` from now on: commands when `down`, outputs and state else."""

    at_s: float
    worker: str
    frames: int
    down: bool

    async def apply(self, injector: FaultInjector) -> None:
        ends = (ROUTER, self.worker) if self.down else (self.worker, ROUTER)
        injector.network.break_at(ends, self.frames)


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> Break:
    return Break(at_s, worker, 1 + below(entropy, 40), below(entropy, 2) == 0)
