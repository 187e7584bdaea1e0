"""What a run came to: per stage, per worker, and in all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.fleet.workload import Request, Stage
from tandem.core.errors import TandemError


@dataclass(frozen=True)
class StageMetrics:
    """One stage. `tokens_per_s` counts output tokens from its first arrival to its last token, so that a fleet that
    cannot keep up is charged for the time it needs to work off what has piled up. `steady_tokens_per_s` is the same
    until 99 of 100 requests have ended: the last of a long stage tell of themselves."""

    rate: float
    requests: int
    tokens_per_s: float
    steady_tokens_per_s: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    itl_mean_s: float
    end_to_end_mean_s: float
    span_s: float


@dataclass(frozen=True)
class RunMetrics:
    """All stages but warm-ups, and what they took. `hit_ratio` is prompt tokens that nobody had to compute over all;
    `imbalance` the greatest work of a worker over the mean of its role, in the role where that is greatest."""

    stages: tuple[StageMetrics, ...]
    hit_ratio: float
    imbalance: float
    preemptions: int
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    ttft_mean_s: float
    tokens_per_s: float
    """Mean over stages."""
    end_to_end_mean_s: float
    virtual_s: float
    requests: int


def quantile(ordered: Sequence[float], share: float) -> float:
    """By linear interpolation; 0 for nothing."""
    if not ordered:
        return 0.0
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def stage_metrics(stage: Stage, began_s: float) -> StageMetrics:
    """Figures of a stage that is over, of its requests that were not refused; their arrivals are absolute by now.
    Raises `bad_setting` when all were refused: there is nothing to tell."""
    requests = [request for request in stage.requests if request.ended]
    if not requests:
        raise TandemError("bad_setting", f"all {len(stage.requests)} requests at rate {stage.rate:g} were refused")
    ttft = sorted(request.ttft_s for request in requests)
    ended = sorted(requests, key=lambda request: request.end_s)
    most = ended[: max(1, len(ended) * 99 // 100)]
    span_s = ended[-1].end_s - began_s
    gaps = [request.tpot_s for request in requests if request.output_tokens > 1]
    return StageMetrics(
        rate=stage.rate,
        requests=len(requests),
        tokens_per_s=sum(request.emitted for request in requests) / span_s,
        steady_tokens_per_s=sum(request.emitted for request in most) / (most[-1].end_s - began_s),
        ttft_mean_s=fmean(ttft),
        ttft_p50_s=quantile(ttft, 0.5),
        ttft_p90_s=quantile(ttft, 0.9),
        ttft_p99_s=quantile(ttft, 0.99),
        itl_mean_s=fmean(gaps) if gaps else 0.0,
        end_to_end_mean_s=fmean(request.end_s - request.arrival_s for request in requests),
        span_s=span_s,
    )


def run_metrics(
    stages: Sequence[StageMetrics],
    requests: Sequence[Request],
    work_s: Mapping[str, Sequence[float]],
    preemptions: int,
    end_s: float,
) -> RunMetrics:
    """Figures over all `requests`, which have ended, those of warm-ups left out by the caller; `work_s` of every
    worker by role."""
    ttft = sorted(request.ttft_s for request in requests)
    prompt_tokens = sum(request.input_tokens for request in requests)
    return RunMetrics(
        stages=tuple(stages),
        hit_ratio=sum(request.reused + request.fetched for request in requests) / prompt_tokens,
        imbalance=max(max(each) / fmean(each) if any(each) else 1.0 for each in work_s.values()),
        preemptions=preemptions,
        ttft_p50_s=quantile(ttft, 0.5),
        ttft_p90_s=quantile(ttft, 0.9),
        ttft_p99_s=quantile(ttft, 0.99),
        ttft_mean_s=fmean(ttft),
        tokens_per_s=fmean(stage.tokens_per_s for stage in stages),
        end_to_end_mean_s=fmean(request.end_s - request.arrival_s for request in requests),
        virtual_s=end_s,
        requests=len(requests),
    )
