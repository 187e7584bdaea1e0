"""How many prompt tokens a step may take so that running sequences keep their inter-token target.

An online model of step time, fitted by recursive least squares with forgetting over
[1, decode rows, prefill tokens, prefill tokens * mean context], chooses the largest chunk whose predicted step
stays below the target. Nothing decodes: the chunk is bounded by `max_batched_tokens` alone.
"""

from dataclasses import dataclass
from typing import Final

from tandem.engine.settings import SchedulerSettings

_ROWS: Final = 64.0
_TOKENS: Final = 1024.0
_CONTEXT: Final = 1024.0 * 1024.0
_FORGET: Final = 0.98
_SPREAD_MAX: Final = 1e4
_OUTLIER: Final = 4.0
_WARM: Final = 8

Vector = tuple[float, float, float, float]


@dataclass(frozen=True)
class StepLoad:
    """What a step had to do. `prefill_context` sums, over prompt tokens, the positions each attends to."""

    decode_rows: int
    prefill_tokens: int
    prefill_context: float


class StepTimeModel:
    """seconds ≈ theta · [1, rows, tokens, tokens*context], each feature scaled to about one."""

    def __init__(self, seconds_per_token: float) -> None:
        self._theta = [0.0, 0.0, seconds_per_token * _TOKENS, 0.0]
        self._spread = [[1.0 if row == column else 0.0 for column in range(4)] for row in range(4)]
        self.observed = 0

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from one step. After the first few, a step far above its prediction (a page fault, another
        process) counts as `_OUTLIER` times the prediction only."""
        x = _features(load)
        predicted = self.predict(load)
        if self.observed >= _WARM and predicted > 0:
            seconds = min(seconds, _OUTLIER * predicted)
        spread = self._spread
        px = [row[0] * x[0] + row[1] * x[1] + row[2] * x[2] + row[3] * x[3] for row in spread]
        # Directions that no recent step has excited must not grow for ever (covariance wind-up).
        forget = _FORGET if spread[0][0] + spread[1][1] + spread[2][2] + spread[3][3] < _SPREAD_MAX else 1.0
        gain_scale = 1.0 / (forget + x[0] * px[0] + x[1] * px[1] + x[2] * px[2] + x[3] * px[3])
        theta = self._theta
        raw = theta[0] + theta[1] * x[1] + theta[2] * x[2] + theta[3] * x[3]
        error = seconds - raw
        for i in range(4):
            gain = px[i] * gain_scale
            theta[i] += gain * error
            row = spread[i]
            for j in range(4):
                row[j] = (row[j] - gain * px[j]) / forget
        self.observed += 1

    def predict(self, load: StepLoad) -> float:
        """Expected seconds; no coefficient counts below zero."""
        x, theta = _features(load), self._theta
        return sum(max(0.0, coefficient) * value for coefficient, value in zip(theta, x, strict=True))

    def tokens_within(self, seconds: float, decode_rows: int, context: float) -> float:
        """How many prompt tokens at mean `context` fit into a step of `seconds`; may be negative."""
        left = seconds - self.predict(StepLoad(decode_rows, 0, 0.0))
        theta = self._theta
        per_token = max(1e-9, theta[2] / _TOKENS) + max(0.0, theta[3]) * context / _CONTEXT
        return left / per_token


def _features(load: StepLoad) -> Vector:
    return (1.0, load.decode_rows / _ROWS, load.prefill_tokens / _TOKENS, load.prefill_context / _CONTEXT)


@dataclass(frozen=True)
class Budget:
    """Prompt tokens for the next step and the sentence that explains them."""

    tokens: int
    reason: str


class StepBudget:
    """Owns the model; decides one `Budget` per step."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        # Before anything is measured: a chunk of 512 tokens is taken to fill the target.
        self._model = StepTimeModel(settings.itl_target_s / 512)

    def observe(self, load: StepLoad, seconds: float) -> None:
        self._model.observe(load, seconds)

    def choose(self, decode_rows: int, context: float) -> Budget:
        """`context` is the mean position of the prompt tokens that come next."""
        settings = self._settings
        most = settings.max_batched_tokens - decode_rows
        if decode_rows == 0:
            return Budget(most, "prefill alone: max_batched_tokens")
        target = settings.itl_target_s
        fits = int(self._model.tokens_within(target, decode_rows, context))
        if fits >= most:
            return Budget(max(1, most), f"chunk bounded by max_batched_tokens beside {decode_rows} decoding")
        if fits < settings.min_prefill_tokens:
            floor = min(settings.min_prefill_tokens, max(1, most))
            return Budget(
                floor, f"chunk at its floor beside {decode_rows} decoding: target {target * 1e3:g} ms is full"
            )
        return Budget(fits, f"chunk held to {target * 1e3:g} ms beside {decode_rows} decoding")
