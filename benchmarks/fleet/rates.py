"""What a worker tells of its speed: exponential means over steps, each step counting a tenth."""

from typing import Final

from benchmarks.fleet.step_time import StepTime

_WEIGHT: Final = 0.1
_OUTLIER: Final = 3.0
"""Both as in `tandem.engine.scheduler.throughput`."""


class Rates:
    """`step_s` and the decode rate come from steps that decode, the prefill rate from steps with prompts."""

    __slots__ = ("decode", "prefill", "step_s")

    def __init__(self, step_s: float = 0.0, prefill: float = 0.0, decode: float = 0.0) -> None:
        self.step_s = step_s
        self.prefill = prefill
        self.decode = decode

    def observe(self, steps: int, decoding: int, prompt_tokens: int, took_s: float) -> None:
        """So many alike steps have taken `took_s` together."""
        if took_s <= 0:
            return
        if decoding:
            share, mean_s = 1 - (1 - _WEIGHT) ** steps, took_s / steps
            self.step_s = _mix(self.step_s, min(mean_s, _OUTLIER * self.step_s) if self.step_s else mean_s, share)
            self.decode = _mix(self.decode, decoding / mean_s, share)
        if prompt_tokens:
            self.prefill = _mix(self.prefill, prompt_tokens / took_s, _WEIGHT)

    def during(self, step_time: StepTime, steps: int, decoding: int, context: float) -> "Rates":
        """In the middle of a run of decode steps of which so many are done."""
        rates = Rates(self.step_s, self.prefill, self.decode)
        rates.observe(steps, decoding, 0, step_time.decode(decoding, context, steps))
        return rates


def _mix(old: float, new: float, share: float) -> float:
    return new if old == 0.0 else old + share * (new - old)
