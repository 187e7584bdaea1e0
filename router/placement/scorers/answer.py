"""The cost of generating on a worker: waiting for blocks, and a step per token of the expected answer. Pure.

A batch that is larger than others does not stay so: requests that come after this one and find nothing cached go
elsewhere, and when enough of those have come batches are even again. Until then the effect of the worker's own batch
on a step fades to that of the mean batch. Sequences count for as long as they last: a batch that is about to end
makes little difference. Without an objective for streams, their time counts only as far as steps are slow: being a
little faster is worth little to a stream that is already faster than it is read.
"""

from router.placement.learning.step_costs import StepTerms
from router.placement.scorers.context import Batches, ScoringContext, Trend
from router.placement.view import WorkerView


def uneven_tokens(answer_tokens: float, step_ms: float, batches: Batches, trend: Trend) -> float:
    """Steps of the answer that a difference between batches counts for, when steps take `step_ms`."""
    unbound = trend.arrivals_per_ms * (1.0 - trend.reuse) * step_ms / batches.to_even
    return 0.5 * (answer_tokens if unbound * answer_tokens <= 1.0 else 1.0 / unbound)


def answer_price(ask: ScoringContext, worker: WorkerView, terms: StepTerms) -> tuple[float, float]:
    """Milliseconds for the expected answer in the batch that the request joins, and what all who are in it lose."""
    sequences = float(worker.sequences)
    attended = float(worker.attended_tokens)
    base, sequence, position = terms
    batches, request, load = ask.batches, ask.request, worker.load
    if ask.lasting:
        share = ask.lasting.get(worker.worker_id, 1.0)
        sequences, attended = share * sequences, share * attended
    more_ms = sequence * (sequences - batches.lasting_sequences)
    more_ms += position * (attended - batches.lasting_attended)
    own_ms = ask.answer_tokens * (base + sequence * ask.later_sequences + position * ask.later_attended)
    own_ms += ask.uneven_weight * more_ms
    grown_ms = request.sequences * (sequence + position * request.prompt_tokens)
    if load is not None and (load.waiting or ask.needed > worker.blocks_free * worker.block_tokens):
        own_ms *= 1.0 + _shortage(worker, load.waiting, ask.needed)
    return own_ms, ask.uneven_weight * sequences * grown_ms


def _shortage(worker: WorkerView, waiting: int, needed: float) -> float:
    """The share of an answer's time until there is room: blocks in use come back over the time of one answer, and who
    waits already is served first."""
    if worker.sequences:
        needed += waiting * worker.attended_tokens / worker.sequences
    needed_blocks = needed / worker.block_tokens
    short = needed_blocks - worker.blocks_free
    return max(0.0, short) / max(needed_blocks, worker.blocks - worker.blocks_free)
