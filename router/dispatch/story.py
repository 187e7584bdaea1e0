"""Dispatch's spans of one request: `dispatch` (below the front door's root) with `queue`, and per attempt `place`
and `attempt`; the workers' spans hang below `attempt`.

Span times are wall-clock; they are derived from the request's own pair of stamps, so a step of the wall clock
in mid-request does not tear its story apart.
"""

from dataclasses import dataclass
from typing import Final

from router.dispatch.attempt import Attempt
from router.generation import Generation
from tandem.core.entropy import Entropy
from tandem.core.spans import Attribute, Span

SERVICE: Final = "router"


@dataclass(frozen=True)
class Summary:
    """What a request came to: output tokens, attempts, cached prompt tokens if known, when the first token came."""

    accepted: int
    attempts: int
    cached: int | None
    first_at: float | None


class Story:
    """Collects the spans of one request. All times given are `Clock.now()` seconds."""

    def __init__(self, generation: Generation, entropy: Entropy) -> None:
        self._generation = generation
        self._entropy = entropy
        self._spans: list[Span] = []
        self._dispatch_id = self.new_span_id()

    def new_span_id(self) -> str:
        return self._entropy.token(8).hex()

    def queued(self, start: float, end: float, reasons: tuple[str, ...]) -> None:
        """The wait between admission and the first attempt."""
        self._add("queue", start, end, {"reasons": "; ".join(reasons)} if reasons else {})

    def attempted(self, attempt: Attempt, end: float, outcome: str) -> None:
        """An attempt ended; `outcome` is `done`, `cancelled`, `moved` or an error code."""
        placement = attempt.placement
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
        self._add("place", attempt.started, attempt.started, {**where, **costs}, parent_id=attempt.span_id)
        figures: dict[str, Attribute] = {"number": attempt.number, "outcome": outcome}
        if attempt.notes:
            figures["notes"] = "; ".join(attempt.notes)
        self._add("attempt", attempt.started, end, {**where, **figures}, span_id=attempt.span_id)

    def ended(self, end: float, outcome: str, reason: str, summary: Summary) -> tuple[Span, ...]:
        """Everything, with the `dispatch` span added: `outcome` is `done`, `cancelled` or an error code."""
        attributes: dict[str, Attribute] = {
            "outcome": outcome,
            "prompt_tokens": self._generation.prompt_tokens,
            "completion_tokens": summary.accepted,
            "attempts": summary.attempts,
        }
        if summary.cached is not None:
            attributes["cached_tokens"] = summary.cached
        if summary.first_at is not None:
            attributes["ttft_ms"] = (summary.first_at - self._generation.received) * 1e3
        if reason:
            attributes["reason"] = reason
        self._add(
            "dispatch",
            self._generation.received,
            end,
            attributes,
            span_id=self._dispatch_id,
            parent_id=self._generation.trace.span_id,
        )
        return tuple(self._spans)

    def _add(
        self,
        name: str,
        start: float,
        end: float,
        attributes: dict[str, Attribute],
        *,
        span_id: str | None = None,
        parent_id: str | None = None,
    ) -> None:
        trace = self._generation.trace
        self._spans.append(
            Span(
                trace_id=trace.trace_id,
                span_id=self.new_span_id() if span_id is None else span_id,
                parent_id=self._dispatch_id if parent_id is None else parent_id,
                name=name,
                service=SERVICE,
                start_s=self._wall(start),
                end_s=self._wall(end),
                attributes=attributes,
            )
        )

    def _wall(self, at: float) -> float:
        return self._generation.received_wall + (at - self._generation.received)
