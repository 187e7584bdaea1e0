"""A worker loses its way to the others and is started again meanwhile: what was on its way there finds another
incarnation."""

from tandem.apps.simulation.faults.kill import Kill
from tandem.apps.simulation.faults.partition import Partition
from tandem.core.entropy import Entropy, unit


def draw(at_s: float, worker: str, workers: tuple[str, ...], entropy: Entropy) -> tuple[Partition | Kill, ...]:
    for_s = 1.0 + unit(entropy) * 1.0
    lost = [Partition(at_s, worker, other, for_s, True) for other in workers if other != worker]
    return (*lost, Kill(at_s + (0.5 + 0.4 * unit(entropy)) * for_s, worker, 0.01 + unit(entropy) * 0.05 * for_s))
