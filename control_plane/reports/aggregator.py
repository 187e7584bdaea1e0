"""Reports of several routers folded into one view. Pure: a step per round of polls.

Counters belong to a router's incarnation. What each has counted last is remembered beyond its end, so that totals
never fall when a router goes, comes back or begins anew, and nothing is counted twice. Gauges are those of routers
that exist: one that does not answer keeps its last for a while, one that is gone takes its requests with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from control_plane.reports.wire import RouterReport, ServiceCounts, WorkerReport, full_name
from control_plane.rollout import Health

_GAUGES_S: Final = 15.0
_INCARNATIONS_MAX: Final = 256
"""Maximum number of router incarnations to remember, many times what exists at once. Beyond it the least recently
heard are forgotten."""
_TOTALS_MAX: Final = 65_536
Counts = tuple[int, ...]


@dataclass(frozen=True)
class Demand:
    """The demand for one service, summed over all routers: requests and tokens that wait and run now, and five
    counters, from `arrived_requests` on, that only grow. `complete` says that every router that exists has reported
    lately."""

    queued_requests: int = 0
    queued_prompt_tokens: int = 0
    in_flight_requests: int = 0
    in_flight_prompt_tokens: int = 0
    arrived_requests: int = 0
    placed_prompt_tokens: int = 0
    output_tokens: int = 0
    unplaced: int = 0
    finished_requests: int = 0
    complete: bool = False


@dataclass(frozen=True)
class _Router:
    """The last report of a router that exists, and when it came; None before the first."""

    report: RouterReport | None = None
    at: float = 0.0

    def fresh(self, now: float) -> bool:
        return self.report is not None and now - self.at <= _GAUGES_S


@dataclass(frozen=True)
class ReportAggregate:
    """State of all router reports at time `at`. Keys of counters are (incarnation, service, revision); the revision
    is empty for counters of the service as a whole."""

    routers: Mapping[str, _Router] = field(default_factory=dict)
    last: Mapping[str, Mapping[tuple[str, str], Counts]] = field(default_factory=dict)
    """The last counters of each router incarnation."""
    totals: Mapping[tuple[str, str], Counts] = field(default_factory=dict)
    at: float = 0.0
    demands: Mapping[str, Demand] = field(default_factory=dict)
    seen: Mapping[str, WorkerReport] = field(default_factory=dict)
    complete: bool = False
    """Whether every router that exists has reported lately."""

    def round(self, routers: Iterable[str], reports: Mapping[str, RouterReport], now: float) -> "ReportAggregate":
        """The aggregate after a round of polls: `routers` are those that exist, `reports` come from those that
        answered."""
        exist = {name: self.routers.get(name, _Router()) for name in routers}
        exist |= {name: _Router(report, now) for name, report in reports.items() if name in exist}
        last, totals = dict(self.last), dict(self.totals)
        for name, report in sorted(reports.items()):
            if name in exist:
                # A router that draws no incarnation is told from others by its name.
                _count(report.revisions.incarnation or f"at {name}", report, last, totals)
        while len(last) > _INCARNATIONS_MAX:
            del last[next(iter(last))]
        while len(totals) > _TOTALS_MAX:
            del totals[next(iter(totals))]
        fresh = [router for _, router in sorted(exist.items()) if router.fresh(now)]
        # Without any router nobody can say that nothing waits.
        complete = bool(exist) and len(fresh) == len(exist)
        return ReportAggregate(exist, last, totals, now, _demands(fresh, totals, complete), _workers(fresh), complete)

    def health(self, service: str, revision: str) -> Health:
        """Health counters of one revision, summed over all routers; they only grow. `service` is `namespace/name`."""
        return Health(*self.totals.get((service, revision), (0, 0, 0)))

    def sharing(self) -> dict[str, dict[str, frozenset[str]]]:
        """The revisions to which each router gives new requests, by service and router, from the router's last
        report."""
        found: dict[str, dict[str, frozenset[str]]] = {}
        for name, router in self.routers.items():
            for each in router.report.revisions.data if router.report is not None else ():
                if each.weight:
                    of_service = found.setdefault(full_name(each.namespace, each.service), {})
                    of_service[name] = of_service.get(name, frozenset()) | {each.revision}
        return found

    def demand(self, service: str) -> Demand:
        """`service` is `namespace/name`."""
        return self.demands.get(service, Demand(complete=self.complete))

    def workers(self) -> Mapping[str, WorkerReport]:
        """Worker reports by worker id. Several routers see the same worker: of its latest incarnation the busiest
        view counts, since each router knows its own submits before the worker reports them."""
        return self.seen


def _demands(fresh: Sequence[_Router], totals: Mapping[tuple[str, str], Counts], complete: bool) -> dict[str, Demand]:
    """The demand of every service that any router has reported."""
    held: dict[str, list[ServiceCounts]] = {service: [] for service, revision in totals if not revision}
    for router in fresh:
        for each in router.report.revisions.services if router.report is not None else ():
            held.setdefault(full_name(each.namespace, each.service), []).append(each)
    ended: dict[str, int] = {}
    for (service, revision), counts in totals.items():
        if revision:
            ended[service] = ended.get(service, 0) + counts[0]
    found = {}
    for service, told in held.items():
        arrived, prompt_tokens, output_tokens, unplaced = totals.get((service, ""), (0, 0, 0, 0))
        found[service] = Demand(
            queued_requests=sum(each.queued_requests for each in told),
            queued_prompt_tokens=sum(each.queued_prompt_tokens for each in told),
            in_flight_requests=sum(each.in_flight_requests for each in told),
            in_flight_prompt_tokens=sum(each.in_flight_prompt_tokens for each in told),
            arrived_requests=arrived,
            placed_prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            unplaced=unplaced,
            finished_requests=ended.get(service, 0) + unplaced,
            complete=complete,
        )
    return found


def _workers(fresh: Sequence[_Router]) -> dict[str, WorkerReport]:
    seen = dict[str, tuple[float, WorkerReport]]()
    for router in fresh:
        for worker in router.report.workers if router.report is not None else ():
            view = (router.at, worker)
            if worker.id not in seen or _rather(view, seen[worker.id]):
                seen[worker.id] = view
    return {worker_id: worker for worker_id, (_, worker) in seen.items()}


def _rather(one: tuple[float, WorkerReport], other: tuple[float, WorkerReport]) -> bool:
    """Whether to believe view `one` of a worker rather than `other`. An epoch does not tell its age: of two epochs
    the one that was reported later counts."""
    (one_at, a), (other_at, b) = one, other
    if a.epoch != b.epoch and one_at != other_at:
        return one_at > other_at
    return _busy(a) > _busy(b)


def _busy(worker: WorkerReport) -> tuple[bool, int, int, float]:
    load = worker.load
    if load is None:
        return (False, 0, 0, worker.ready_for_s or 0.0)
    return (True, load.queued_prompt_tokens, load.running + load.waiting, worker.ready_for_s or 0.0)


def _count(
    incarnation: str,
    report: RouterReport,
    last: dict[str, Mapping[tuple[str, str], Counts]],
    totals: dict[tuple[str, str], Counts],
) -> None:
    """Add to the totals what an incarnation has counted since its last report. Counters never fall within one
    incarnation."""
    before = last.pop(incarnation, {})
    after = dict(before)
    for key, counts in _counters(report).items():
        old = before.get(key, (0,) * len(counts))
        grown = tuple(max(0, count - known) for count, known in zip(counts, old, strict=True))
        total = totals.get(key, (0,) * len(counts))
        totals[key] = tuple(sum(pair) for pair in zip(total, grown, strict=True))
        after[key] = tuple(max(pair) for pair in zip(counts, old, strict=True))
    # Last heard, last forgotten.
    last[incarnation] = after


def _counters(report: RouterReport) -> dict[tuple[str, str], Counts]:
    counters = dict[tuple[str, str], Counts]()
    for each in report.revisions.data:
        if each.revision:
            key = (full_name(each.namespace, each.service), each.revision)
            counters[key] = (each.requests, each.errors, each.slo_misses)
    for service in report.revisions.services:
        counts = (service.requests, service.prompt_tokens, service.output_tokens, service.unplaced)
        counters[full_name(service.namespace, service.service), ""] = counts
    return counters
