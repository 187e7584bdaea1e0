"""What the front door records about a request: its root span and the figures seen from the client's side.

As in dispatch, only the facts are gathered; they become spans when they are read.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from router.api.errors import shortened
from router.api.request_context import RequestContext, TokenizeSpan
from router.api.response import ResponseEnd
from router.generation import Usage
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.metrics import Meter
from tandem.core.slo import Latency, Slo
from tandem.core.spans import Attribute, LazySpans, Recorder, Span

SERVICE = "router"
_UNKNOWN_TIER: Final = "unknown"
"""The tier of cached tokens that placement counted on and no worker reported."""


class ApiTraceFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All of the front door's spans of one request; times are wall-clock seconds."""

    trace_id: str
    span_id: str
    parent_id: str
    start_s: float
    end_s: float
    attributes: dict[str, Attribute]
    tokenized: TokenizeSpan | None


def build_spans(facts: ApiTraceFacts) -> tuple[Span, ...]:
    """The spans."""
    trace_id, above, stage = facts.trace_id, facts.parent_id, facts.tokenized
    root = Span(trace_id, facts.span_id, above, "request", SERVICE, facts.start_s, facts.end_s, facts.attributes)
    if stage is None:
        return (root,)
    counted: dict[str, Attribute] = {"prompt_tokens": stage.prompt_tokens}
    below = Span(trace_id, stage.span_id, facts.span_id, "tokenize", SERVICE, stage.start_s, stage.end_s, counted)
    return root, below


class RequestTelemetry:
    """One per router. Stage times and token counts go to the meter, spans to the recorder."""

    def __init__(
        self, clock: Clock, entropy: Entropy, meter: Meter, recorder: Recorder, slo: Callable[[str], Slo]
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._meter = meter
        self._recorder = recorder
        self._slo = slo

    def tokenized(self, arrival: RequestContext, started: float, prompt_tokens: int) -> None:
        """Rendering and tokenizing took from `started` (wall clock) until now."""
        ended = self._clock.wall()
        self._meter.observe("tandem_stage_seconds", ended - started, "tokenize")
        arrival.tokenized = TokenizeSpan(self._entropy.token(8).hex(), started, ended, prompt_tokens)

    def gap(self, model: str, gap_s: float) -> None:
        """A sampled time between two tokens."""
        self._meter.observe("tandem_itl_seconds", gap_s, model)

    def refused(self, arrival: RequestContext, code: str, reason: str) -> None:
        """The request ended before it was dispatched."""
        if code != "cancelled":
            self._meter.add("tandem_refusals_total", 1.0, code)
        figures = _identity(arrival)
        figures["outcome"], figures["reason"] = code, shortened(reason)
        self._record(arrival, figures)

    def ended(self, arrival: RequestContext, ended: ResponseEnd, model: str) -> None:
        """A dispatched request ended, whichever way."""
        outcome = "ok" if ended.error is None else ended.error.code
        figures = _identity(arrival)
        figures["outcome"], figures["model"], figures["completion_tokens"] = outcome, model, ended.delivered
        if ended.error is not None:
            figures["reason"] = shortened(ended.error.message)
        if ended.usage is not None:
            figures["prompt_tokens"] = ended.usage.prompt_tokens
            figures["cached_tokens"] = ended.usage.cached_tokens
            for tier, count in (ended.usage.by_tier or {}).items():
                figures[f"cached_{tier}"] = count
        if ended.first_output is not None:
            figures["ttft_ms"] = (ended.first_output - arrival.received) * 1e3
        self._count(arrival, ended, model, outcome)
        self._record(arrival, figures)

    def resumed(self, arrival: RequestContext, ended: ResponseEnd, model: str) -> None:
        """Record the end of a connection that continued a resumable answer. The connection does not show how soon the
        answer came."""
        outcome = "ok" if ended.error is None else ended.error.code
        figures = _identity(arrival)
        figures["outcome"], figures["model"], figures["resumed_tokens"] = outcome, model, ended.delivered
        self._meter.add("tandem_requests_total", 1.0, model, outcome)
        self._meter.add("tandem_output_tokens_total", float(ended.delivered), model)
        if ended.usage is not None:
            figures["prompt_tokens"], figures["cached_tokens"] = ended.usage.prompt_tokens, ended.usage.cached_tokens
            figures["completion_tokens"] = ended.usage.completion_tokens
            self._meter.add("tandem_prompt_tokens_total", float(ended.usage.prompt_tokens), model)
            self._count_cached(ended.usage)
        self._record(arrival, figures)

    def _count(self, arrival: RequestContext, ended: ResponseEnd, model: str, outcome: str) -> None:
        if ended.error is not None and ended.first_output is None and outcome != "cancelled":
            self._meter.add("tandem_refusals_total", 1.0, outcome)
        self._meter.add("tandem_requests_total", 1.0, model, outcome)
        self._meter.add("tandem_output_tokens_total", float(ended.delivered), model)
        if ended.usage is not None:
            self._meter.add("tandem_prompt_tokens_total", float(ended.usage.prompt_tokens), model)
            self._count_cached(ended.usage)
        if ended.first_output is None:
            return
        ttft_s = ended.first_output - arrival.received
        self._meter.observe("tandem_ttft_seconds", ttft_s, model)
        if ended.usage is None:
            return
        self._meter.observe("tandem_e2e_seconds", ended.at - arrival.received, model)
        tpot_s = (ended.at - ended.first_output) / max(1, ended.delivered - 1)
        if ended.delivered > 1:
            self._meter.observe("tandem_tpot_seconds", tpot_s, model)
        if self._slo(model).met_by(Latency(ttft_s, ended.at - arrival.received, tpot_s)):
            self._meter.add("tandem_goodput_requests_total", 1.0, model)

    def _count_cached(self, usage: Usage) -> None:
        by_tier = usage.by_tier if usage.by_tier is not None else {_UNKNOWN_TIER: usage.cached_tokens}
        for tier, count in by_tier.items():
            self._meter.add("tandem_cached_tokens_total", float(count), tier)

    def _record(self, arrival: RequestContext, figures: dict[str, Attribute]) -> None:
        trace, ended = arrival.trace, self._clock.wall()
        facts = ApiTraceFacts(
            trace.trace_id, trace.span_id, arrival.parent_id, arrival.received_wall, ended, figures, arrival.tokenized
        )
        self._recorder.record(arrival.request_id, LazySpans(facts, build_spans), arrival.caller.tenant)


def _identity(arrival: RequestContext) -> dict[str, Attribute]:
    return {"request_id": arrival.request_id, "tenant": arrival.caller.tenant, "parts": arrival.parts}
