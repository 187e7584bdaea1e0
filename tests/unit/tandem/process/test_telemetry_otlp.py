"""Spans reach an OTLP collector over gRPC with our identifiers, times and attributes."""

from collections.abc import Iterator
from concurrent import futures
from queue import Queue

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tandem.core.spans import Span
from tandem.process.telemetry import open_telemetry

Request = trace_service_pb2.ExportTraceServiceRequest


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.requests: Queue[Request] = Queue()

    def Export(self, request: Request, context: grpc.ServicerContext) -> object:  # noqa: N802
        self.requests.put(request)
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    servicer = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(grace=None).wait(60)


def make_span(service: str, **attributes: str | int | float | bool) -> Span:
    return Span("0" * 31 + "7", "0" * 15 + "9", "0" * 15 + "8", "kv.pull", service, 100.25, 100.5, attributes)


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_own_spans_arrive_with_identifiers_times_and_attributes(
    collector: tuple[Collector, str], scheme: str
) -> None:
    servicer, address = collector
    telemetry = open_telemetry("decode_worker", scheme + address, "decode-0")
    telemetry.recorder.record("req-1", [make_span("decode_worker", bytes=4096, path="shm"), make_span("router")])
    telemetry.close()
    (received,) = servicer.requests.get(timeout=60).resource_spans
    resource = {item.key: item.value.string_value for item in received.resource.attributes}
    (span,) = received.scope_spans[0].spans
    assert (resource["service.name"], resource["service.instance.id"]) == ("decode_worker", "decode-0")
    assert (span.trace_id[-1], span.span_id[-1], span.parent_span_id[-1]) == (7, 9, 8)
    assert (span.name, span.start_time_unix_nano, span.end_time_unix_nano) == ("kv.pull", 100250000000, 100500000000)
    values = {item.key: item.value for item in span.attributes}
    assert values["bytes"].int_value == 4096
    assert values["path"].string_value == "shm"
    assert values["tandem.request_id"].string_value == "req-1"


def test_an_error_attribute_becomes_the_status(collector: tuple[Collector, str]) -> None:
    servicer, address = collector
    telemetry = open_telemetry("decode-0", address)
    telemetry.recorder.record("req-2", [make_span("decode-0", error="kv_gone")])
    telemetry.close()
    span = servicer.requests.get(timeout=60).resource_spans[0].scope_spans[0].spans[0]
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert span.status.message == "kv_gone"
