"""Speeds of a pool's workers, learned from their reports: prefill speed, decode steps by sequences, cold starts.

Workers that have been ready for less than a minute are left out: their caches, graphs and clocks are cold, and their
reports would ask for more workers, which start cold again. Pure.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from control_plane.autoscale.model import COLD_START_S, DecodeFit, PoolSpeed

WARM_UP_S: Final = 60.0
_FORGET_S: Final = 900.0
_SLOWER_S: Final = 900.0
"""A slower prefill is believed over so long, a faster one at once: with little to do steps look slow."""
_SPREAD_MIN: Final = 0.15
"""Relative standard deviation of sequences per step below which the steps do not determine a slope."""
_WEIGHT_MIN: Final = 5.0
_STARTS: Final = 5
_START_MAX_S: Final = 3600.0


@dataclass(frozen=True)
class WorkerSample:
    """The last report of a worker. `ready_for_s` is how long it has been ready; speeds are 0 when it has none yet."""

    pool: str
    ready_for_s: float
    running: int = 0
    step_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    prefill_token_s: float = 0.0
    prefill_position_s: float = 0.0


@dataclass(frozen=True)
class Steps:
    """Decayed moments of (sequences, seconds) of decode steps."""

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    seen: float = 0.0

    def decayed(self, seconds: float) -> "Steps":
        kept = math.exp(-seconds / _FORGET_S)
        moments = (self.weight * kept, self.x * kept, self.y * kept, self.xx * kept, self.xy * kept)
        return Steps(*moments, self.seen)

    def with_step(self, sequences: float, step_s: float) -> "Steps":
        return Steps(
            self.weight + 1,
            self.x + sequences,
            self.y + step_s,
            self.xx + sequences * sequences,
            self.xy + sequences * step_s,
            max(self.seen, sequences),
        )

    @property
    def fit(self) -> DecodeFit | None:
        """A line fitted through the steps. Without spread, or where the fit would make more sequences cheaper, it is
        a line through zero: that attributes the whole step to the sequences and so errs towards too many workers
        rather than too few."""
        if self.weight < _WEIGHT_MIN or self.x <= 0:
            return None
        x, y = self.x / self.weight, self.y / self.weight
        variance = max(0.0, self.xx / self.weight - x * x)
        through_zero = DecodeFit(0.0, y / x, self.seen)
        if math.sqrt(variance) < _SPREAD_MIN * x:
            return through_zero
        slope = (self.xy / self.weight - x * y) / variance
        base = y - slope * x
        return DecodeFit(base, slope, self.seen) if slope > 0 and base >= 0 else through_zero


@dataclass(frozen=True)
class Measured:
    """Measurements of one pool. `token_s` is None and `position_s` is 0 until a warm worker has reported."""

    token_s: float | None = None
    position_s: float = 0.0
    steps: Steps = field(default_factory=Steps)
    starts_s: tuple[float, ...] = ()
    """The latest cold starts."""
    at: float | None = None

    @property
    def speed(self) -> PoolSpeed:
        """The pool's speed from its measurements. Of the latest cold starts the second slowest counts: a late worker
        breaks the SLO and an early one costs little, but a single slow start may have waited for a node."""
        slowest = sorted(self.starts_s)[-2:]
        return PoolSpeed(self.token_s, self.position_s, self.steps.fit, slowest[0] if slowest else COLD_START_S)

    def started(self, seconds: float) -> "Measured":
        """A pod was ready so long after it was made. Hours are no start: it was unready in between."""
        if not 0 <= seconds <= _START_MAX_S:
            return self
        return replace(self, starts_s=(*self.starts_s, seconds)[-_STARTS:])

    def learn(self, samples: Iterable[WorkerSample], now: float) -> "Measured":
        """Update the measurements with samples of the pool's workers, once per look."""
        since_s = 0.0 if self.at is None else max(0.0, now - self.at)
        warm = [sample for sample in samples if sample.ready_for_s >= WARM_UP_S]
        steps = self.steps.decayed(since_s)
        for sample in warm:
            if sample.running > 0 and sample.step_s > 0:
                steps = steps.with_step(sample.running, sample.step_s)
        token_s, position_s = self._prefill(warm, since_s)
        return replace(self, token_s=token_s, position_s=position_s, steps=steps, at=now)

    def _prefill(self, warm: list[WorkerSample], since_s: float) -> tuple[float | None, float]:
        fitted = [(each.prefill_token_s, each.prefill_position_s) for each in warm if each.prefill_token_s > 0]
        if fitted:
            return median(token for token, _ in fitted), median(position for _, position in fitted)
        plain = [1 / each.prefill_tokens_per_s for each in warm if each.prefill_tokens_per_s > 0]
        if not plain:
            return self.token_s, self.position_s
        token_s = median(plain)
        if self.token_s is None or token_s <= self.token_s:
            return token_s, 0.0
        return self.token_s + (1 - math.exp(-since_s / _SLOWER_S)) * (token_s - self.token_s), 0.0


def speeds(measured: Mapping[str, Measured]) -> dict[str, PoolSpeed]:
    """The speed of each pool, as `decide` reads it."""
    return {pool: each.speed for pool, each in measured.items()}
