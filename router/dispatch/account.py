"""The account of a request: its story in spans, how much of its prompt was cached, when its first token came."""

from collections.abc import Mapping, Sequence

from router.dispatch.attempt import Attempt, WorkerStream
from router.dispatch.deps import DispatchDeps
from router.dispatch.trace import DispatchTrace, Summary
from router.dispatch.why_missed import Evidence
from router.generation import Generation, PrefixReplica, Usage
from tandem.core.messages import AttemptReport
from tandem.core.tiers import bounded


class Account:
    """Kept by one request, from its arrival to its end."""

    def __init__(self, tools: DispatchDeps, generation: Generation, arrived: float) -> None:
        self._tools = tools
        self._generation = generation
        self._arrived = arrived
        self._story = DispatchTrace(generation, tools.entropy)
        self._cached_expected: int | None = None
        """Cached prompt tokens that the first placement counted on. What later placements find may come from an
        attempt of this same request."""
        self._first_at: float | None = None
        self._elsewhere = False
        self.cached: int | None = None
        """Prompt tokens that did not have to be computed; None until a worker has reported them."""
        self._by_tier: Mapping[str, int] | None = None
        self._kept: tuple[PrefixReplica, ...] = ()
        self._prompt_tokens = generation.prompt_tokens
        self.missed: Evidence | None = None
        """Evidence of why no more of the prompt was cached when the request was first placed."""

    def new_span_id(self) -> str:
        return self._story.new_span_id()

    def placed_first(self, reasons: tuple[str, ...]) -> None:
        """The wait in the queue is over; `reasons` say what it waited for."""
        now = self._tools.clock.now()
        self._story.queued(self._arrived, now, reasons)
        self._tools.meter.observe("tandem_stage_seconds", now - self._arrived, "queue")

    def taken_over(self, cached_tokens: int) -> None:
        """Note that another router began the request, and that its placement counted on `cached_tokens` cached
        tokens."""
        self._cached_expected = cached_tokens
        self._elsewhere = True

    @property
    def first_at(self) -> float | None:
        """When the request's first token reached this router; None also when another router may have received it
        before."""
        return None if self._elsewhere else self._first_at

    def advanced(self, attempt: Attempt) -> None:
        """Note that positions of an attempt were accepted. Only the first output of the very first attempt trains the
        estimate of the time to first token, since a later attempt begins where others have been."""
        if self._first_at is None:
            self._first_at = now = self._tools.clock.now()
            if attempt.number == 1 and not self._elsewhere:
                actual_ms = 1e3 * (now - attempt.started)
                self._tools.costs.observe_first(self._generation.model, attempt.placement.first_ms, actual_ms)

    def attempted(self, attempt: Attempt, outcome: str) -> None:
        """An attempt ended; `outcome` is `done`, `cancelled`, `moved` or an error code."""
        self._story.attempted(attempt, self._tools.clock.now(), outcome)
        self._tools.meter.add("tandem_attempts_total", 1.0, outcome)
        if self._cached_expected is None:
            self._cached_expected = attempt.placement.cached_tokens

    def reported(self, leg: WorkerStream, report: AttemptReport) -> None:
        """Record the figures of a leg. The first leg that computed some of the prompt determines how much of the
        prompt was cached, even when its attempt failed: later attempts find what this one has computed."""
        if report.spans:
            self._tools.recorder.record(self._generation.request_id, report.spans, self._generation.tenant)
            self._tools.costs.observe_spans(leg.peer.worker_id, report.spans, alone=leg.alone)
        if report.prompt_tokens:
            self._prompt_tokens = report.prompt_tokens
        if report.pinned_blocks:
            self._kept += (PrefixReplica(leg.peer.worker_id, leg.peer.epoch, report.pinned_blocks),)
        worked = report.tokens_computed or report.tokens_reused
        if leg.computes_prompt and worked and self.cached is None:
            # A worker that knows of no tiers has a pool.
            found = report.tokens_by_tier or {"hbm": report.tokens_reused}
            self._by_tier = bounded(found, self._prompt_tokens)
            self.cached = sum(self._by_tier.values())

    def usage(self, accepted: int) -> Usage:
        """Counts for the answer; without a report the cached tokens are those the first placement counted on."""
        cached = self.cached if self.cached is not None else self._cached_expected or 0
        return Usage(self._prompt_tokens, accepted, cached, self._by_tier, self._kept)

    def close(self, outcome: str, reason: str, lengths: Sequence[int], attempts: int) -> None:
        """The request is over: record its spans. `lengths` are the output tokens of each of its sequences: some may
        be long and some short, which their mean would hide."""
        if outcome == "done":
            for length in lengths:
                self._tools.costs.observe_answer(self._generation.stopping.max_tokens, length)
        summary = Summary(
            sum(lengths), attempts, self.cached, self._cached_expected or 0, self._first_at, self.missed
        )
        untold = self._story.ended(self._tools.clock.now(), outcome, reason, summary)
        self._tools.recorder.record(self._generation.request_id, untold, self._generation.tenant)
