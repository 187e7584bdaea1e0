"""Finished spans as OpenTelemetry spans, sent in batches over OTLP gRPC by the SDK's own processor.

Our spans are made after the fact, with identifiers and times of their own, so the SDK's tracer is not used:
each becomes a `ReadableSpan` and goes straight to the batch processor. Imported only when an endpoint is set.
"""

from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tandem import __version__
from tandem.core.spans import Span

_SEND_TIMEOUT_S: Final = 2.0
_QUEUE_SPANS: Final = 8192
_BATCH_SPANS: Final = 512
_DELAY_MS: Final = 1000.0
_NS: Final = 1_000_000_000
_SCOPE: Final = InstrumentationScope("tandem", __version__)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


def readable(span: Span, request_id: str, resource: Resource) -> ReadableSpan:
    """`span` with its own identifiers and times. An attribute `error` makes its status an error."""
    trace = int(span.trace_id, 16)
    error = span.attributes.get("error")
    return ReadableSpan(
        name=span.name,
        context=SpanContext(trace, int(span.span_id, 16), is_remote=False, trace_flags=_SAMPLED),
        parent=SpanContext(trace, int(span.parent_id, 16), is_remote=False) if span.parent_id else None,
        resource=resource,
        attributes={**span.attributes, "tandem.request_id": request_id},
        kind=SpanKind.INTERNAL if span.parent_id else SpanKind.SERVER,
        status=Status(StatusCode.ERROR, str(error)) if error else Status(),
        start_time=round(span.start_s * _NS),
        end_time=round(span.end_s * _NS),
        instrumentation_scope=_SCOPE,
    )


class OtlpExporter:
    """Queues spans for the SDK's export thread. A full queue drops its oldest span rather than wait."""

    def __init__(self, service: str, instance: str, endpoint: str) -> None:
        names = {"service.namespace": "tandem", "service.name": service, "service.instance.id": instance}
        self._resource = Resource.create(names)
        sender = OTLPSpanExporter(endpoint=endpoint, insecure=_insecure(endpoint), timeout=_SEND_TIMEOUT_S)
        self._processor = BatchSpanProcessor(sender, _QUEUE_SPANS, _DELAY_MS, _BATCH_SPANS)

    def export(self, request_id: str, spans: Sequence[Span]) -> None:
        for span in spans:
            self._processor.on_end(readable(span, request_id, self._resource))

    def close(self) -> None:
        """Send what is queued; each batch waits at most the send timeout, all of them at most 30 s."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def _insecure(endpoint: str) -> bool:
    """Whether to export in plain text: yes unless the endpoint says https, as a bare `host:port` is a collector on
    the same machine."""
    return not endpoint.startswith("https://")
