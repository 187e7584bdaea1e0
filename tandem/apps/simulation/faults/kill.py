"""A process dies without a word."""

from dataclasses import dataclass

from tandem.apps.simulation.faults.chances import short_or_long
from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.core.entropy import Entropy


@dataclass(frozen=True)
class Kill:
    """The worker's process dies at `at_s` without a word, and comes back as a new incarnation."""

    at_s: float
    worker: str
    back_after_s: float

    async def apply(self, injector: FaultInjector) -> None:
        await injector.kill(injector.machines[self.worker], self.back_after_s)


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> Kill:
    return Kill(at_s, worker, short_or_long(entropy))
