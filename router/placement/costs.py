"""The cost of work on each worker, learned from what workers report. Pure; one owner changes it in place."""

from collections.abc import Sequence

from router.placement.learning.answer_lengths import AnswerLengths
from router.placement.learning.first_tokens import SHARPNESS, FirstTokens
from router.placement.learning.pool import Shape
from router.placement.learning.pools import Kind, Pools
from router.placement.learning.prefill_costs import PrefillCosts
from router.placement.learning.step_costs import StepCosts
from router.placement.learning.transfer_costs import TransferCosts
from router.settings import CostPriors
from tandem.core.messages import Load
from tandem.core.spans import Span


class CostModel:
    """Prompts, decode steps, transfers and the length of answers: what teaches them, and what they are expected to
    take. Times are in milliseconds."""

    def __init__(self, priors: CostPriors) -> None:
        self.prefill = PrefillCosts(priors.prefill_tokens_per_s)
        self.steps = StepCosts(priors.step_ms, priors.step_ms_per_sequence, priors.step_ms_per_1k_context / 1e3)
        prior = Shape(*self.steps.general(), 0.0, 1e3 / priors.prefill_tokens_per_s, 0.0)
        self._pools = Pools(self.prefill, self.steps, prior)
        self.transfers = TransferCosts(priors.transfer_bytes_per_s)
        self.answers = AnswerLengths()
        self._first: dict[str, FirstTokens] = {}
        """The errors of expected first tokens, by model."""
        self._batches: dict[str, tuple[int, int]] = {}
        """By worker, its sequences and the positions they attend to, as of its last load figures."""

    def observe_load(self, worker_id: str, load: Load, attended_tokens: int = 0, kind: Kind = ()) -> None:
        """Learn from a worker's load figures; zeros mean that nothing was measured. `attended_tokens` are the
        positions its running sequences attend to, as far as the router knows; workers of one `kind` are as fast."""
        self._pools.observe(worker_id, kind, load.fit)
        if load.prefill_tokens_per_s > 0:
            self.prefill.observe_rate(worker_id, load.prefill_tokens_per_s)
        self.steps.observe(worker_id, load, attended_tokens)
        self._batches[worker_id] = load.running, attended_tokens

    def observe_spans(self, worker_id: str, spans: Sequence[Span], *, alone: bool = False) -> None:
        """Learn from what a worker reported of an attempt. `alone`: no other prompt waited or was computed there."""
        pulled = any(span.name == "kv.pull" for span in spans)
        for span in spans:
            if span.name == "kv.pull":
                self._observe_pull(worker_id, span)
            elif span.name == "prefill":
                self._observe_prefill(worker_id, span, alone and not pulled)

    def observe_first(self, model: str, expected_ms: float, actual_ms: float) -> None:
        """A placement's first token came, so long after it was placed."""
        known = self._first.get(model)
        if known is None:
            known = self._first[model] = FirstTokens()
        known.observe(expected_ms, actual_ms)

    def sharpness(self, model: str) -> float:
        """The sharpness that says how well this model's first tokens are expected: see `FirstTokens`."""
        known = self._first.get(model)
        return SHARPNESS if known is None else known.sharpness

    def observe_answer(self, max_tokens: int, tokens: float) -> None:
        """A sequence ended after so many output tokens, of at most `max_tokens`."""
        self.answers.observe(max_tokens, tokens)

    def forget(self, worker_id: str) -> None:
        """The worker is gone; its successor may be another machine."""
        self._pools.forget(worker_id)
        self.prefill.forget(worker_id)
        self.steps.forget(worker_id)
        self.transfers.forget(worker_id)
        self._batches.pop(worker_id, None)

    def prefill_ms(self, worker_id: str, uncached: int, cached: int = 0) -> float:
        """Computing `uncached` prompt tokens after `cached` ones, without the steps of the batch beside."""
        return self.prefill.terms(worker_id).ms(uncached, cached)

    def step_ms(self, worker_id: str, sequences: int, attended_tokens: int = 0) -> float:
        """Expected decode step with `sequences` in the batch, which attend to so many positions together."""
        return self.steps.terms(worker_id).ms(sequences, attended_tokens)

    def transfer_ms(self, moved_bytes: int, kind: str = "peer") -> float:
        """Moving so many bytes from a holder of this kind, without what it takes to begin."""
        return moved_bytes * 1e3 / self.transfers.rate(kind)

    def _observe_pull(self, worker_id: str, span: Span) -> None:
        """Learn from a pull. Pulls report their bytes and the rate while there were blocks to pull."""
        moved_bytes, gb_per_s = span.attributes.get("bytes"), span.attributes.get("gb_per_s")
        kind = span.attributes.get("kind", "peer")
        if not isinstance(moved_bytes, int) or not isinstance(gb_per_s, float):
            return
        if kind in ("dram", "nvme"):
            self.transfers.observe_read(worker_id, str(kind), moved_bytes, gb_per_s * 1e9)
        else:
            self.transfers.observe(str(kind), moved_bytes, gb_per_s * 1e9)

    def _observe_prefill(self, worker_id: str, span: Span, alone: bool) -> None:
        """Learn from a computed prompt. Every step has its fixed part, even where nothing runs beside the prompt. A
        worker that does not report how many steps the prompt took is taken to have needed one."""
        computed, reused = span.attributes.get("tokens_computed"), span.attributes.get("tokens_reused")
        if isinstance(computed, int) and isinstance(reused, int):
            ms, chunks = (span.end_s - span.start_s) * 1e3, span.attributes.get("chunks")
            steps = chunks if isinstance(chunks, int) and chunks > 0 else 1
            steps_ms = steps * self.steps.usual(worker_id).ms(*self._batches.get(worker_id, (0, 0)))
            self.prefill.observe_prompt(worker_id, computed, reused, ms, alone=alone, steps_ms=steps_ms, steps=steps)
