"""Spans as values: what a stage of a request did, when, and with which figures.

Workers send theirs up the link when a request ends; the router keeps the last few thousand requests for
`tandem explain`, and every process hands its own to OpenTelemetry when an exporter is configured.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, overload

import msgspec

Attribute = str | int | float | bool

FOR_OPERATORS: Final = "operator."
"""The prefix of attributes that only the operator of the service may see, not the tenant whose request it is."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """One stage. Times are wall-clock seconds; identifiers are W3C trace-context sizes, in hex."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    start_s: float
    end_s: float
    attributes: dict[str, Attribute]


_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-|\Z)")
"""Version, trace, span, flags; later versions may have more after them."""
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """The part of W3C `traceparent` that travels with a request."""

    trace_id: str
    span_id: str
    sampled: bool = True

    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def parse_traceparent(header: str) -> TraceContext | None:
    """A context from a `traceparent` header (version 00), or None when it is not one."""
    found = _TRACEPARENT.match(header.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags = found.groups()
    if version == "ff" or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1))


class LazySpans(Sequence[Span]):
    """Spans kept as facts and made into spans only when they are read, which for most requests never happens. `tell`
    is a module's function of the facts alone, which a recorder may keep packed until then."""

    __slots__ = ("_told", "facts", "tell")

    def __init__(self, facts: msgspec.Struct, tell: Callable[[Any], tuple[Span, ...]]) -> None:
        self.facts = facts
        self.tell = tell
        self._told: tuple[Span, ...] | None = None

    @overload
    def __getitem__(self, index: int) -> Span: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Span, ...]: ...

    def __getitem__(self, index: int | slice) -> Span | tuple[Span, ...]:
        return self._spans()[index]

    def __len__(self) -> int:
        return len(self._spans())

    def _spans(self) -> tuple[Span, ...]:
        if self._told is None:
            self._told = self.tell(self.facts)
        return self._told


class Recorder(Protocol):
    """The destination of finished spans: a ring for `tandem explain`, and OpenTelemetry when configured."""

    def record(self, request_id: str, spans: Sequence[Span], tenant: str = "") -> None:
        """Keep spans of a tenant's request; workers know of no tenants. Never blocks, never raises."""
        ...

    def spans(self, request_id: str, tenant: str | None = None) -> tuple[Span, ...]:
        """The spans known of a tenant's requests with this id, oldest first; with `tenant` None, of every tenant's.
        Empty when unknown or forgotten."""
        ...


class NullRecorder:
    """Keeps nothing."""

    def record(self, request_id: str, spans: Sequence[Span], tenant: str = "") -> None:
        return None

    def spans(self, request_id: str, tenant: str | None = None) -> tuple[Span, ...]:
        return ()
