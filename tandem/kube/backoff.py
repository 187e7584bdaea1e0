"""Back-off: how long to wait after a failure."""

from dataclasses import dataclass

from tandem.core.entropy import Entropy, unit


@dataclass(frozen=True)
class Backoff:
    """Waits that double from `first_s` to `most_s`."""

    first_s: float
    most_s: float

    def wait_s(self, failures: int) -> float:
        """The wait after so many failures in a row, at least one."""
        return min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 60))

    def jittered_s(self, failures: int, entropy: Entropy) -> float:
        """A random wait between half and all of `wait_s`, so that many that fail together do not retry together."""
        return self.wait_s(failures) * (0.5 + unit(entropy) / 2)
