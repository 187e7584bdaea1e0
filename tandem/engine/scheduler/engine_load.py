"""The load of an engine, as its worker reports it."""

from tandem.core.messages import Load, StepFit
from tandem.engine.scheduler.kv_cache_manager import KvCacheManager
from tandem.engine.scheduler.step_model import PromptCost
from tandem.engine.scheduler.throughput import Throughput


def load_of(
    residence: KvCacheManager,
    figures: Throughput,
    cost: PromptCost | None,
    longest_step_s: float,
    fit: StepFit | None,
) -> Load:
    """The figures of this moment; `longest_step_s` is predicted. Prompt tokens that are being fetched, or are to be,
    do not count as queued."""
    queued = residence.computable.tokens + residence.bringable.tokens
    queued += sum(sequence.beyond_bring for sequence in residence.aside)
    queued += sum(sequence.length - sequence.computed for sequence in residence.batch.prefilling)
    queued += sum(sequence.beyond_fetch for sequence in residence.batch.loading)
    return Load(
        running=residence.batch.width,
        waiting=residence.waiting,
        queued_prompt_tokens=queued,
        blocks_free=residence.pool.available,
        blocks_cached=residence.pool.cached,
        blocks_exported=residence.leases.exported,
        step_s=figures.step_s,
        prefill_tokens_per_s=figures.prefill_tokens_per_s,
        decode_tokens_per_s=figures.decode_tokens_per_s,
        preemptions=residence.preemptions,
        prefill_token_s=cost.token if cost is not None else 0.0,
        prefill_position_s=cost.position if cost is not None else 0.0,
        longest_step_s=max(longest_step_s, figures.prompt_step_s),
        fit=fit,
    )
