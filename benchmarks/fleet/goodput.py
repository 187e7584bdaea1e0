"""Goodput of a simulated run: how many of the requests that were offered met their objective.

A request that was refused, ran into its deadline or never got its whole answer is a miss, however fast it began; one
that its own client gave up is not counted. Latencies are those of requests that ended, so attainment stands beside
them: refusing the slow ones would flatter the quantiles alone. Requests count, and wait, from when they were due: a
client that keeps some back while others are slow hides nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.fleet.gaps import Gaps, all_gaps
from benchmarks.fleet.metrics import quantile
from benchmarks.fleet.workload import Request
from tandem.core.slo import End, Latency, Slo

BUCKET_S: Final = 5.0


@dataclass(frozen=True)
class Window:
    """Requests that were due from `begin_s` to `end_s`, both included, are counted; when they end does not matter."""

    begin_s: float
    end_s: float

    @staticmethod
    def of(requests: Sequence[Request]) -> "Window":
        """From when the first was due to the last; nothing for no requests."""
        due = [request.due_s for request in requests]
        return Window(min(due, default=0.0), max(due, default=0.0))


@dataclass(frozen=True)
class Quantiles:
    """In seconds; all 0 for no values."""

    p50_s: float
    p90_s: float
    p99_s: float

    @staticmethod
    def of(values: Sequence[float]) -> "Quantiles":
        """Of values in any order."""
        ordered = sorted(values)
        return Quantiles(quantile(ordered, 0.5), quantile(ordered, 0.9), quantile(ordered, 0.99))

    @staticmethod
    def of_gaps(gaps: Gaps) -> "Quantiles":
        """Of all gaps together, each to 1 %."""
        return Quantiles(gaps.quantile(0.5), gaps.quantile(0.9), gaps.quantile(0.99))


@dataclass(frozen=True)
class Bucket:
    """What became of the requests that arrived within `BUCKET_S` from `begin_s`."""

    begin_s: float
    offered: int
    met: int


@dataclass(frozen=True)
class Judged:
    """The verdict over one window. `ttft` and `tpot` are of the requests that ended, `itl` is of all gaps between
    their tokens; `tokens_per_s` counts their output tokens from the window's begin until the last of them ended,
    `goodput_per_s` the requests that met the objective per second of the window (0 for a window without length).
    `cancelled` ones were given up by their own clients and are not among those `offered`."""

    offered: int
    ended: int
    met: int
    goodput_per_s: float
    tokens_per_s: float
    ttft: Quantiles
    tpot: Quantiles
    itl: Quantiles
    by_arrival: tuple[Bucket, ...]
    cancelled: int = 0

    @property
    def attainment(self) -> float:
        """Share of the offered requests that met the objective; 0 when none was offered."""
        return self.met / self.offered if self.offered else 0.0


def judge(requests: Sequence[Request], slo: Slo, window: Window) -> Judged:
    """The verdict over the requests that were due in the window."""
    came = [request for request in requests if window.begin_s <= request.due_s <= window.end_s]
    offered = [request for request in came if end_of(request) is not End.CANCELLED]
    ended = [request for request in offered if request.ended]
    in_objective = [request for request in ended if met(request, slo)]
    length_s = window.end_s - window.begin_s
    busy_s = max((request.end_s for request in ended), default=window.begin_s) - window.begin_s
    return Judged(
        offered=len(offered),
        ended=len(ended),
        met=len(in_objective),
        goodput_per_s=len(in_objective) / length_s if length_s > 0 else 0.0,
        tokens_per_s=sum(request.emitted for request in ended) / busy_s if busy_s > 0 else 0.0,
        ttft=Quantiles.of([request.first_s - request.due_s for request in ended]),
        tpot=Quantiles.of([request.tpot_s for request in ended if request.output_tokens > 1]),
        itl=Quantiles.of_gaps(all_gaps(request.gaps for request in ended)),
        by_arrival=_buckets(offered, in_objective, window.begin_s),
        cancelled=len(came) - len(offered),
    )


def met(request: Request, slo: Slo) -> bool:
    """Whether a request that is over is goodput."""
    return request.ended and slo.met_by(_latency(request))


def end_of(request: Request) -> End:
    """How a request of a run that is over ended; unfinished, too, is one that has not come yet."""
    if request.ended:
        return End.DONE
    if request.cancelled_s >= 0:
        return End.CANCELLED if request.patience_s <= request.deadline_s else End.DEADLINE
    return End.REFUSED if request.decode < 0 else End.UNFINISHED


def _latency(request: Request) -> Latency:
    gaps = request.output_tokens > 1
    return Latency(
        request.first_s - request.due_s,
        request.end_s - request.due_s,
        request.tpot_s if gaps else None,
        request.itl_p99_s if gaps else None,
    )


def _buckets(offered: Sequence[Request], met: Sequence[Request], begin_s: float) -> tuple[Bucket, ...]:
    """Without gaps, up to the last arrival."""
    if not offered:
        return ()
    places = [int((request.due_s - begin_s) / BUCKET_S) for request in offered]
    counts = [[0, 0] for _ in range(max(places) + 1)]
    for place in places:
        counts[place][0] += 1
    for request in met:
        counts[int((request.due_s - begin_s) / BUCKET_S)][1] += 1
    return tuple(Bucket(begin_s + BUCKET_S * place, *count) for place, count in enumerate(counts))


def knee(points: Sequence[tuple[float, float]], share: float = 0.9) -> float:
    """The rate up to which attainment stays at `share` or more, interpolated between the last rate that reaches it
    and the first that does not. `points` are (rate, attainment) in any order. 0 when the lowest rate falls short
    already, the highest rate when none does: the knee then lies beyond it."""
    before: tuple[float, float] | None = None
    for rate, attainment in sorted(points):
        if attainment < share:
            if before is None:
                return 0.0
            return before[0] + (rate - before[0]) * (before[1] - share) / (before[1] - attainment)
        before = rate, attainment
    return before[0] if before else 0.0


def recovery_s(buckets: Sequence[Bucket], since_s: float, before: float, share: float = 0.95) -> float | None:
    """How long after `since_s` attainment was back at `share` of `before`, counted by arrival: until the begin of the
    first bucket that reaches it and after which all later ones do, taken together and without it. Buckets that began
    earlier than `since_s` or were offered nothing are passed over. None when attainment never came back."""
    wanted = share * before
    later = [bucket for bucket in buckets if bucket.begin_s >= since_s and bucket.offered]
    offered = met = 0
    found: float | None = None
    for bucket in reversed(later):
        if bucket.met >= wanted * bucket.offered and met >= wanted * offered:
            found = bucket.begin_s - since_s
        offered, met = offered + bucket.offered, met + bucket.met
    return found
