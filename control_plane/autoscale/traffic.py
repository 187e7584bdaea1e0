"""Arrival rate of a service, its change, and the average request: learned from totals. Pure.

The rate is smoothed by Holt's method, a level and a slope, with weights that depend on the time between looks. A
forecast looks as far ahead as a start takes; it is never below the level and never above twice the level.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from control_plane.autoscale.model import ServiceLoad

_LEVEL_S: Final = 30.0
_SLOPE_S: Final = 180.0
_SHAPE_S: Final = 600.0
_GROWTH_MAX: Final = 2.0


@dataclass(frozen=True)
class Trend:
    """A rate per second and its change per second; the level is None before the first look."""

    level: float | None = None
    slope: float = 0.0

    def observe(self, rate: float, seconds: float) -> "Trend":
        """The trend after a rate of `rate` per second over the last `seconds`."""
        if self.level is None:
            return Trend(rate, 0.0)
        expected = self.level + self.slope * seconds
        level = max(0.0, expected + _weight(seconds, _LEVEL_S) * (rate - expected))
        change = (level - self.level) / seconds
        return Trend(level, self.slope + _weight(seconds, _SLOPE_S) * (change - self.slope))

    def ahead(self, seconds: float) -> float:
        """The most that is expected within so many seconds."""
        if self.level is None:
            return 0.0
        return min(max(self.level, self.level + self.slope * seconds), self.level * _GROWTH_MAX)


@dataclass(frozen=True)
class Mean:
    """Amount per request over the last minutes."""

    amount: float = 0.0
    requests: float = 0.0

    def observe(self, amount: int, requests: int, seconds: float) -> "Mean":
        """The mean after `amount` in `requests` requests over the last `seconds`."""
        kept = math.exp(-seconds / _SHAPE_S)
        return Mean(self.amount * kept + amount, self.requests * kept + requests)

    @property
    def value(self) -> float | None:
        """None when there was hardly a request."""
        return self.amount / self.requests if self.requests > 0.1 and self.amount > 0 else None


@dataclass(frozen=True)
class Traffic:
    """Traffic of a service as known at time `at`, and the totals up to that time."""

    tokens: Trend = Trend()
    """Prompt tokens that arrive."""
    prompts: Mean = Mean()
    answers: Mean = Mean()
    at: float | None = None
    arrived_tokens: int = 0
    arrived_requests: int = 0
    output_tokens: int = 0
    finished_requests: int = 0

    def observe(self, load: ServiceLoad, now: float) -> "Traffic":
        """Once per look. Looks at the same instant count once, and those where a router is missing not at all: the
        next whole one has everything that came meanwhile."""
        if not load.complete:
            return self
        seen = replace(
            self,
            at=now,
            arrived_tokens=load.arrived_prompt_tokens,
            arrived_requests=load.arrived_requests,
            output_tokens=load.output_tokens,
            finished_requests=load.finished_requests,
        )
        if self.at is None:
            return seen
        seconds = now - self.at
        if seconds <= 0:
            return self
        tokens = max(0, load.arrived_prompt_tokens - self.arrived_tokens)
        requests = max(0, load.arrived_requests - self.arrived_requests)
        outputs = max(0, load.output_tokens - self.output_tokens)
        finished = max(0, load.finished_requests - self.finished_requests)
        return replace(
            seen,
            tokens=self.tokens.observe(tokens / seconds, seconds),
            prompts=self.prompts.observe(tokens, requests, seconds),
            answers=self.answers.observe(outputs, finished, seconds),
        )

    @property
    def prompt(self) -> float | None:
        """Mean prompt tokens of a request."""
        return self.prompts.value

    @property
    def answer(self) -> float | None:
        """Mean tokens of an answer."""
        return self.answers.value

    @property
    def tokens_per_s(self) -> float:
        return self.tokens.level or 0.0


def _weight(seconds: float, constant_s: float) -> float:
    return 1 - math.exp(-seconds / constant_s)
