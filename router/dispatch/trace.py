"""Dispatch's spans of one request: `dispatch` (below the front door's root) with `queue`, and per attempt `place` and
`attempt`; the workers' spans hang below `attempt`.

While a request runs, only the facts are gathered; they become spans when they are read. Span times are wall-clock;
they are derived from the request's own pair of stamps, so a step of the wall clock in mid-request does not tear its
story apart.
"""

from typing import Final

import msgspec

from router.dispatch.attempt import Attempt
from router.dispatch.why_missed import Evidence, Reason, why_missed
from router.generation import Generation
from router.placement import Placement
from tandem.core.entropy import Entropy
from tandem.core.spans import FOR_OPERATORS, Attribute, LazySpans, Span

SERVICE: Final = "router"
_IDS: Final = 1 << 64


class Summary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The figures of an ended request: output tokens, attempts, cached prompt tokens if known, how many of them
    placement counted on, when the first token came."""

    accepted: int
    attempts: int
    cached: int | None
    cached_expected: int
    first_at: float | None
    missed: Evidence | None = None
    """What was known, when the request was first placed, of why no more of its prompt was cached."""

    def why_missed(self) -> Reason | None:
        """The reason why no more was cached, as known when the request was placed, unless the worker then found less
        than placement counted on."""
        if self.cached is None or self.cached >= self.cached_expected:
            return None if self.missed is None else why_missed(self.missed)
        sentence = f"{self.cached_expected} cached tokens were counted on, and {self.cached} were there in the end"
        return Reason("gone_meanwhile", self.cached, sentence)


class Wait(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The wait between admission and the first attempt."""

    start: float
    end: float
    reasons: tuple[str, ...]


class AttemptTrace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An attempt, where it was placed and what became of it."""

    placement: Placement
    number: int
    span_id: str
    started: float
    ended: float
    outcome: str
    notes: tuple[str, ...]


class DispatchTraceFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All of a request. Times are the router's own, but for `received_wall`."""

    trace_id: str
    parent_id: str
    dispatch_id: str
    received: float
    received_wall: float
    prompt_tokens: int
    wait: Wait | None
    tried: tuple[AttemptTrace, ...]
    ended: float
    outcome: str
    reason: str
    summary: Summary


class DispatchTrace:
    """Collects what one request's spans are made of. All times given are `Clock.now()` seconds."""

    def __init__(self, generation: Generation, entropy: Entropy) -> None:
        self._generation = generation
        self._entropy = entropy
        self._wait: Wait | None = None
        self._tried: tuple[AttemptTrace, ...] = ()

    def new_span_id(self) -> str:
        return self._entropy.token(8).hex()

    def queued(self, start: float, end: float, reasons: tuple[str, ...]) -> None:
        """The wait between admission and the first attempt."""
        self._wait = Wait(start, end, reasons)

    def attempted(self, attempt: Attempt, end: float, outcome: str) -> None:
        """An attempt ended; `outcome` is `done`, `cancelled`, `moved` or an error code."""
        notes = tuple(attempt.notes)
        tried = AttemptTrace(attempt.placement, attempt.number, attempt.span_id, attempt.started, end, outcome, notes)
        self._tried = (*self._tried, tried)

    def ended(self, end: float, outcome: str, reason: str, summary: Summary) -> LazySpans:
        """Everything, with the `dispatch` span added: `outcome` is `done`, `cancelled` or an error code."""
        generation = self._generation
        return LazySpans(
            DispatchTraceFacts(
                generation.trace.trace_id,
                generation.trace.span_id,
                self.new_span_id(),
                generation.received,
                generation.received_wall,
                generation.prompt_tokens,
                self._wait,
                self._tried,
                end,
                outcome,
                reason,
                summary,
            ),
            build_spans,
        )


def build_spans(facts: DispatchTraceFacts) -> tuple[Span, ...]:
    """The spans of a request. Ids that have not been passed on yet are derived from the id of `dispatch`."""
    spans = list[Span]()
    if facts.wait is not None:
        wait = facts.wait
        why: dict[str, Attribute] = {"reasons": "; ".join(wait.reasons)} if wait.reasons else {}
        spans.append(_span(facts, "queue", wait.start, wait.end, why, _id(facts, 1)))
    for number, tried in enumerate(facts.tried, start=2):
        spans += _attempt(facts, tried, _id(facts, number))
    dispatch = _span(facts, "dispatch", facts.received, facts.ended, _dispatch(facts), facts.dispatch_id)
    return (*spans, msgspec.structs.replace(dispatch, parent_id=facts.parent_id))


def _attempt(facts: DispatchTraceFacts, tried: AttemptTrace, place_id: str) -> tuple[Span, Span]:
    placement, started = tried.placement, tried.started
    where: dict[str, Attribute] = {"mode": placement.mode, "decode": placement.decode}
    if placement.prefill is not None:
        where["prefill"] = placement.prefill
    if placement.path:
        where["path"] = placement.path
    costs: dict[str, Attribute] = {
        "reasons": "; ".join(placement.reasons),
        "costs": placement.cost_table(),
        "cached_tokens_expected": placement.cached_tokens,
    }
    figures: dict[str, Attribute] = {"number": tried.number, "outcome": tried.outcome}
    if tried.notes:
        figures["notes"] = "; ".join(tried.notes)
    place = _span(facts, "place", started, started, {**where, **costs}, place_id)
    attempt = _span(facts, "attempt", started, tried.ended, {**where, **figures}, tried.span_id)
    return msgspec.structs.replace(place, parent_id=tried.span_id), attempt


def _dispatch(facts: DispatchTraceFacts) -> dict[str, Attribute]:
    summary = facts.summary
    attributes: dict[str, Attribute] = {
        "outcome": facts.outcome,
        "prompt_tokens": facts.prompt_tokens,
        "completion_tokens": summary.accepted,
        "attempts": summary.attempts,
    }
    if summary.cached is not None:
        attributes["cached_tokens"] = summary.cached
    if (missed := summary.why_missed()) is not None:
        attributes |= {"missed": missed.kind, "missed_token": missed.token, "missed_because": missed.sentence}
        if missed.for_operator:
            attributes[f"{FOR_OPERATORS}missed_because"] = missed.for_operator
    if summary.first_at is not None:
        attributes["ttft_ms"] = (summary.first_at - facts.received) * 1e3
    if facts.reason:
        attributes["reason"] = facts.reason
    return attributes


def _span(
    facts: DispatchTraceFacts, name: str, start: float, end: float, attributes: dict[str, Attribute], span_id: str
) -> Span:
    """Below `dispatch`."""
    to_wall = facts.received_wall - facts.received
    return Span(facts.trace_id, span_id, facts.dispatch_id, name, SERVICE, start + to_wall, end + to_wall, attributes)


def _id(facts: DispatchTraceFacts, number: int) -> str:
    return f"{(int(facts.dispatch_id, 16) + number) % _IDS:016x}"
