"""Finding the goodput knee: the highest rate at which enough requests still meet their objectives."""

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Trial:
    """One replay at a rate (requests a second), and the share of its requests that met the objectives."""

    rate: float
    attained: float
    goodput_per_s: float


@dataclass
class CapacitySearch:
    """Doubles the rate until a trial fails (or halves it until one passes), then bisects between the two.

    The search ends when the bracket is within `tolerance` of its lower end, when `rate_max` passed, or after
    `trials_max` trials. `rate_max` is the rate above which the workload cannot fill a trial: a shorter trial would be
    over before a queue could grow, and pass at any rate. A pure step: `next_rate` gives the rate to try, `record`
    takes the result.
    """

    first_rate: float
    share: float = 0.9
    tolerance: float = 0.1
    trials_max: int = 12
    rate_min: float = 0.01
    rate_max: float = math.inf
    trials: list[Trial] = field(default_factory=list)

    @property
    def passed(self) -> float | None:
        """The highest rate that passed below every rate that failed."""
        failed = self.failed
        good = [
            trial.rate for trial in self.trials if self._passes(trial) and (failed is None or trial.rate < failed)
        ]
        return max(good, default=None)

    @property
    def failed(self) -> float | None:
        """The lowest rate that failed."""
        return min((trial.rate for trial in self.trials if not self._passes(trial)), default=None)

    def next_rate(self) -> float | None:
        """The rate to try next, or None when the search is over."""
        if len(self.trials) >= self.trials_max:
            return None
        passed, failed = self.passed, self.failed
        if not self.trials:
            return min(self.first_rate, self.rate_max)
        if failed is None:
            assert passed is not None
            return min(passed * 2, self.rate_max) if passed < self.rate_max else None
        if passed is None:
            return failed / 2 if failed / 2 >= self.rate_min else None
        if failed - passed <= self.tolerance * passed:
            return None
        return (passed + failed) / 2

    def record(self, trial: Trial) -> None:
        self.trials.append(trial)

    def verdict(self) -> str:
        """One sentence with the outcome."""
        passed, failed = self.passed, self.failed
        if passed is None and failed is None:
            return "capacity: unknown; no trial has ended"
        if passed is None:
            return f"capacity: below {failed:.3g} requests/s; no rate met the objectives"
        if failed is None and passed >= self.rate_max:
            return f"capacity: at least {passed:.3g} requests/s; the workload is too short for trials at higher rates"
        if failed is None:
            return f"capacity: at least {passed:.3g} requests/s; no rate failed in {len(self.trials)} trials"
        return f"capacity: {passed:.3g} requests/s ({failed:.3g} fails)"

    def _passes(self, trial: Trial) -> bool:
        return trial.attained >= self.share
