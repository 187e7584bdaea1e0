"""Computes how many workers a load needs to meet the SLO, in workers' worth of one pool, and why. Pure formulas.

With `s` prompt tokens/s of a prefill worker, mean prompt `m`, arrivals of `r` tokens/s, `b` tokens outstanding,
percentile `p`, a start that takes `c`, and `t` what the TTFT leaves for waiting:

    prefill = (r + b / (ttft + c)) / s  +  ln(1 / (1 - p)) * (m / s) / t

The first term carries the arrivals and works off what is outstanding by the time new workers can have helped. The
second keeps the wait of one prompt in 1 / (1 - p) below `t`: the tail of the wait at one queue with exponential gaps
and equally varied prompts falls as exp(-(free workers) * t / (m / s)).

With `n` the sequences that a decode worker steps within the TPOT, an answer that takes `a` there, and `q` sequences,
those that there are or at least the arrivals times `a` (Little); and with `h` the requests/s that the workers of
`prefill` hand over when they never pause:

    decode = max((q + z(p) * sqrt(q)) / n,  h * a / n,  KV used / 0.75)

The term `h * a / n` keeps prefill from outrunning decode while prefill works off a burst.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from control_plane.autoscale.model import PoolSpeed
from tandem.core.slo import TPOT_S, TTFT_S
from tandem.spec.rollout import Slo

_OVERHEAD_S: Final = 0.05
"""Seconds of the TTFT that pass outside of prefill: tokenizing, placing, the way back."""
_WAIT_SHARE_MIN: Final = 0.1
_KV_FULL: Final = 0.75


@dataclass(frozen=True)
class Targets:
    """The SLO in seconds, with what stands for a missing one."""

    ttft_s: float
    tpot_s: float
    share: float
    """The share of requests that meet the SLO."""

    @classmethod
    def of(cls, slo: Slo) -> "Targets":
        bounds = slo.bounds
        ttft_s = TTFT_S if bounds.ttft_s is None else bounds.ttft_s
        return cls(ttft_s, TPOT_S if bounds.tpot_s is None else bounds.tpot_s, slo.percentile / 100)


@dataclass(frozen=True)
class RequiredPrefill:
    """`flow` and `reserve` in workers' worth; `rate` is the flow in prompt tokens/s."""

    flow: float
    reserve: float
    rate: float
    reason: str

    @property
    def workers(self) -> float:
        return self.flow + self.reserve


def required_prefill(
    targets: Targets, speed: PoolSpeed, outstanding: int, tokens_per_s: float, prompt: float | None
) -> RequiredPrefill | None:
    """None without a measured speed. `prompt` is the mean prompt; without it a prompt has no length of its own."""
    if speed.prefill_token_s is None:
        return None
    prompt_s = speed.prompt_s(prompt or 0.0) or 0.0
    token_s = prompt_s / prompt if prompt else speed.prefill_token_s
    backlog_rate = outstanding / (targets.ttft_s + (speed.cold_start_s if tokens_per_s > 0 else 0.0))
    rate = tokens_per_s + backlog_rate
    wait_s = max(targets.ttft_s - _OVERHEAD_S - prompt_s, _WAIT_SHARE_MIN * targets.ttft_s)
    reserve = math.log(1 / (1 - targets.share)) * prompt_s / wait_s if tokens_per_s > 0 else 0.0
    reason = (
        f"prefill: {tokens_per_s:.0f} prompt tokens/s expected and {outstanding} outstanding at {1 / token_s:.0f} "
        f"tokens/s per worker, {reserve:.2f} workers' reserve for a wait below {wait_s:.2f} s"
    )
    return RequiredPrefill(rate * token_s, reserve, rate, reason)


@dataclass(frozen=True)
class RequiredDecode:
    """The decode need of a load, in workers' worth, with its reason."""

    workers: float
    reason: str


@dataclass(frozen=True)
class ExpectedSequences:
    """`sequences` are expected on average, `handed` if prefill never pauses; `growth` is by what factor more than now
    arrives soon."""

    sequences: float
    handed: float
    growth: float


def required_decode(
    targets: Targets, speed: PoolSpeed, present: tuple[int, float], coming: ExpectedSequences
) -> RequiredDecode | None:
    """`present` are sequences that decode now, and KV used in workers' worth. None without a measured speed."""
    if speed.decode is None:
        return None
    sequences, kv_used = present
    most = speed.decode.sequences_within(targets.tpot_s)
    now = max(sequences / most, required_for_kv(kv_used, 1.0))
    tail = NormalDist().inv_cdf(targets.share) * math.sqrt(coming.sequences)
    expected = max(coming.sequences + tail, coming.handed)
    workers = max(now, expected / most, required_for_kv(kv_used, coming.growth))
    reason = (
        f"decode: {sequences} sequences, {expected:.0f} expected, at {most:.0f} per worker within "
        f"{targets.tpot_s * 1e3:.0f} ms per token; KV of {kv_used:.2f} workers in use"
    )
    return RequiredDecode(workers, reason)


def required_for_kv(kv_used: float, growth: float) -> float:
    """Workers for the KV memory of so many full ones, once there is `growth` times as much."""
    return kv_used * growth / _KV_FULL


def answer_s(targets: Targets, speed: PoolSpeed, answer: float) -> float | None:
    """Seconds that an answer of `answer` tokens takes on a worker that is as full as the TPOT allows."""
    if speed.decode is None:
        return None
    most = speed.decode.sequences_within(targets.tpot_s)
    return answer * min(targets.tpot_s, speed.decode.step_s(most))


def decode_rate(targets: Targets, speed: PoolSpeed, answer: float) -> float | None:
    """Requests/s that one decode worker absorbs within the TPOT."""
    took_s = answer_s(targets, speed, answer)
    if speed.decode is None or not took_s:
        return None
    return speed.decode.sequences_within(targets.tpot_s) / took_s
