"""Pulls of which one half gets lost: the question, an answer, the acknowledgement."""

from dataclasses import dataclass

from tandem.apps.simulation.faults.injector import FaultInjector
from tandem.apps.simulation.network import ACKNOWLEDGE, ANSWER, ASK
from tandem.core.entropy import Entropy, below


@dataclass(frozen=True)
class Lose:
    """The next `count` messages of one kind are lost from pulls of a worker's blocks: `ask` to the holder, `answer`
    from the holder and all that follow, or `acknowledge`."""

    at_s: float
    holder: str
    what: str
    count: int

    async def apply(self, injector: FaultInjector) -> None:
        injector.network.lose(self.holder, self.what, self.count)


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> Lose:
    what = (ASK, ANSWER, ACKNOWLEDGE)[below(entropy, 3)]
    return Lose(at_s, worker, what, 1 + below(entropy, 3))
