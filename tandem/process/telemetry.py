"""Spans of a process: a bounded ring for `tandem explain`, and OpenTelemetry beside it when an endpoint is set."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from tandem.core.spans import LazySpans, Recorder, Span

ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(tuple[Span, ...]).decode

MakeSpans = Callable[[Any], tuple[Span, ...]]


class _Kept(msgspec.Struct, gc=False):
    """One request's spans, packed. A piece that comes with a `MakeSpans` holds only the facts from which that
    function makes spans."""

    count: int
    pieces: tuple[tuple[MakeSpans | None, bytes], ...]


class RingRecorder:
    """Keeps the spans of the last `requests_max` requests, `spans_max` each; the oldest request goes first.

    Clients choose request ids: what two tenants do under the same one is kept apart, and neither fills what the other
    has.

    Spans are written for every request and read for hardly any, so they are kept packed: thousands of requests as
    objects are megabytes that the collector walks through and that push everything else out of the processor's cache.
    """

    def __init__(self, requests_max: int = 4096, spans_max: int = 256) -> None:
        assert requests_max > 0, requests_max
        assert spans_max > 0, spans_max
        self._requests_max = requests_max
        self._spans_max = spans_max
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        """The spans that are kept, by tenant and request id."""
        self._facts: dict[MakeSpans, msgspec.msgpack.Decoder[Any]] = {}
        """The decoders that read packed facts again, by the function that makes spans of them."""

    def record(self, request_id: str, spans: Sequence[Span], tenant: str = "") -> None:
        kept = self._kept.get((tenant, request_id))
        if kept is None:
            kept = self._kept[tenant, request_id] = _Kept(0, ())
            if len(self._kept) > self._requests_max:
                self._kept.popitem(last=False)
        if kept.count >= self._spans_max:
            return
        if type(spans) is LazySpans:
            if spans.tell not in self._facts:
                self._facts[spans.tell] = msgspec.msgpack.Decoder(type(spans.facts))
            # How many they are will be seen when they are told.
            kept.count += 1
            kept.pieces = (*kept.pieces, (spans.tell, _pack(spans.facts)))
        elif new := spans[: self._spans_max - kept.count]:
            kept.count += len(new)
            kept.pieces = (*kept.pieces, (None, _pack(new)))

    def spans(self, request_id: str, tenant: str | None = None) -> tuple[Span, ...]:
        if tenant is None:
            found = [span for (_, each), kept in self._kept.items() if each == request_id for span in self._of(kept)]
        else:
            found = self._of(self._kept.get((tenant, request_id)))
        return tuple(sorted(found, key=lambda span: span.start_s))

    def _of(self, kept: _Kept | None) -> list[Span]:
        pieces = () if kept is None else kept.pieces
        return [span for tell, piece in pieces for span in self._told(tell, piece)][: self._spans_max]

    def _told(self, tell: MakeSpans | None, piece: bytes) -> tuple[Span, ...]:
        return _unpack(piece) if tell is None else tell(self._facts[tell].decode(piece))


class SpanExporter(Protocol):
    """Takes finished spans out of the process without blocking."""

    def export(self, request_id: str, spans: Sequence[Span]) -> None: ...

    def close(self) -> None:
        """Send what is queued, within a bound."""
        ...


class ExportingRecorder:
    """Keeps spans in `inner` and exports those of its own process.

    A router also records what workers reported to it; workers export those themselves, so only spans whose
    `service` is `service` leave from here.
    """

    def __init__(self, inner: Recorder, service: str, exporter: SpanExporter) -> None:
        self._inner = inner
        self._service = service
        self._exporter = exporter

    def record(self, request_id: str, spans: Sequence[Span], tenant: str = "") -> None:
        self._inner.record(request_id, spans, tenant)
        own = [span for span in spans if span.service == self._service]
        if own:
            self._exporter.export(request_id, own)

    def spans(self, request_id: str, tenant: str | None = None) -> tuple[Span, ...]:
        return self._inner.spans(request_id, tenant)


@dataclass(frozen=True)
class Telemetry:
    """A process's recorder and how to end it."""

    recorder: Recorder
    exporter: SpanExporter | None = None

    def close(self) -> None:
        if self.exporter is not None:
            self.exporter.close()


def endpoint_from(environment: Mapping[str, str]) -> str:
    """The OTLP endpoint OpenTelemetry's own variables name, or an empty string."""
    return next((environment[name] for name in ENDPOINT_VARIABLES if environment.get(name)), "")


def open_telemetry(service: str, endpoint: str = "", instance: str = "", requests_max: int = 4096) -> Telemetry:
    """The recorder of a process; exports spans of `service` over OTLP gRPC when `endpoint` is not empty.

    `instance` tells processes of one service apart, such as a worker's id.

    The OpenTelemetry SDK is imported only when spans are exported, so that a process without it starts faster and
    stays smaller.
    """
    ring = RingRecorder(requests_max)
    if not endpoint:
        return Telemetry(ring)
    from tandem.process.telemetry_otlp import OtlpExporter

    exporter = OtlpExporter(service, instance or service, endpoint)
    return Telemetry(ExportingRecorder(ring, service, exporter), exporter)
