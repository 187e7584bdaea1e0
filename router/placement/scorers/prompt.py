"""The cost of having the prompt on a worker: waiting, fetching what others hold, and computing the rest. Pure.

Leading blocks in the worker's own pool cost nothing. The blocks after them are brought from its own tiers, then from
another holder, wherever that is expected to be faster than computing them; how many is chosen for the least sum.
"""

from router.placement.costs import CostModel
from router.placement.learning.prefill_costs import PrefillTerms
from router.placement.scorers.context import PromptPlan, ScoringContext
from router.placement.view import Times, WorkerView


def prompt_price(ask: ScoringContext, worker: WorkerView, times: Times) -> tuple[float, PromptPlan]:
    """Milliseconds that the prompt waits, including the time that its steps take without it, and the cheapest way to
    have it on `worker`. At least the last token is computed, as its logits are needed."""
    worker_id, terms = worker.worker_id, times.prefill
    held = ask.held.get(worker_id)
    blocks = 0 if held is None else held.hbm
    if ask.promised:
        promised = ask.promised.get((worker.root, worker_id), 0)
        blocks = promised if promised > blocks else blocks
    if held is not None and held.total > blocks:
        way = _way(ask, worker, terms, blocks, below=True)
    else:
        alike = worker.pairing, blocks, terms.token, terms.position
        known = ask.ways.get(alike)
        if known is None:
            known = ask.ways[alike] = _way(ask, worker, terms, blocks, below=False)
        way = known
    pieces = way.uncached * terms.pieces_token
    return times.queued_ms + (times.step_ms * pieces if pieces > 1.0 else times.step_ms), way


def tiers_ms(costs: CostModel, worker: WorkerView, dram: int, nvme: int) -> float:
    """Milliseconds to read so many of a worker's blocks back from below its pool; infinite for a tier that the worker
    has not reported."""
    spent = 0.0
    for name, blocks in (("dram", dram), ("nvme", nvme)):
        if blocks:
            tier = next((each for each in worker.tiers if each.name == name), None)
            if tier is None:
                return float("inf")
            spent += costs.transfers.read_ms(worker.worker_id, tier, blocks * worker.block_bytes)
    return spent


def with_tiers(ask: ScoringContext, worker: WorkerView, terms: PrefillTerms, blocks: int) -> tuple[float, int]:
    """Milliseconds that a worker with `blocks` leading blocks in its pool reads from its own tiers, and the tokens
    that it has then. The worker reads all that it has there, or nothing, whichever is faster."""
    total = ask.request.prompt_tokens
    here = min(blocks * worker.block_tokens, total - 1)
    held = ask.held.get(worker.worker_id)
    if held is None or held.total <= blocks:
        return 0.0, here
    there = min(held.total * worker.block_tokens, total - 1)
    read_ms = tiers_ms(ask.costs, worker, held.dram, held.nvme)
    if read_ms + terms.ms(total - there, there) >= terms.ms(total - here, here):
        return 0.0, here
    return read_ms, there


def _way(ask: ScoringContext, worker: WorkerView, terms: PrefillTerms, blocks: int, *, below: bool) -> PromptPlan:
    """The cheapest with the worker's own tiers, and the one other holder that makes it cheapest, if any does.
    `below`: the worker has more of the prompt than its pool does."""
    total, size = ask.request.prompt_tokens, worker.block_tokens
    here = blocks * size if blocks * size < total else total - 1
    read_ms, there = with_tiers(ask, worker, terms, blocks) if below else (0.0, here)
    new_ms = terms.ms(total - here, here)
    prefill_ms = new_ms if there == here else terms.ms(total - there, there)
    fetch_ms, cached, least_ms = read_ms, there, read_ms + prefill_ms
    known, left_ms = there, prefill_ms
    for holder in ask.holders.get(worker.pairing, ()):
        theirs = holder.tokens
        # The longest come first.
        if theirs <= there:
            break
        if holder.worker_id != worker.worker_id:
            brought_ms = read_ms + holder.begin_ms + (theirs - there) / size * holder.block_ms
            if theirs != known:
                known, left_ms = theirs, terms.ms(total - theirs, theirs)
            if brought_ms + left_ms < least_ms:
                fetch_ms, prefill_ms, cached, least_ms = brought_ms, left_ms, theirs, brought_ms + left_ms
    return PromptPlan(fetch_ms, prefill_ms, total - cached, total - here, new_ms)
