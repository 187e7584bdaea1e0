"""What generated traffic is drawn with: ranges, lengths, and a stretch of time that is busier than the rest."""

from dataclasses import dataclass
from math import exp
from statistics import NormalDist

from tandem.core.entropy import Entropy, unit

Range = tuple[float, float]


@dataclass(frozen=True)
class Surge:
    """From `begin_s` to `end_s` there is `factor` times as much traffic as before and afterwards."""

    begin_s: float
    end_s: float
    factor: float


def between(entropy: Entropy, bounds: Range) -> float:
    """Uniform in the logarithm."""
    low, high = bounds
    return float(low * (high / low) ** unit(entropy))


def log_normal(entropy: Entropy, median: float, spread: float) -> float:
    """`spread` is the standard deviation of the logarithm."""
    # The quantile of 0 is infinite.
    share = max(unit(entropy), 1e-12)
    return median * exp(spread * NormalDist().inv_cdf(share))


def length(entropy: Entropy, median: float, spread: float, most: int) -> int:
    """Log-normal, from 1 to `most` tokens."""
    return min(most, max(1, round(log_normal(entropy, median, spread))))
