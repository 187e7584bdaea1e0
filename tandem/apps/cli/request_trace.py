"""The spans of one request as facts: what ran where, what was moved, what was computed. Pure.

Span names are those the services give: `request`, `tokenize`, `queue`, `place`, `attempt` on the router; `queue`,
`kv.wait`, `prefill`, `kv.pull`, `decode` on workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tandem.core.spans import Span

ROOT: Final = "request"
PULL: Final = "kv.pull"


@dataclass(frozen=True)
class RequestTrace:
    """Spans oldest first, the one that contains all first; at least one."""

    spans: tuple[Span, ...]

    @property
    def root(self) -> Span:
        return self.spans[0]

    @property
    def begin_s(self) -> float:
        return min(span.start_s for span in self.spans)

    @property
    def end_s(self) -> float:
        return max(span.end_s for span in self.spans)

    def named(self, name: str) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span.name == name)

    def depth(self, span: Span) -> int:
        """The number of the request's spans that are ancestors of this one."""
        above = {other.span_id: other for other in self.spans}
        depth, parent = 0, above.get(span.parent_id)
        while parent is not None and depth < len(self.spans):
            depth, parent = depth + 1, above.get(parent.parent_id)
        return depth

    def computed(self, worker: str) -> int:
        """Prompt tokens that a worker computed."""
        return sum(number(span, "tokens_computed") for span in self.named("prefill") if place_of(span) == worker)


def assemble_trace(spans: Sequence[Span]) -> RequestTrace:
    """Order spans and join those with the same id (two parts of a process may each report what they know of a
    span)."""
    assert spans, "a story needs spans"
    joined: dict[str, Span] = {}
    for span in spans:
        joined[span.span_id] = _join(joined[span.span_id], span) if span.span_id in joined else span
    ordered = sorted(joined.values(), key=lambda span: (span.name != ROOT, span.start_s, -span.end_s))
    return RequestTrace(tuple(ordered))


def _join(one: Span, other: Span) -> Span:
    start_s, end_s = min(one.start_s, other.start_s), max(one.end_s, other.end_s)
    attributes = one.attributes | other.attributes
    return msgspec.structs.replace(one, start_s=start_s, end_s=end_s, attributes=attributes)


def place_of(span: Span) -> str:
    """The worker, or the service where there is only one."""
    return str(span.attributes.get("worker") or span.service)


def number(span: Span, key: str) -> int:
    """An attribute as a count, 0 when it is not there."""
    value = span.attributes.get(key, 0)
    return int(value) if isinstance(value, (int, float)) else 0


def is_handoff(pull: Span) -> bool:
    """Whether a pull brought blocks that a prefill worker computed for this very request, and not blocks of earlier
    requests."""
    return "kind" not in pull.attributes


def handoff_problems(story: RequestTrace) -> list[str]:
    """Why this request was not served by prefill, transfer and decode; empty when it was.

    Asks for computing on a prefill worker, bytes pulled by another worker, tokens decoded there, and that the
    latter computed none of the prompt.
    """
    problems = []
    handed = [span for span in story.named(PULL) if is_handoff(span)]
    pulls = [span for span in handed if number(span, "bytes") > 0 and "failed" not in span.attributes]
    if not pulls:
        problems.append("no KV bytes were pulled")
    decoders = {place_of(span): None for span in pulls}
    prefillers = [place_of(span) for span in story.named("prefill") if number(span, "tokens_computed") > 0]
    if not any(worker not in decoders for worker in prefillers):
        problems.append("no prefill worker computed the prompt")
    if pulls and not any(place_of(span) in decoders and number(span, "tokens") > 0 for span in story.named("decode")):
        problems.append("the worker that pulled the KV decoded nothing")
    for worker in decoders:
        if story.computed(worker):
            problems.append(f"{worker} computed {story.computed(worker)} prompt tokens that were to be transferred")
    return problems
