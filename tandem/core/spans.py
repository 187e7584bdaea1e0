"""Spans as values: what a stage of a request did, when, and with which figures.

Workers send theirs up the link when a request ends; the router keeps the last few thousand requests for
`tandem explain`, and every process hands its own to OpenTelemetry when an exporter is configured.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

Attribute = str | int | float | bool


class Span(msgspec.Struct, frozen=True):
    """One stage. Times are wall-clock seconds; identifiers are W3C trace-context sizes, in hex."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    start_s: float
    end_s: float
    attributes: dict[str, Attribute]


class TraceContext(msgspec.Struct, frozen=True):
    """The part of W3C `traceparent` that travels with a request."""

    trace_id: str
    span_id: str
    sampled: bool = True

    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def parse_traceparent(header: str) -> TraceContext | None:
    """A context from a `traceparent` header (version 00), or None when it is not one."""
    parts = header.strip().split("-")
    if len(parts) < 4 or len(parts[0]) != 2 or len(parts[1]) != 32 or len(parts[2]) != 16 or len(parts[3]) != 2:
        return None
    if parts[0] == "ff" or not all(set(part) <= set("0123456789abcdef") for part in parts[:4]):
        return None
    if set(parts[1]) == {"0"} or set(parts[2]) == {"0"}:
        return None
    return TraceContext(parts[1], parts[2], bool(int(parts[3], 16) & 1))


class Recorder(Protocol):
    """Where finished spans go: a ring for `tandem explain`, and OpenTelemetry when configured."""

    def record(self, request_id: str, spans: Sequence[Span]) -> None:
        """Keep spans of a request. Never blocks, never raises."""
        ...

    def spans(self, request_id: str) -> tuple[Span, ...]:
        """What is known of a request, oldest first; empty when unknown or forgotten."""
        ...


class NullRecorder:
    """Keeps nothing."""

    def record(self, request_id: str, spans: Sequence[Span]) -> None:
        return None

    def spans(self, request_id: str) -> tuple[Span, ...]:
        return ()
