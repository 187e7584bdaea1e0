"""Collects the spans that routers and workers send, and reads from them who served what."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service

_REVISION = re.compile(r"-([0-9a-f]{10})-")


class Spans(service.TraceServiceServicer):
    """Every attempt of a router to serve a request, as the attributes of its span."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: list[dict[str, str]] = []

    def Export(  # noqa: N802 - as the protocol calls it
        self, request: messages.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> messages.ExportTraceServiceResponse:
        """What exporters call."""
        found = [
            {attribute.key: attribute.value.string_value for attribute in span.attributes}
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if span.name == "attempt"
        ]
        with self._lock:
            self._attempts += found
        return messages.ExportTraceServiceResponse()

    def attempts(self, service_name: str) -> int:
        """How often a request was placed on workers of a service."""
        with self._lock:
            return sum(one.get("decode", "").startswith(f"{service_name}-") for one in self._attempts)

    def pairs(self, service_name: str) -> list[tuple[str, str]]:
        """Revisions of the prefill and the decode worker of every attempt for a service that had both."""
        with self._lock:
            attempts = list(self._attempts)
        ours = (one for one in attempts if one.get("decode", "").startswith(f"{service_name}-") and "prefill" in one)
        return [(_revision(one["prefill"]), _revision(one["decode"])) for one in ours]


@contextmanager
def collector(address: str) -> Iterator[Spans]:
    """A collector on this address for as long as the context is open."""
    spans = Spans()
    server = grpc.server(ThreadPoolExecutor(2, "spans"))
    service.add_TraceServiceServicer_to_server(spans, server)  # type: ignore[no-untyped-call]
    assert server.add_insecure_port(address), f"{address} is taken"
    server.start()
    try:
        yield spans
    finally:
        server.stop(1.0).wait(5.0)


def _revision(worker: str) -> str:
    found = _REVISION.search(worker)
    assert found is not None, f"worker {worker} has no revision in its name"
    return found[1]
