"""Works out what all scorers of one decision share. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from router.placement.costs import CostModel
from router.placement.decision import PlacementRequest
from router.placement.filters.sorting import Suitable
from router.placement.policies.progress import Progress
from router.placement.scorers.answer import uneven_tokens
from router.placement.scorers.context import (
    EVEN,
    NO_SPECULATION,
    Batches,
    Holder,
    ScoringContext,
    SpeculativeBlocks,
    Trend,
)
from router.placement.scorers.prompt import tiers_ms
from router.placement.scorers.stakes import stakes
from router.placement.view import WorkerView
from router.settings import PlacementSettings

_HOLDERS_MAX: Final = 3
"""Holders kept per pairing: as many as a placement names sources, and one more, because no worker fetches from
itself."""
STILL: Final = Trend()


def scoring_context(
    request: PlacementRequest,
    found: Suitable,
    costs: CostModel,
    settings: PlacementSettings,
    promised: SpeculativeBlocks = NO_SPECULATION,
    trend: Trend = STILL,
    progress: Progress | None = None,
    now: float = 0.0,
) -> ScoringContext:
    """One request with everything its price depends on besides the worker."""
    tokens = costs.answers.expected(request.max_tokens, settings.expected_output_tokens)
    batches = _batches(found.decodes)
    step_ms = costs.steps.general(request.model).ms(batches.sequences + request.sequences, batches.attended_tokens)
    lasting = EVEN
    if progress is not None:
        lasting = progress.lasting(found.decodes, step_ms, costs.answers.of(request.max_tokens), now)
    if lasting:
        batches = _lasting(batches, found.decodes, lasting)
    at_stake = stakes(request, tokens, settings, costs.sharpness(request.model), trend.slowdown)
    weight = 1.0 if at_stake is not None else min(1.0, step_ms / settings.itl_target_ms)
    attended = request.sequences * (request.prompt_tokens + tokens / 2)
    return ScoringContext(
        request=request,
        costs=costs,
        settings=settings,
        prefill_terms=costs.prefill.all_terms(),
        step_terms=costs.steps.all_terms(),
        held=request.held,
        holders=_holders(request, found, costs, settings) if settings.fetch else {},
        promised=promised,
        batches=batches,
        answer_tokens=tokens,
        later_sequences=batches.sequences + request.sequences,
        later_attended=batches.attended_tokens + attended,
        needed=request.prompt_tokens + tokens * request.sequences,
        stream_weight=weight,
        uneven_weight=weight * uneven_tokens(tokens, step_ms, batches, trend),
        stalled=settings.interference * weight,
        usually=settings.interference * trend.beside,
        arrivals_per_ms=trend.arrivals_per_ms / len(found.prefills or found.decodes),
        trend=trend,
        lasting=lasting,
        displacing=trend.reuse / trend.mean_fill if trend.mean_fill > 0.0 else 0.0,
        stakes=at_stake,
    )


def _batches(workers: Sequence[WorkerView]) -> Batches:
    count = len(workers)
    sequences = [worker.sequences for worker in workers]
    mean = sum(sequences) / count
    attended = sum([worker.attended_tokens for worker in workers]) / count
    lacking = sum([mean - each for each in sequences if each < mean])
    decoding = sum([worker.decoding for worker in workers]) / count
    return Batches(mean, attended, max(lacking, count), mean, attended, decoding)


def _lasting(batches: Batches, workers: Sequence[WorkerView], lasting: Mapping[str, float]) -> Batches:
    """The batches with `lasting_*`, the means in which each worker counts as much as `lasting` says."""
    sequences = attended = 0.0
    for worker in workers:
        share = lasting.get(worker.worker_id, 1.0)
        sequences += share * worker.sequences
        attended += share * worker.attended_tokens
    return replace(batches, lasting_sequences=sequences / len(workers), lasting_attended=attended / len(workers))


def _holders(
    request: PlacementRequest, found: Suitable, costs: CostModel, settings: PlacementSettings
) -> dict[int, tuple[Holder, ...]]:
    """The workers that hold the most of the prompt, by pairing."""
    by_pairing: dict[int, list[tuple[int, int, int, str, WorkerView]]] = {}
    for worker in found.holders:
        held = request.held[worker.worker_id]
        # Longest, then the most of it in the pool, then the least busy.
        rank = (-held.total, -held.hbm, worker.queued_prompt_tokens, worker.worker_id, worker)
        by_pairing.setdefault(worker.pairing, []).append(rank)
    holders: dict[int, tuple[Holder, ...]] = {}
    for pairing, ranks in by_pairing.items():
        ranks.sort()
        holders[pairing] = tuple([_holder(request, rank[-1], costs, settings) for rank in ranks[:_HOLDERS_MAX]])
    return holders


def _holder(request: PlacementRequest, worker: WorkerView, costs: CostModel, settings: PlacementSettings) -> Holder:
    """A worker as a holder, with how long bringing blocks from it takes. It first reads what is not in its pool, at
    worst all of it."""
    held, kind = request.held[worker.worker_id], "store" if worker.role == "store" else "peer"
    below = held.dram or held.nvme
    begin_ms = settings.transfer_setup_ms + (tiers_ms(costs, worker, held.dram, held.nvme) if below else 0.0)
    tokens = min(held.total * worker.block_tokens, request.prompt_tokens - 1)
    return Holder(worker.worker_id, kind, held.total, tokens, begin_ms, costs.transfer_ms(worker.block_bytes, kind))
