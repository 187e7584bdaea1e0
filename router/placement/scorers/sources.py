"""Whom a worker should fetch leading blocks of a prompt from. Pure; asked for the winner of a decision only."""

from typing import Final

from router.placement.decision import SourceChoice
from router.placement.scorers.context import ScoringContext
from router.placement.scorers.prompt import with_tiers
from router.placement.view import WorkerView

_SOURCES_MAX: Final = 2


def sources(ask: ScoringContext, worker: WorkerView) -> tuple[SourceChoice, ...]:
    """The cheapest first; the next best is one, too, should the first not deliver. Each of them beats computing."""
    holders = ask.holders.get(worker.pairing)
    if not holders:
        return ()
    terms, total, size = ask.prefill_terms[worker.worker_id], ask.request.prompt_tokens, worker.block_tokens
    held = ask.held.get(worker.worker_id)
    blocks = max(held.hbm if held is not None else 0, ask.promised.get((worker.root, worker.worker_id), 0))
    _, there = with_tiers(ask, worker, terms, blocks)
    if holders[0].tokens <= there:
        return ()
    alone_ms = terms.ms(total - there, there)
    found: list[tuple[float, str, SourceChoice]] = []
    for holder in holders:
        cached = holder.tokens
        if cached <= there or holder.worker_id == worker.worker_id:
            continue
        brought_ms = holder.begin_ms + (cached - there) / size * holder.block_ms
        total_ms = brought_ms + terms.ms(total - cached, cached)
        if total_ms < alone_ms:
            choice = SourceChoice(holder.worker_id, holder.kind, holder.blocks, brought_ms)
            found.append((total_ms, holder.worker_id, choice))
    found.sort()
    return tuple(choice for _, _, choice in found[:_SOURCES_MAX])
