"""The cost of a prompt to others: running sequences, prompts that come after it, prefixes that make room. Pure."""

from router.placement.scorers.context import PromptPlan, ScoringContext
from router.placement.view import WorkerView


def interference_ms(ask: ScoringContext, worker: WorkerView, queue_ms: float, way: PromptPlan) -> float:
    """Together, in milliseconds of others.

    - Sequences that run beside the prompt, and the next one, pay a share of its time each.
    - Prompts that arrive while the worker is busy wait for this one, too, or go where they cost more.
    - New blocks push out others, now or when the free ones are used up. A share of these would have been used again
      and has to be computed again, which costs that prompt and those beside it: more where a cache is turned over
      faster. In a lull that will mostly be later, beside as many sequences as usual, not as few as now.
    """
    prefill_ms = way.prefill_ms
    delayed = ask.arrivals_per_ms * (queue_ms + prefill_ms)
    again = ask.displacing * ask.trend.fills.get(worker.worker_id, 0.0)
    if worker.takes_prompts:
        # Streams that began before it took prompts end there.
        beside = 0.0 if worker.role == "prefill" else ask.stalled * worker.decoding
        return prefill_ms * (beside + delayed) + way.new_ms * again
    # Who waits for a prompt of his own has no stream yet that an objective could miss.
    beside = ask.stalled * (worker.sequences if ask.stakes is None else worker.decoding)
    later = beside if beside > ask.usually else ask.usually
    return prefill_ms * (beside + ask.stalled + delayed) + way.new_ms * again * (1.0 + later)
