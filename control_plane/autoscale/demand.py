"""The needs of the roles of one service, coupled, and spread over their pools. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from control_plane.autoscale.assignment import assign_workers
from control_plane.autoscale.coupling import RolePool, rate_in_all, rate_within
from control_plane.autoscale.model import PoolSpeed, ServiceLoad
from control_plane.autoscale.required_replicas import (
    ExpectedSequences,
    Targets,
    answer_s,
    decode_rate,
    required_decode,
    required_for_kv,
    required_prefill,
)
from control_plane.autoscale.roles import Scalable
from control_plane.autoscale.traffic import Traffic

Loads = tuple[dict[str, float], tuple[str, ...]]
"""Workers' worth by pool, and why."""
RateOf = Callable[[PoolSpeed], float | None]
_UNMEASURED: Final = "no warm worker was measured yet: the number stays"


@dataclass(frozen=True)
class DemandForecast:
    """One service's traffic against its targets."""

    targets: Targets
    load: ServiceLoad
    traffic: Traffic

    def tokens_ahead(self, pools: Sequence[Scalable]) -> float:
        """Prompt tokens/s that are expected by the time workers started now are ready."""
        return self.traffic.tokens.ahead(max(pool.speed.cold_start_s for pool in pools))

    def growth(self, pools: Sequence[Scalable]) -> float:
        """The factor by which arrivals are expected to grow until workers started now are ready, at least 1."""
        level = self.traffic.tokens_per_s
        return self.tokens_ahead(pools) / level if level > 0 else 1.0

    def prefill_rate(self, speed: PoolSpeed) -> float | None:
        """Requests/s that one worker prefills; None while speed or prompts are not known."""
        prompt_s = speed.prompt_s(self.traffic.prompt or 0.0)
        return 1 / prompt_s if prompt_s else None

    def decode_rate(self, speed: PoolSpeed) -> float | None:
        """Requests/s that one worker decodes; None while speed or answers are not known."""
        answer = self.traffic.answer
        return decode_rate(self.targets, speed, answer) if answer else None


def decode_loads(decode: tuple[Scalable, ...], prefill: tuple[Scalable, ...], flow: DemandForecast) -> Loads:
    """Loads of the decode pools, from the sequences being decoded and those to come: at least what prefill hands over
    while it works off what waits, and no more than it can ever hand over."""
    first = _reference(decode)
    load, traffic = flow.load, flow.traffic
    present = (load.decoding, sum(pool.load.kv_used for pool in decode))
    coming, handed, reasons = float(load.decoding + load.coming), 0.0, tuple[str, ...]()
    took_s = answer_s(flow.targets, first.speed, traffic.answer) if traffic.answer else None
    if took_s and traffic.prompt:
        coming = max(coming, flow.tokens_ahead(decode) / traffic.prompt * took_s)
        fed = _fed(prefill, flow)
        if fed is not None:
            handed = fed.at_work * took_s
            if coming > max(fed.at_most * took_s, load.decoding):
                coming = max(fed.at_most * took_s, load.decoding)
                reasons = (f"prefill hands over no more than {fed.at_most:.2f} requests/s",)
    need = required_decode(flow.targets, first.speed, present, ExpectedSequences(coming, handed, flow.growth(decode)))
    if need is None:
        kept = max(sum(pool.carrying for pool in decode), required_for_kv(present[1], flow.growth(decode)))
        return _spread(kept, decode, first, flow.decode_rate), (_UNMEASURED,)
    return _spread(need.workers, decode, first, flow.decode_rate), (need.reason, *reasons)


def prefill_loads(
    prefill: tuple[Scalable, ...], decode: tuple[Scalable, ...], decided: Mapping[str, int], flow: DemandForecast
) -> Loads:
    """Loads of the prefill pools, from the requests that arrive and wait, but no more workers than decode can absorb
    by the time they are ready."""
    first = _reference(prefill)
    workers, reason = _prefill(prefill, first, flow)
    rate = flow.prefill_rate(first.speed)
    absorbed = _absorbed(decode, decided, flow, min(pool.speed.cold_start_s for pool in prefill))
    reasons: tuple[str, ...] = (reason,)
    if rate and absorbed is not None:
        # Those that there are stay: only growth is held back.
        limit = max(absorbed / rate, float(sum(pool.carrying for pool in prefill)))
        if workers > limit:
            workers = limit
            reasons += (f"decode absorbs {absorbed:.2f} requests/s by then: no more than {limit:.2f} workers",)
    return _spread(workers, prefill, first, flow.prefill_rate), reasons


def unified_loads(pools: tuple[Scalable, ...], flow: DemandForecast) -> Loads:
    """Workers that do both, or any of which may do either: the needs add up."""
    first = _reference(pools)
    workers, reason = _prefill(pools, first, flow)
    loads, reasons = decode_loads(pools, (), flow)
    if first.speed.prefill_token_s is None or first.speed.decode is None:
        return loads, reasons
    total = workers + sum(loads[pool.name] for pool in pools if pool.autoscaling is not None)
    fixed = sum(pool.load.wanted for pool in pools if pool.autoscaling is None)
    return _spread(total + fixed, pools, first, flow.decode_rate), (reason, *reasons)


def _prefill(pools: tuple[Scalable, ...], first: Scalable, flow: DemandForecast) -> tuple[float, str]:
    """Workers, and why."""
    need = required_prefill(
        flow.targets,
        first.speed,
        flow.load.outstanding_prompt_tokens,
        flow.tokens_ahead(pools),
        flow.traffic.prompt,
    )
    if need is None:
        return float(sum(pool.carrying for pool in pools)), _UNMEASURED
    return need.workers, need.reason


@dataclass(frozen=True)
class _Fed:
    """Requests/s that prefill hands over: `at_work` when the workers it needs work without a pause, `at_most` when
    all of its workers do."""

    at_work: float
    at_most: float


def _fed(prefill: tuple[Scalable, ...], flow: DemandForecast) -> _Fed | None:
    """None when that is not known."""
    if not prefill:
        return None
    first = _reference(prefill)
    workers, _ = _prefill(prefill, first, flow)
    loads = _spread(workers, prefill, first, flow.prefill_rate)
    decided = {pool.name: max(pool.replicas(loads[pool.name]), pool.load.wanted) for pool in prefill}
    pools = _role(prefill, decided, flow.prefill_rate)
    rate = flow.prefill_rate(first.speed)
    if pools is None or rate is None:
        return None
    most = rate_in_all(pools)
    return _Fed(min(workers * rate, most), most)


def _absorbed(
    decode: tuple[Scalable, ...], decided: Mapping[str, int], flow: DemandForecast, within_s: float
) -> float | None:
    """Requests/s that decode absorbs that soon; None when that is not known."""
    pools = _role(decode, decided, flow.decode_rate)
    return None if pools is None else rate_within(pools, within_s)


def _role(pools: tuple[Scalable, ...], decided: Mapping[str, int], rate_of: RateOf) -> list[RolePool] | None:
    rate = rate_of(_reference(pools).speed)
    if rate is None:
        return None
    return [
        RolePool(pool.load, decided[pool.name], pool.speed.cold_start_s, rate_of(pool.speed) or rate, pool.pool.spare)
        for pool in pools
    ]


def _reference(pools: tuple[Scalable, ...]) -> Scalable:
    """The first pool that was measured, else the first."""
    for pool in pools:
        if pool.speed.decode is not None or pool.speed.prefill_token_s is not None:
            return pool
    return pools[0]


def _spread(workers: float, pools: tuple[Scalable, ...], first: Scalable, rate_of: RateOf) -> dict[str, float]:
    """Workers of the reference pool as workers' worth of each."""
    reference = rate_of(first.speed)
    worths = [(rate_of(pool.speed) or reference or 1.0) / (reference or 1.0) for pool in pools]
    return assign_workers(workers, [pool.share(worth) for pool, worth in zip(pools, worths, strict=True)])
