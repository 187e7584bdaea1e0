"""The span ring is bounded both ways; an exporting recorder exports its own process's spans only."""

from collections.abc import Sequence

import msgspec

from tandem.core.spans import LazySpans, Span
from tandem.process.telemetry import ExportingRecorder, RingRecorder, endpoint_from, open_telemetry


def make_span(name: str, start_s: float = 1.0, service: str = "router") -> Span:
    return Span("a" * 32, "b" * 16, "", name, service, start_s, start_s + 0.5, {})


class Exported:
    def __init__(self) -> None:
        self.spans: list[tuple[str, str]] = []
        self.closed = False

    def export(self, request_id: str, spans: Sequence[Span]) -> None:
        self.spans += [(request_id, span.name) for span in spans]

    def close(self) -> None:
        self.closed = True


def test_spans_come_back_oldest_first_whatever_order_they_came_in() -> None:
    ring = RingRecorder()
    ring.record("r", [make_span("late", 3.0)])
    ring.record("r", [make_span("early", 1.0), make_span("middle", 2.0)])
    assert [span.name for span in ring.spans("r")] == ["early", "middle", "late"]


def test_unknown_request_has_no_spans() -> None:
    assert RingRecorder().spans("nobody") == ()


def test_the_oldest_request_is_forgotten_first() -> None:
    ring = RingRecorder(requests_max=2)
    for request in ("a", "b", "c"):
        ring.record(request, [make_span(request)])
    assert [len(ring.spans(request)) for request in ("a", "b", "c")] == [0, 1, 1]


def test_spans_of_one_request_are_bounded() -> None:
    ring = RingRecorder(spans_max=3)
    for _ in range(4):
        ring.record("r", [make_span("x"), make_span("y")])
    assert len(ring.spans("r")) == 3


def test_tenants_that_use_one_id_do_not_fill_each_others_spans() -> None:
    ring = RingRecorder(spans_max=2)
    for number in range(5):
        ring.record("r", [make_span(f"b{number}", 2.0 + number)], "b")
    ring.record("r", [make_span("a", 1.0)], "a")
    assert [span.name for span in ring.spans("r", "a")] == ["a"]
    assert [span.name for span in ring.spans("r", "b")] == ["b0", "b1"]
    assert [span.name for span in ring.spans("r")] == ["a", "b0", "b1"]
    assert ring.spans("r", "") == ()


def test_only_own_spans_leave_the_process() -> None:
    exported = Exported()
    recorder = ExportingRecorder(RingRecorder(), "router", exported)
    recorder.record("r", [make_span("place"), make_span("prefill", service="prefill-0")])
    assert exported.spans == [("r", "place")]
    assert len(recorder.spans("r")) == 2


def test_without_an_endpoint_nothing_is_exported() -> None:
    telemetry = open_telemetry("router", endpoint_from({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}))
    assert telemetry.exporter is None
    telemetry.close()


def test_the_more_specific_variable_wins() -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b:2"}
    assert endpoint_from(environment) == "http://b:2"


class Facts(msgspec.Struct, array_like=True):
    """What two spans are made of."""

    start_s: float
    names: tuple[str, ...]


told: list[str] = []


def tell(facts: Facts) -> tuple[Span, ...]:
    told.extend(facts.names)
    return tuple(make_span(name, facts.start_s) for name in facts.names)


def test_what_nobody_asks_for_is_never_told() -> None:
    told.clear()
    ring = RingRecorder(requests_max=2)
    for request in ("a", "b", "c"):
        ring.record(request, LazySpans(Facts(2.0, ("place", "attempt")), tell))
        ring.record(request, [make_span("request", 1.0)])
    assert told == []
    assert [span.name for span in ring.spans("b")] == ["request", "place", "attempt"]
    assert ring.spans("b") == ring.spans("b")
    assert ring.spans("a") == ()


def test_told_late_they_are_bounded_all_the_same() -> None:
    ring = RingRecorder(spans_max=3)
    for number in range(5):
        ring.record("r", LazySpans(Facts(float(number), ("x", "y")), tell))
    assert len(ring.spans("r")) == 3


def test_an_exporter_gets_them_at_once() -> None:
    exported = Exported()
    recorder = ExportingRecorder(RingRecorder(), "router", exported)
    untold = LazySpans(Facts(1.0, ("place", "attempt")), tell)
    recorder.record("r", untold)
    assert exported.spans == [("r", "place"), ("r", "attempt")]
    assert tuple(untold) == (untold[0], *untold[1:]) == recorder.spans("r")
