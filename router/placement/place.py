"""The placement decision: a pure function of the request, the workers and the cost model.

Expected cost of a candidate = waiting + computing the uncached prompt + the exposed part of the transfer +
generating the expected answer + what the prompt's computing takes from sequences that already run there. The
least wins; ties go to the fewest sequences in flight, then to the smallest worker id.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.placement.costs import CostModel
from router.placement.decision import Breakdown, Candidate, Placement, PlacementRequest, Unplaced
from router.placement.pairs import UNSEEN, Pairs, look
from router.placement.view import WorkerView
from router.settings import PlacementSettings

Priced = tuple[Breakdown, WorkerView, WorkerView | None]


@dataclass
class _Sorted:
    """Workers by what they can do for one request; `left_out` counts the others by reason."""

    decodes: list[WorkerView] = field(default_factory=list)
    prefills: list[WorkerView] = field(default_factory=list)
    failed_before: list[WorkerView] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    pairs_left_out: dict[str, list[str]] = field(default_factory=dict)
    unproved: list[tuple[str, str]] = field(default_factory=list)
    """Pairs (prefill, decode) whose canary nobody has asked for yet."""
    saturated: bool = False

    def leave_out(self, worker: WorkerView, reason: str) -> None:
        self.left_out.setdefault(reason, []).append(worker.worker_id)

    def leave_out_pair(self, prefill: WorkerView, decode: WorkerView, reason: str) -> None:
        self.pairs_left_out.setdefault(reason, []).append(str(Candidate(decode.worker_id, prefill.worker_id)))

    def sentences(self) -> tuple[str, ...]:
        left_out = (*self.left_out.items(), *self.pairs_left_out.items())
        return tuple(f"{_names(names)} left out: {reason}" for reason, names in left_out)


def place(
    request: PlacementRequest,
    workers: Sequence[WorkerView],
    model: CostModel,
    settings: PlacementSettings,
    pairs: Pairs | None = None,
) -> Placement | Unplaced:
    """Choose workers for a request, or say why there are none. Without `pairs` every pair is trusted."""
    found = _sort(request, workers, settings)
    note = ""
    if not found.decodes and found.failed_before:
        found.decodes = found.failed_before
        note = "only workers that already failed this request are left"
    if not found.decodes:
        return Unplaced(_why_none(found), found.sentences() or (f"no worker serves {request.model}",))
    priced = _price_all(request, found, model, settings, pairs)
    reasons = (_sentence(request, priced, found, settings), *((note,) if note else ()), *found.sentences())
    return _placement(request, priced, reasons, pairs, tuple(found.unproved))


def _sort(request: PlacementRequest, workers: Sequence[WorkerView], settings: PlacementSettings) -> _Sorted:
    found = _Sorted()
    for worker in workers:
        if worker.model != request.model:
            continue
        if not worker.ready:
            found.leave_out(worker, "not ready yet")
        elif worker.draining:
            found.leave_out(worker, "draining")
        elif not _fits(request, worker):
            found.leave_out(worker, f"{request.prompt_tokens} prompt tokens never fit its blocks or context")
        elif worker.role == "prefill":
            _sort_prefill(request, worker, found)
        elif worker.sequences + request.sequences > max(settings.sequences_per_worker_max, request.sequences):
            found.saturated = True
            found.leave_out(worker, f"it has {settings.sequences_per_worker_max} sequences or nearly")
        elif (worker.worker_id, worker.epoch) in request.excluded:
            found.failed_before.append(worker)
        else:
            found.decodes.append(worker)
    return found


def _sort_prefill(request: PlacementRequest, worker: WorkerView, found: _Sorted) -> None:
    if (worker.worker_id, worker.epoch) in request.excluded:
        found.leave_out(worker, "it failed this request before")
    elif not request.local_only:
        found.prefills.append(worker)


def _fits(request: PlacementRequest, worker: WorkerView) -> bool:
    tokens = request.prompt_tokens + (0 if worker.role == "prefill" else request.sequences)
    return tokens <= worker.blocks * worker.layout.block_tokens and request.prompt_tokens < worker.context_tokens


def _why_none(found: _Sorted) -> str:
    if found.saturated:
        return "queue_full"
    if any("never fit" in reason for reason in found.left_out):
        return "out_of_blocks"
    return "no_workers"


def _price_all(
    request: PlacementRequest, found: _Sorted, model: CostModel, settings: PlacementSettings, pairs: Pairs | None
) -> list[Priced]:
    prefills = _prefills_by_cost(request, found.prefills, model)
    locals_ = [(_price_local(request, worker, model, settings), worker) for worker in found.decodes]
    if len(locals_) > settings.candidates_max:
        locals_.sort(key=lambda item: (item[0].total_ms - item[0].interference_ms, item[1].worker_id))
        del locals_[settings.candidates_max :]
    priced: list[Priced] = []
    prompts: dict[str, tuple[float, float]] = {}
    for cost, worker in locals_:
        if not _must_be_local(request, worker, settings):
            partners = _partners(worker, prefills.get(worker.pairing, []), found, pairs, settings.candidates_max)
            priced += _price_pairs(request, worker, partners, cost, model, settings, prompts)
            if settings.prefer == "disaggregated" and partners:
                continue
        priced.append((cost, worker, None))
    if settings.prefer == "disaggregated" and any(prefill is not None for _, _, prefill in priced):
        priced = [item for item in priced if item[2] is not None]
    priced.sort(key=_order)
    return priced


def _order(item: Priced) -> tuple[float, int, str, str]:
    cost, decode, prefill = item
    busy = decode.sequences_in_flight + (prefill.sequences_in_flight if prefill is not None else 0)
    return round(cost.total_ms, 3), busy, decode.worker_id, prefill.worker_id if prefill is not None else ""


def _must_be_local(request: PlacementRequest, decode: WorkerView, settings: PlacementSettings) -> bool:
    if request.local_only or settings.prefer == "local":
        return True
    return settings.prefer == "auto" and _uncached(request, decode) <= settings.local_uncached_tokens_max


def _uncached(request: PlacementRequest, worker: WorkerView) -> int:
    """Prompt tokens to compute there: at least the last one, whose logits are needed."""
    return max(1, request.prompt_tokens - request.cached.get(worker.worker_id, 0))


def _partners(
    decode: WorkerView, prefills: list[WorkerView], found: _Sorted, pairs: Pairs | None, most: int
) -> list[WorkerView]:
    """The first of `prefills` whose blocks are known to reach `decode`; the others before them are left out."""
    if pairs is None:
        return prefills[:most]
    partners: list[WorkerView] = []
    for prefill in prefills:
        if len(partners) == most:
            break
        pair = pairs.get((prefill.worker_id, decode.worker_id), UNSEEN)
        if pair.usable:
            partners.append(prefill)
            continue
        found.leave_out_pair(prefill, decode, pair.reason)
        if pair is UNSEEN:
            found.unproved.append((prefill.worker_id, decode.worker_id))
    return partners


def _prefills_by_cost(
    request: PlacementRequest, workers: list[WorkerView], model: CostModel
) -> dict[int, list[WorkerView]]:
    """Prefill workers by pairing, the cheapest for this request first."""

    def cost(worker: WorkerView) -> tuple[float, int, str]:
        tokens = worker.queued_prompt_tokens + _uncached(request, worker)
        return model.prefill_ms(worker.worker_id, tokens), worker.sequences_in_flight, worker.worker_id

    by_pairing: dict[int, list[WorkerView]] = {}
    for worker in sorted(workers, key=cost) if len(workers) > 1 else workers:
        by_pairing.setdefault(worker.pairing, []).append(worker)
    return by_pairing


def _price_local(
    request: PlacementRequest, worker: WorkerView, model: CostModel, settings: PlacementSettings
) -> Breakdown:
    prefill_ms = model.prefill_ms(worker.worker_id, _uncached(request, worker))
    return Breakdown(
        queue_ms=model.prefill_ms(worker.worker_id, worker.queued_prompt_tokens),
        prefill_ms=prefill_ms,
        transfer_ms=0.0,
        decode_ms=_decode_ms(request, worker, model, settings),
        interference_ms=settings.interference * prefill_ms * (worker.sequences + 1),
    )


def _price_pairs(
    request: PlacementRequest,
    decode: WorkerView,
    prefills: list[WorkerView],
    local: Breakdown,
    model: CostModel,
    settings: PlacementSettings,
    prompts: dict[str, tuple[float, float]],
) -> list[Priced]:
    """`decode` with each of `prefills`. `prompts` keeps what waiting and computing cost there: it is the same for
    every decode worker."""
    layout = decode.layout
    moved_bytes = _uncached(request, decode) * layout.block_bytes // layout.block_tokens
    transfer_ms = model.transfer_ms(moved_bytes)
    overlap, setup_ms = settings.transfer_overlap, settings.transfer_setup_ms
    priced: list[Priced] = []
    for prefill in prefills:
        worker_id = prefill.worker_id
        known = prompts.get(worker_id)
        if known is None:
            queue_ms = model.prefill_ms(worker_id, prefill.queued_prompt_tokens)
            known = prompts[worker_id] = queue_ms, model.prefill_ms(worker_id, _uncached(request, prefill))
        queue_ms, prefill_ms = known
        exposed_ms = max(0.0, transfer_ms - overlap * prefill_ms)
        cost = Breakdown(queue_ms, prefill_ms, setup_ms + exposed_ms, local.decode_ms, 0.0)
        priced.append((cost, decode, prefill))
    return priced


def _decode_ms(request: PlacementRequest, worker: WorkerView, model: CostModel, settings: PlacementSettings) -> float:
    """Time for the expected answer; up to twice that while blocks are short."""
    tokens = min(request.max_tokens, settings.expected_output_tokens)
    answer_ms = tokens * model.step_ms(worker.worker_id, worker.sequences + request.sequences)
    needed = -(-(request.prompt_tokens + tokens * request.sequences) // worker.layout.block_tokens)
    short = max(0, needed - worker.blocks_free)
    return answer_ms * (1.0 + short / needed)


def _placement(
    request: PlacementRequest,
    priced: list[Priced],
    reasons: tuple[str, ...],
    pairs: Pairs | None,
    unproved: tuple[tuple[str, str], ...],
) -> Placement:
    _, decode, prefill = priced[0]
    computing = decode if prefill is None else prefill
    uncached = _uncached(request, computing)
    return Placement(
        mode="local" if prefill is None else "disaggregated",
        decode=decode.worker_id,
        prefill=None if prefill is None else prefill.worker_id,
        prefill_tokens=uncached,
        cached_tokens=request.prompt_tokens - uncached,
        costs=tuple((Candidate(d.worker_id, "" if p is None else p.worker_id), cost) for cost, d, p in priced[:16]),
        reasons=reasons,
        path="" if prefill is None else look(pairs, prefill.worker_id, decode.worker_id).path,
        unproved=unproved,
        decode_cached_tokens=request.cached.get(decode.worker_id, 0),
    )


def _sentence(request: PlacementRequest, priced: list[Priced], found: _Sorted, settings: PlacementSettings) -> str:
    _, decode, prefill = priced[0]
    if prefill is not None:
        return f"prefill on {prefill.worker_id}, decode on {decode.worker_id}: {_lead(priced)}"
    return f"{decode.worker_id} computes the prompt itself: {_why_local(request, decode, priced, found, settings)}"


def _lead(priced: list[Priced]) -> str:
    expected = f"{priced[0][0].total_ms:.1f} ms expected"
    return f"{expected}, {priced[1][0].total_ms:.1f} ms for the next best" if len(priced) > 1 else expected


def _why_local(
    request: PlacementRequest,
    decode: WorkerView,
    priced: list[Priced],
    found: _Sorted,
    settings: PlacementSettings,
) -> str:
    if request.local_only:
        return "a request resumed in several branches is not handed off"
    if settings.prefer == "local":
        return "the setting placement.prefer is local"
    if not found.prefills:
        return "no prefill worker can take it"
    if _must_be_local(request, decode, settings):
        return f"{_uncached(request, decode)} uncached tokens are not worth a transfer"
    if found.pairs_left_out and all(prefill is None for _, _, prefill in priced):
        return "no pair with it has been proved to carry blocks, or none carries them now"
    partners = [worker for worker in found.prefills if worker.pairing == decode.pairing]
    return _lead(priced) if partners else _why_unpaired(decode, found.prefills[0])


def _why_unpaired(decode: WorkerView, prefill: WorkerView) -> str:
    if decode.revision != prefill.revision:
        detail = f"revision {decode.revision} here, {prefill.revision} there"
    elif decode.root != prefill.root:
        detail = "their blocks have different roots (model content, data type or block size)"
    else:
        detail = decode.layout.incompatibility(prefill.layout) or "their layouts differ"
    return f"no prefill worker may be paired with it; {prefill.worker_id}: {detail}"


def _names(workers: list[str]) -> str:
    shown = ", ".join(workers[:3])
    return shown if len(workers) <= 3 else f"{shown} and {len(workers) - 3} more"
