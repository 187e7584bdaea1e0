"""What the front door writes down about a request: its root span and the figures seen from the client's side."""

from typing import Final

from router.front.arrival import Arrival
from router.front.exchange import Ended
from router.front.settings import SloSettings
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.metrics import Meter
from tandem.core.spans import Attribute, Recorder, Span

SERVICE = "router"
_ENGINE_TIER: Final = "engine"
"""Blocks that engines hold for running and finished sequences: the only tier there is."""


class Ledger:
    """One per router. Stage times and token counts go to the meter, spans to the recorder."""

    def __init__(self, clock: Clock, entropy: Entropy, meter: Meter, recorder: Recorder, slo: SloSettings) -> None:
        self._clock = clock
        self._entropy = entropy
        self._meter = meter
        self._recorder = recorder
        self._slo = slo

    def tokenized(self, arrival: Arrival, started: float, prompt_tokens: int) -> None:
        """Rendering and tokenizing took from `started` (wall clock) until now."""
        ended = self._clock.wall()
        self._meter.observe("tandem_stage_seconds", ended - started, "tokenize")
        arrival.spans.append(
            Span(
                trace_id=arrival.trace.trace_id,
                span_id=self._entropy.token(8).hex(),
                parent_id=arrival.trace.span_id,
                name="tokenize",
                service=SERVICE,
                start_s=started,
                end_s=ended,
                attributes={"prompt_tokens": prompt_tokens},
            )
        )

    def gap(self, model: str, gap_s: float) -> None:
        """A sampled time between two tokens."""
        self._meter.observe("tandem_itl_seconds", gap_s, model)

    def refused(self, arrival: Arrival, code: str, reason: str) -> None:
        """The request ended before it was dispatched."""
        if code != "cancelled":
            self._meter.add("tandem_refusals_total", 1.0, code)
        self._record(arrival, {"outcome": code, "reason": reason})

    def ended(self, arrival: Arrival, ended: Ended, model: str) -> None:
        """A dispatched request ended, whichever way."""
        outcome = "ok" if ended.error is None else ended.error.code
        figures: dict[str, Attribute] = {"outcome": outcome, "model": model, "completion_tokens": ended.delivered}
        if ended.error is not None:
            figures["reason"] = ended.error.message
        if ended.usage is not None:
            figures["prompt_tokens"] = ended.usage.prompt_tokens
            figures["cached_tokens"] = ended.usage.cached_tokens
        if ended.first_output is not None:
            figures["ttft_ms"] = (ended.first_output - arrival.received) * 1e3
        self._count(arrival, ended, model, outcome)
        self._record(arrival, figures)

    def resumed(self, arrival: Arrival, ended: Ended, model: str) -> None:
        """A connection that went on with a resumable answer ended. It says nothing about how soon the answer came."""
        outcome = "ok" if ended.error is None else ended.error.code
        figures: dict[str, Attribute] = {"outcome": outcome, "model": model, "resumed_tokens": ended.delivered}
        self._meter.add("tandem_requests_total", 1.0, model, outcome)
        self._meter.add("tandem_output_tokens_total", float(ended.delivered), model)
        if ended.usage is not None:
            figures["prompt_tokens"], figures["cached_tokens"] = ended.usage.prompt_tokens, ended.usage.cached_tokens
            figures["completion_tokens"] = ended.usage.completion_tokens
            self._meter.add("tandem_prompt_tokens_total", float(ended.usage.prompt_tokens), model)
            self._meter.add("tandem_cached_tokens_total", float(ended.usage.cached_tokens), _ENGINE_TIER)
        self._record(arrival, figures)

    def _count(self, arrival: Arrival, ended: Ended, model: str, outcome: str) -> None:
        if ended.error is not None and ended.first_output is None and outcome != "cancelled":
            self._meter.add("tandem_refusals_total", 1.0, outcome)
        self._meter.add("tandem_requests_total", 1.0, model, outcome)
        self._meter.add("tandem_output_tokens_total", float(ended.delivered), model)
        if ended.usage is not None:
            self._meter.add("tandem_prompt_tokens_total", float(ended.usage.prompt_tokens), model)
            self._meter.add("tandem_cached_tokens_total", float(ended.usage.cached_tokens), _ENGINE_TIER)
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
        if ttft_s <= self._slo.ttft_s and tpot_s <= self._slo.tpot_s:
            self._meter.add("tandem_goodput_requests_total", 1.0, model)

    def _record(self, arrival: Arrival, figures: dict[str, Attribute]) -> None:
        identity: dict[str, Attribute] = {
            "request_id": arrival.request_id,
            "tenant": arrival.caller.tenant,
            "parts": arrival.parts,
        }
        root = Span(
            trace_id=arrival.trace.trace_id,
            span_id=arrival.trace.span_id,
            parent_id=arrival.parent_id,
            name="request",
            service=SERVICE,
            start_s=arrival.received_wall,
            end_s=self._clock.wall(),
            attributes={**identity, **figures},
        )
        self._recorder.record(arrival.request_id, (root, *arrival.spans))
