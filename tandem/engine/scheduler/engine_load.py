"""The load of an engine, as its worker reports it."""

from tandem.core.messages import Load, StepFit
from tandem.engine.scheduler.scheduler_state import SchedulerState
from tandem.engine.scheduler.step_model import PromptCost
from tandem.engine.scheduler.throughput import Throughput


def load_of(
    state: SchedulerState,
    figures: Throughput,
    cost: PromptCost | None,
    longest_step_s: float,
    fit: StepFit | None,
) -> Load:
    """The figures of this moment; `longest_step_s` is predicted. Prompt tokens that are being fetched, or are to be,
    do not count as queued."""
    batch, pool = state.batch, state.kv_cache.pool
    queued = state.waiting.tokens
    queued += sum(sequence.length - sequence.computed for sequence in batch.prefilling)
    queued += sum(sequence.beyond_fetch for sequence in batch.loading)
    return Load(
        running=batch.width,
        waiting=len(state.waiting),
        queued_prompt_tokens=queued,
        blocks_free=pool.available,
        blocks_cached=pool.cached,
        blocks_exported=state.kv_cache.leases.exported,
        step_s=figures.step_s,
        prefill_tokens_per_s=figures.prefill_tokens_per_s,
        decode_tokens_per_s=figures.decode_tokens_per_s,
        preemptions=state.preemptions,
        prefill_token_s=cost.token if cost is not None else 0.0,
        prefill_position_s=cost.position if cost is not None else 0.0,
        longest_step_s=max(longest_step_s, figures.prompt_step_s),
        fit=fit,
    )
