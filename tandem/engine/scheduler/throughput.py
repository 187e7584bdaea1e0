"""Recent step times and rates, for `Load`."""

from dataclasses import dataclass
from typing import Final

from tandem.engine.scheduler.step_budget import StepLoad

_WEIGHT: Final = 0.1
_FADING: Final = 0.95
_OUTLIER: Final = 3.0
"""A step counts as at most so many times as long as those before it: a stall is not how long steps take."""


@dataclass
class Throughput:
    """Exponentially weighted means over steps; each step counts a tenth."""

    step_s: float = 0.0
    prompt_step_s: float = 0.0
    """The longest of the latest steps with prompts, without outliers; each further one counts a twentieth less."""
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0

    def observe(self, load: StepLoad, seconds: float) -> None:
        """`step_s` and the decode rate come from steps that decode, the prefill rate from steps with prompts."""
        if seconds <= 0:
            return
        if load.decode_rows:
            self.step_s = _mix(self.step_s, min(seconds, _OUTLIER * self.step_s) if self.step_s else seconds)
            self.decode_tokens_per_s = _mix(self.decode_tokens_per_s, load.decode_rows / seconds)
        if load.prefill_tokens:
            longest_s = min(seconds, _OUTLIER * self.prompt_step_s) if self.prompt_step_s else seconds
            self.prompt_step_s = max(longest_s, _FADING * self.prompt_step_s)
            self.prefill_tokens_per_s = _mix(self.prefill_tokens_per_s, load.prefill_tokens / seconds)


def _mix(old: float, new: float) -> float:
    return new if old == 0.0 else old + _WEIGHT * (new - old)
