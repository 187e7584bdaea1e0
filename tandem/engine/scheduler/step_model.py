"""A model of step times, learned online from the steps so far. Pure: no clock, no randomness.

The model has two time scales. The shape, which is the relative cost of a running sequence, a prompt token and an
attended position, is a property of model and machine. It is learned by recursive least squares with a long memory;
each step is weighted by its own length, and no coefficient is below zero. The pace follows the present state of the
machine (a neighbour, a clock rate): an exponential mean of measured over predicted time. The margin is how far slow
steps lie above their prediction.
"""

import math
from collections.abc import Sequence
from operator import mul
from typing import Final

import msgspec

from tandem.core.messages import StepFit, StepSums

_SCALES: Final = (1.0, 64.0, 4.0, 1024.0, 1024.0 * 1024.0, 64.0 * 1024.0)
_SIZE: Final = len(_SCALES)
_TOKENS: Final = 3
_FORGET: Final = 0.998
_NEWS_MIN: Final = 0.004
"""Relative variance of a prediction below which its measurement is no news."""
_PRIOR: Final = 100.0
"""Variance of the first guess, in squared targets over a measurement's relative variance (0.01)."""
_OUTLIER: Final = 3.0
_WARM: Final = 16
_DECODE_EVERY: Final = 4
"""Steps without prompts are many and alike: every so many teach the shape, all the pace."""
_PACE_WEIGHT: Final = 0.1
_MARGIN_MAX: Final = 2.0
_QUANTILE_MAX: Final = 3.0
_SLOW: Final = 0.1
"""One chunked step in ten may take longer than the target,"""
_VERY_SLOW: Final = 0.04
_STRETCH: Final = 1.5
"""and one in twenty-five longer than this times the target."""


class StepLoad(msgspec.Struct, frozen=True, gc=False):
    """The load of a step. `prefill_context` sums, over prompt tokens, the positions each attends to.

    `pieces` counts the prompts the tokens belong to; `decode_context` sums the positions of running sequences.
    """

    decode_rows: int
    prefill_tokens: int
    prefill_context: float
    pieces: int = 0
    decode_context: float = 0.0

    def features(self) -> tuple[float, ...]:
        """The linear model's inputs, each about one in a large step."""
        return (
            1.0,
            self.decode_rows / _SCALES[1],
            self.pieces / _SCALES[2],
            self.prefill_tokens / _SCALES[3],
            self.prefill_context / _SCALES[4],
            self.decode_context / _SCALES[5],
        )


class PromptCost(msgspec.Struct, frozen=True, gc=False):
    """Seconds a piece of a prompt adds to a step: for itself, per token, and per token and attended position."""

    piece: float
    token: float
    position: float

    def seconds(self, start: int, count: int) -> float:
        """`count` tokens that follow `start` computed ones."""
        return self.piece + count * (self.token + self.position * (start + count / 2))

    def tokens_within(self, seconds: float, start: float) -> float:
        """The largest count whose cost stays within `seconds`: the root of the quadratic above; 0 when none."""
        left = seconds - self.piece
        if left <= 0:
            return 0.0
        linear = self.token + self.position * start
        return 2 * left / (linear + math.sqrt(linear * linear + 2 * self.position * left))


class Quantile:
    """The value that a `share` of observations exceeds, by stochastic approximation; follows a drift."""

    def __init__(self, share: float, step: float) -> None:
        self._share = share
        self._step = step
        self.value = 1.0

    def observe(self, value: float) -> None:
        """Up by what lies below when exceeded, else down by the share: at rest both balance."""
        self.value += self._step * ((1 - self._share) if value > self.value else -self._share)
        self.value = min(_QUANTILE_MAX, self.value)


class _Sums:
    """Adds up steps; see `StepSums`."""

    __slots__ = ("pieces", "positions", "reads", "rows", "seconds", "steps", "tokens")

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = self.rows = self.reads = self.pieces = self.tokens = self.positions = 0.0

    def add(self, load: StepLoad, seconds: float, steps: int) -> None:
        """Add `steps` steps of this load, each of which took `seconds`."""
        self.steps += steps
        self.seconds += steps * seconds
        self.rows += steps * load.decode_rows
        self.reads += steps * load.decode_context
        self.pieces += steps * load.pieces
        self.tokens += steps * load.prefill_tokens
        self.positions += steps * load.prefill_context

    def told(self) -> StepSums:
        return StepSums(self.steps, self.seconds, self.rows, self.reads, self.pieces, self.tokens, self.positions)


class StepTimeModel:
    """seconds ≈ pace * theta · features. Before anything is measured only prompt tokens have a cost."""

    def __init__(self, seconds_per_token: float) -> None:
        first = seconds_per_token * _SCALES[_TOKENS]
        self._theta = [first if index == _TOKENS else 0.0 for index in range(_SIZE)]
        self._cost = list(self._theta)
        """The coefficients as they are used: none below zero. The least squares keep their own."""
        self._prior = _PRIOR * first * first
        self._spread = [[self._prior if row == column else 0.0 for column in range(_SIZE)] for row in range(_SIZE)]
        self._token_min = first * 1e-3
        self._pace = 1.0
        self._slow, self._very_slow = Quantile(_SLOW, 0.05), Quantile(_VERY_SLOW, 0.15)
        self._plain, self._prompts = _Sums(), _Sums()
        self.observed = 0

    def observe(self, load: StepLoad, seconds: float, steps: int = 1) -> None:
        """Learn from one step. After the first few, a step far above its prediction (a page fault, another
        process) counts as `_OUTLIER` times the prediction only. `steps` alike ones teach as one, and are added up as
        so many."""
        self.observed += 1
        features = load.features()
        shape = self._shape(features)
        if seconds <= 0:
            return
        if self.observed <= _WARM or shape <= 0:
            self._learn_shape(features, seconds, seconds)
            return
        expected = self._pace * shape
        counted = min(seconds, _OUTLIER * expected)
        (self._prompts if load.prefill_tokens else self._plain).add(load, counted, steps)
        if load.decode_rows and load.prefill_tokens:
            self._slow.observe(seconds / expected)
            self._very_slow.observe(seconds / expected)
        if load.prefill_tokens or self.observed % _DECODE_EVERY == 0:
            self._learn_shape(features, counted, expected)
        # Against the shape before it learned: both correct the same error, and the pace comes to rest at one.
        weight = _PACE_WEIGHT if steps == 1 else 1.0 - (1.0 - _PACE_WEIGHT) ** steps
        self._pace += weight * (counted / shape - self._pace)

    @property
    def margin(self) -> float:
        """The factor by which predictions must be multiplied for steps to keep the target, in [1, 2]."""
        return min(_MARGIN_MAX, max(1.0, self._slow.value, self._very_slow.value / _STRETCH))

    def predict(self, load: StepLoad) -> float:
        """Expected seconds."""
        return self._pace * self._shape(load.features())

    def prompt_cost(self) -> PromptCost:
        """The present cost of pieces of prompts."""
        pace, cost = self._pace, self._cost
        return PromptCost(pace * cost[2] / _SCALES[2], pace * cost[3] / _SCALES[3], pace * cost[4] / _SCALES[4])

    def fit(self) -> StepFit | None:
        """The step times that the model has learned, at the present pace; None before the first few steps are
        over."""
        if self.observed <= _WARM:
            return None
        base, sequence, piece, token, position, read = (
            self._pace * cost / scale for cost, scale in zip(self._cost, _SCALES, strict=True)
        )
        return StepFit(base, sequence, read, piece, token, position, self._plain.told(), self._prompts.told())

    def _shape(self, features: tuple[float, ...]) -> float:
        return _dot(self._cost, features)

    def _learn_shape(self, features: tuple[float, ...], seconds: float, size: float) -> None:
        """Take one iteration of recursive least squares, in which errors count relative to `size` seconds.

        Steps that bring no new information neither teach nor forget.
        """
        theta, spread = self._theta, self._spread
        weight = 1.0 / max(size, seconds / 2)
        x = [weight * value for value in features]
        px = [_dot(row, x) for row in spread]
        news = _dot(x, px)
        if news < _NEWS_MIN:
            return
        # A direction that no recent step has excited must not grow beyond the first guess's uncertainty.
        wound_up = any(spread[index][index] > self._prior for index in range(_SIZE))
        forget = 1.0 if wound_up else _FORGET
        gain = 1.0 / (forget + news)
        error = weight * (seconds - _dot(theta, features))
        for index in range(_SIZE):
            scaled = px[index] * gain
            theta[index] += scaled * error
            spread[index] = [(cell - scaled * value) / forget for cell, value in zip(spread[index], px, strict=True)]
        self._cost = [max(0.0, coefficient) for coefficient in theta]
        self._cost[_TOKENS] = max(self._cost[_TOKENS], self._token_min)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    assert len(left) == len(right)
    total: float = sum(map(mul, left, right))
    return total
