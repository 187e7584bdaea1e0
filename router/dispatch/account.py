"""What a request came to: its story in spans, how much of its prompt was cached, when its first token came."""

from router.dispatch.attempt import Attempt, Leg
from router.dispatch.context import Tools
from router.dispatch.story import Story, Summary
from router.generation import Generation, Usage
from tandem.core.messages import AttemptReport
from tandem.core.spans import Span


class Account:
    """Kept by one request, from its arrival to its end."""

    def __init__(self, tools: Tools, generation: Generation, arrived: float) -> None:
        self._tools = tools
        self._generation = generation
        self._arrived = arrived
        self._story = Story(generation, tools.entropy)
        self._cached_expected = 0
        self._first_at: float | None = None
        self.cached: int | None = None
        """Prompt tokens nobody had to compute, once a worker has told."""

    def new_span_id(self) -> str:
        return self._story.new_span_id()

    def placed_first(self, reasons: tuple[str, ...]) -> None:
        """The wait in the queue is over; `reasons` say what it waited for."""
        now = self._tools.clock.now()
        self._story.queued(self._arrived, now, reasons)
        self._tools.meter.observe("tandem_stage_seconds", now - self._arrived, "queue")

    def taken_over(self, cached_tokens: int) -> None:
        """Another router began the request; its placement counted on so many cached tokens."""
        self._cached_expected = cached_tokens

    def advanced(self) -> None:
        """Positions were accepted."""
        if self._first_at is None:
            self._first_at = self._tools.clock.now()

    def attempted(self, attempt: Attempt, outcome: str) -> None:
        """An attempt ended; `outcome` is `done`, `cancelled`, `moved` or an error code."""
        self._story.attempted(attempt, self._tools.clock.now(), outcome)
        self._tools.meter.add("tandem_attempts_total", 1.0, outcome)
        self._cached_expected = attempt.placement.cached_tokens

    def reported(self, leg: Leg, report: AttemptReport) -> None:
        """The figures of a leg; the first that computed the prompt tells how much of it was cached."""
        if report.spans:
            self._tools.recorder.record(self._generation.request_id, report.spans)
            self._tools.costs.observe_spans(report.spans)
        worked = report.tokens_computed or report.tokens_reused
        if leg.computes_prompt and worked and self.cached is None:
            self.cached = min(report.tokens_reused, self._generation.prompt_tokens)

    def usage(self, accepted: int) -> Usage:
        """Counts for the answer; without a report the cached tokens are those placement counted on."""
        cached = self.cached if self.cached is not None else self._cached_expected
        return Usage(self._generation.prompt_tokens, accepted, cached)

    def close(self, outcome: str, reason: str, accepted: int, attempts: int) -> None:
        """The request is over: record its spans."""
        summary = Summary(accepted, attempts, self.cached, self._first_at)
        spans: tuple[Span, ...] = self._story.ended(self._tools.clock.now(), outcome, reason, summary)
        self._tools.recorder.record(self._generation.request_id, spans)
