"""A pair of workers between which blocks do not travel for long, while both work well with everybody else."""

import asyncio
from dataclasses import dataclass
from typing import Final

from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.core.entropy import Entropy, below, unit

_FOR_S: Final = (1.0, 12.0)


@dataclass(frozen=True)
class BreakPair:
    """For `for_s` no block gets from `holder` to `receiver`; with `corrupts` every block arrives, but changed."""

    at_s: float
    holder: str
    receiver: str
    for_s: float
    corrupts: bool

    async def apply(self, injector: FaultInjector) -> None:
        """Break it, and heal it again."""
        network, path = injector.network, (self.holder, self.receiver)
        if self.corrupts:
            network.spoil(path)
            await asyncio.sleep(self.for_s)
            network.unspoil(path)
        else:
            network.block(path)
            await asyncio.sleep(self.for_s)
            network.unblock(path)


def draw(at_s: float, workers: tuple[str, ...], entropy: Entropy) -> BreakPair:
    """Two different workers where there are two. As often as not they are no pair, and nothing happens."""
    holder = workers[below(entropy, len(workers))]
    others = tuple(name for name in workers if name[0] != holder[0])
    others = others or tuple(name for name in workers if name != holder) or workers
    receiver = others[below(entropy, len(others))]
    for_s = _FOR_S[0] + unit(entropy) * (_FOR_S[1] - _FOR_S[0])
    return BreakPair(at_s, holder, receiver, for_s, below(entropy, 2) == 0)
