"""Reports of several routers folded: totals that only grow and count nothing twice, gauges of those that exist."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.reports.aggregator import ReportAggregate
from control_plane.reports.wire import (
    RevisionCounts,
    RevisionsAnswer,
    RouterReport,
    ServiceCounts,
    WorkerLoad,
    WorkerReport,
    read_report,
)
from control_plane.rollout import Health

SERVICES = ("llm/a", "llm/b")


@dataclass
class Router:
    """One process: its counters begin at 0. `heard` are those that a poll has carried."""

    incarnation: str
    queued: int = 0
    counted: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    heard: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def serve(self, service: str, revision: str, bad: bool) -> None:
        counts = self.counted.setdefault((service, revision), [0, 0, 0])
        counts[0] += 1
        counts[1] += bad

    def report(self) -> RouterReport:
        self.heard = {key: list(counts) for key, counts in self.counted.items()}
        data = tuple(
            RevisionCounts(service=service, revision=revision, requests=counts[0], errors=counts[1])
            for (service, revision), counts in self.counted.items()
        )
        services = tuple(
            ServiceCounts(service=name, queued_requests=self.queued, requests=sum(self._of(name)), output_tokens=7)
            for name in SERVICES
        )
        return RouterReport((), RevisionsAnswer(self.incarnation, data, services))

    def _of(self, name: str) -> list[int]:
        return [counts[0] for (service, _), counts in self.counted.items() if service == name]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["serve", "serve", "serve", "restart", "gone", "back", "poll", "poll", "silent", "wait"]),
        st.integers(0, 2),
        st.integers(0, 5),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(EVENTS)
def test_totals_are_what_was_heard_of_every_incarnation(events: list[tuple[str, int, int]]) -> None:
    routers = {f"r{number}": Router(f"i{number}") for number in range(3)}
    listed, all_routers = dict(routers), list(routers.values())
    books, now, before = ReportAggregate(), 0.0, dict[tuple[str, str], Health]()
    for kind, which, detail in events:
        name, now = f"r{which}", now + 1
        if kind == "serve":
            routers[name].serve(SERVICES[detail % 2], f"v{detail % 3}", detail == 5)
            routers[name].queued = detail
        elif kind == "restart":
            routers[name] = Router(f"{routers[name].incarnation}'")
            all_routers.append(routers[name])
            if name in listed:
                listed[name] = routers[name]
        elif kind == "gone":
            listed.pop(name, None)
        elif kind == "back":
            listed[name] = routers[name]
        elif kind == "wait":
            now += 5 * detail
        else:
            silent = name if kind == "silent" else ""
            reports = {each: router.report() for each, router in listed.items() if each != silent}
            books = books.round(listed, reports, now)
        for service in SERVICES:
            for revision in ("v0", "v1", "v2"):
                heard = [router.heard.get((service, revision), [0, 0, 0]) for router in all_routers]
                health = books.health(service, revision)
                assert health.requests == sum(counts[0] for counts in heard)
                assert health.errors == sum(counts[1] for counts in heard)
                assert health.requests >= before.get((service, revision), Health()).requests, "it fell"
                before[service, revision] = health


def gauges(queued: int, incarnation: str = "i") -> RouterReport:
    counts = ServiceCounts(service="a", namespace="llm", queued_requests=queued, queued_prompt_tokens=10 * queued)
    return RouterReport((), RevisionsAnswer(incarnation, (), (counts,)))


def test_a_silent_router_keeps_its_gauges_for_a_while_and_one_that_is_gone_does_not() -> None:
    books = ReportAggregate().round(("r0", "r1"), {"r0": gauges(3, "i0"), "r1": gauges(4, "i1")}, 0.0)
    assert books.demand("llm/a").queued_prompt_tokens == 70
    assert books.complete
    silent = books.round(("r0", "r1"), {"r0": gauges(3, "i0")}, 10.0)
    assert silent.demand("llm/a").queued_requests == 7
    assert silent.complete
    late = silent.round(("r0", "r1"), {"r0": gauges(3, "i0")}, 20.0)
    assert late.demand("llm/a").queued_requests == 3
    assert not late.complete
    gone = books.round(("r0",), {"r0": gauges(3, "i0")}, 1.0)
    assert gone.demand("llm/a").queued_requests == 3
    assert gone.complete
    assert not ReportAggregate().round((), {}, 0.0).complete, "without routers nobody can say that nothing waits"
    assert not ReportAggregate().round(("new",), {}, 0.0).complete


def worker(epoch: str, queued: int, running: int = 1) -> RouterReport:
    load = WorkerLoad(running=running, queued_prompt_tokens=queued)
    return RouterReport((WorkerReport("pod-1", epoch=epoch, load=load),), RevisionsAnswer("i"))


def test_a_worker_that_several_routers_see_counts_once() -> None:
    books = ReportAggregate().round(("r0", "r1"), {"r0": worker("e", 100), "r1": worker("e", 300)}, 0.0)
    load = books.workers()["pod-1"].load
    assert load is not None
    assert load.queued_prompt_tokens == 300
    # One router has not heard of the restart yet: whoever told last is right, however busy the old one was.
    books = ReportAggregate().round(("r0", "r1"), {"r0": worker("old", 900)}, 0.0)
    books = books.round(("r0", "r1"), {"r1": worker("new", 0, 0)}, 5.0)
    assert books.workers()["pod-1"].epoch == "new"


def test_routers_without_an_incarnation_are_told_apart() -> None:
    reports = {
        name: RouterReport((), RevisionsAnswer("", (RevisionCounts("llm/a", "llm", "v", count, 0, 0),)))
        for name, count in (("r0", 5), ("r1", 9))
    }
    books = ReportAggregate().round(reports, reports, 0.0).round(reports, reports, 1.0)
    assert books.health("llm/a", "v") == Health(14, 0, 0)


def test_answers_of_other_versions_are_read() -> None:
    report = read_report(
        b'{"object":"list","data":[{"id":"w","role":"decode","load":null,"surprise":[1]}]}',
        b'{"incarnation":"i","data":[{"service":"a","revision":"v","requests":1}],"services":[{"service":"a"}]}',
    )
    assert report.workers[0].load is None
    assert report.revisions.data[0].errors == 0
