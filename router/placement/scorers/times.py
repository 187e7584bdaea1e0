"""The times of a worker that do not depend on the request: from its figures and from what has been learned of it.
Pure.

Most workers have not changed since the last request was placed, so what follows from their figures alone is computed
once per change of a worker, and not once per request.
"""

from router.placement.learning.prefill_costs import PrefillTerms
from router.placement.learning.step_costs import StepTerms
from router.placement.scorers.context import ScoringContext
from router.placement.view import Times, WorkerView


def times_of(ask: ScoringContext, worker: WorkerView) -> Times:
    """The times of a worker as of now. The view drops its times with every change of its figures; learned terms are
    compared with those that the times were computed from."""
    worker_id = worker.worker_id
    prefill, step = ask.prefill_terms[worker_id], ask.step_terms[worker_id]
    known = worker.times
    if (
        known is not None
        and known.prefill is prefill
        and known.step is step
        and known.takes_prompts is worker.takes_prompts
    ):
        return known
    found = worker.times = times(worker, prefill, step)
    return found


def times(worker: WorkerView, prefill: PrefillTerms, step: StepTerms) -> Times:
    """The times of a worker in its present state."""
    steps, base = prefill.steps, step.base
    # What a step that computes a piece of a prompt takes without it; at least one does.
    step_ms = prefill.piece + steps * base
    sequences = worker.decoding if worker.takes_prompts else worker.sequences
    if sequences and worker.role != "prefill":
        step_ms += steps * (step.sequence * sequences + step.position * worker.attended_tokens)
    return Times(
        prefill,
        step,
        worker.takes_prompts,
        queued_ms(worker, prefill) if worker.queued_prompt_tokens > 0 else 0.0,
        step_ms,
        streaming_ms(worker, step),
    )


def queued_ms(worker: WorkerView, terms: PrefillTerms) -> float:
    """Milliseconds that the prompts before a new one take.

    The worker reports an upper bound of the tokens that it has not computed yet: it sees only when a waiting prompt's
    turn comes whether its tokens are cached. This router knows an upper bound of what each prompt that it sent is
    expected to take: it does not know how far the first one has got. So the smaller of both counts, with the worker's
    report alone for the share of other routers.
    """
    own_ms, own_tokens = worker.prompt_ms_in_flight, worker.prompt_tokens_in_flight
    token_ms = own_ms / own_tokens if own_ms > 0.0 and own_tokens > 0 else terms.token
    told_ms = worker.queued_prompt_tokens * token_ms
    if worker.sequences <= 0 or own_tokens > 0 >= own_ms:
        return told_ms
    others = 1.0 - min(1.0, worker.sequences_in_flight / worker.sequences)
    return min(told_ms, own_ms + others * told_ms)


def streaming_ms(worker: WorkerView, terms: StepTerms) -> float:
    """Milliseconds per token of the worker's streams: what its batch takes, or what the worker has reported of its
    steps lately, if that is more: prompts are computed in some of them."""
    batch_ms = terms.base + terms.sequence * worker.sequences + terms.position * worker.attended_tokens
    return batch_ms if batch_ms > worker.steps_ms else worker.steps_ms
