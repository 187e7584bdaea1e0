"""Times of steps that scatter as those of real machines do."""

from math import exp
from statistics import NormalDist

from tandem.core.entropy import SeededEntropy, unit

_NORMAL = NormalDist()


class StepNoise:
    """One worker's factors, log-normal with mean 1: the same for equal seed, worker and number of the step."""

    def __init__(self, deviation: float, seed: int, worker: int) -> None:
        self._deviation = deviation
        self._entropy = SeededEntropy(seed, f"steps/{worker}")

    def factor(self) -> float:
        """By which the next step takes longer than its work says."""
        # The half keeps the argument inside (0, 1), where the inverse is defined.
        drawn = _NORMAL.inv_cdf((unit(self._entropy) * (1 << 52) + 0.5) / ((1 << 52) + 1))
        return exp(self._deviation * (drawn - self._deviation / 2))
