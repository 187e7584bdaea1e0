"""Cost of reading from a tier, learned from the reads themselves: a latency and a rate."""

from typing import Final

_FORGET: Final = 0.98
"""Weight of the past against one more read: about the last fifty count."""
_PRIOR_WEIGHT: Final = 4.0
_GUESS: Final = 0.01
"""The rate guessed first counts as much as reads whose sizes vary by the root of this, relative to their mean: where
they vary more the reads decide, where they do not it does."""
_RATE_OVER: Final = 100.0
"""Largest factor by which an estimated rate may exceed the rate guessed first, whatever the noise."""


class Speed:
    """Estimates seconds as a linear function of bytes, by least squares with exponential forgetting (Åström and
    Wittenmark's recursive estimator for two parameters, written as running sums). The estimate begins with the given
    values. Reads of one size say nothing about the rate; the given rate then counts, as far as it fits the reads."""

    def __init__(self, bytes_per_s: float, latency_s: float, typical_bytes: int) -> None:
        assert bytes_per_s > 0
        assert typical_bytes > 0
        self._weight = self._n = self._t = self._nn = self._nt = 0.0
        self._guessed_slope = 1.0 / bytes_per_s
        for size in (typical_bytes, 16 * typical_bytes):
            self._add(size, latency_s + size / bytes_per_s, _PRIOR_WEIGHT / 2)

    def observe(self, size: int, seconds: float) -> None:
        """A read of `size` bytes took `seconds`, from asking to the last byte."""
        if size <= 0 or seconds <= 0:
            return
        for name in ("_weight", "_n", "_t", "_nn", "_nt"):
            setattr(self, name, getattr(self, name) * _FORGET)
        self._add(size, seconds, 1.0)

    def _add(self, size: float, seconds: float, weight: float) -> None:
        # Relative errors count alike for small and large reads: each is weighted by the square of its size.
        weight /= size
        self._weight += weight
        self._n += weight * size
        self._t += weight * seconds
        self._nn += weight * size * size
        self._nt += weight * size * seconds

    @property
    def line(self) -> tuple[float, float]:
        """(latency in s, rate in bytes/s)."""
        mean_n, mean_t = self._n / self._weight, self._t / self._weight
        spread = max(0.0, self._nn / self._weight - mean_n * mean_n)
        overall, guess = mean_t / mean_n, _GUESS * mean_n * mean_n
        guessed = min(self._guessed_slope, overall)
        slope = (self._nt / self._weight - mean_n * mean_t + guess * guessed) / (spread + guess)
        slope = min(max(slope, guessed / _RATE_OVER), overall)
        return max(0.0, mean_t - slope * mean_n), 1.0 / slope

    def expected_s(self, size: int) -> float:
        """Expected seconds to read `size` bytes."""
        latency_s, rate = self.line
        return latency_s + size / rate
