"""Placement by an order of workers instead of costs, shared by the simple policies. Pure.

The order decides which worker generates, and, among prefill workers, which computes the prompt. A prompt that is
worth a transfer at all is handed off whenever a prefill worker can take it. Costs are reported, but do not decide.
"""

from collections.abc import Callable, Sequence

from router.placement.costs import CostModel
from router.placement.decision import Placement, PlacementRequest, Unplaced
from router.placement.filters.partners import Partners
from router.placement.filters.sorting import suitable
from router.placement.pairs import Pairs
from router.placement.picker import placement
from router.placement.policies.scoring_context import scoring_context
from router.placement.reasons import must_be_local
from router.placement.scorers.candidate import Priced, prefill_price, price_local, price_pairs
from router.placement.scorers.context import ScoringContext
from router.placement.view import WorkerView
from router.settings import PlacementSettings

Order = Callable[[Sequence[WorkerView]], Sequence[WorkerView]]
"""Workers, all of one use, the first choice first."""
_PRICED_MAX = 16


def ordered(
    request: PlacementRequest,
    workers: Sequence[WorkerView],
    costs: CostModel,
    settings: PlacementSettings,
    pairs: Pairs | None,
    order: Order,
    why: str,
) -> Placement | Unplaced:
    """Place by `order`; `why` is the sentence that explains it."""
    found = suitable(request, workers, settings)
    if not found.decodes:
        return found.unplaced(request.model)
    ask, partners = scoring_context(request, found, costs, settings), Partners(pairs)
    prefills = order(found.prefills) if found.prefills else ()
    priced = [_price(ask, worker, prefills, partners) for worker in order(found.decodes)[:_PRICED_MAX]]
    if settings.prefer == "disaggregated":
        priced.sort(key=lambda each: each.prefill is None)
    return placement(ask, priced, found, partners, why)


def _price(ask: ScoringContext, worker: WorkerView, prefills: Sequence[WorkerView], partners: Partners) -> Priced:
    """The price of a decode worker with the first prefill worker that can hand over to it, or alone."""
    local = price_local(ask, worker)
    if must_be_local(ask.request, local.way.uncached, ask.settings):
        return local
    paired = [prefill for prefill in prefills if prefill.pairing == worker.pairing]
    chosen = partners.of(worker, paired, 1)
    return price_pairs(ask, [prefill_price(ask, chosen[0])], local)[0] if chosen else local
