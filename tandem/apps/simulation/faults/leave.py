"""A worker is asked to leave in good order."""

from dataclasses import dataclass

from tandem.apps.simulation.faults.chances import short_or_long
from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.core.entropy import Entropy, below, unit


@dataclass(frozen=True)
class Leave:
    """The worker is asked to leave within `within_s`, by its router or by a signal, and is replaced when it has."""

    at_s: float
    worker: str
    within_s: float
    by_signal: bool
    back_after_s: float

    async def apply(self, injector: FaultInjector) -> None:
        await injector.drains.drain(self.worker, self.within_s, self.back_after_s, by_signal=self.by_signal)


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> Leave:
    """Bounds are too short for the longest streams half of the time."""
    within_s = 0.1 + unit(entropy) * (1.0 if below(entropy, 2) else 8.0)
    return Leave(at_s, worker, within_s, below(entropy, 2) == 0, short_or_long(entropy))
