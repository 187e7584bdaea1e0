"""Least expected completion: the policy that knows what everything costs.

The cost of a candidate is the request's own time (waiting, fetching and computing its prompt, handing it over,
generating) and what others lose by it. So a prefix draws a request for as long as using it is the fastest way for
all together, and a hot one gets another holder when those it has are busier than computing or fetching it elsewhere.
"""

from collections.abc import Sequence

from router.placement.costs import CostModel
from router.placement.decision import Placement, PlacementRequest, Unplaced
from router.placement.filters.partners import Partners
from router.placement.filters.sorting import Suitable, suitable
from router.placement.pairs import Pairs
from router.placement.picker import by_cost, placement
from router.placement.policies.explore import WHY, Explorer, looks_slow
from router.placement.policies.newcomers import WHY as NEW
from router.placement.policies.newcomers import in_turn
from router.placement.policies.progress import Progress
from router.placement.policies.scoring_context import scoring_context
from router.placement.policies.speculative import SpeculativeEntries
from router.placement.policies.traffic import Traffic
from router.placement.reasons import must_be_local
from router.placement.scorers.candidate import PrefillPrice, Priced, prefill_price, price_local, price_pairs
from router.placement.scorers.context import ScoringContext
from router.placement.view import WorkerView
from router.settings import PlacementSettings


class PrefixAware:
    """Keeps what its own placements promise (`SpeculativeEntries`), say of those to come (`Traffic`), have still to
    generate (`Progress`), and leave without prompts (`Explorer`)."""

    def __init__(self, settings: PlacementSettings) -> None:
        self._promises = SpeculativeEntries(settings.promise_s, settings.promises_max)
        self._traffic = Traffic()
        self._progress = Progress()
        self._explorer = Explorer()

    def choose(
        self,
        request: PlacementRequest,
        workers: Sequence[WorkerView],
        costs: CostModel,
        settings: PlacementSettings,
        pairs: Pairs | None,
        now: float,
    ) -> Placement | Unplaced:
        found = suitable(request, workers, settings)
        if not found.decodes:
            return found.unplaced(request.model)
        promised = self._promises.leading(request, now)
        ask = scoring_context(
            request, found, costs, settings, promised, self._traffic.trend(now), self._progress, now
        )
        partners = Partners(pairs)
        few = len(found.prefills) <= settings.candidates_max
        waiting = frozenset() if few else self._explorer.waiting()
        priced = by_cost(_price_all(ask, found, partners, waiting), self._promises.favourite(request))
        others = () if few else found.prefills
        chosen = self._explorer.pick(request, priced, lambda name: looks_slow(name, priced, costs), others)
        if chosen:
            return placement(ask, [priced[chosen], *priced[:chosen], *priced[chosen + 1 :]], found, partners, WHY)
        if (fair := in_turn(priced, now)) is not priced:
            return placement(ask, fair, found, partners, NEW)
        return placement(ask, priced, found, partners)

    def placed(self, request: PlacementRequest, placement: Placement, now: float) -> None:
        self._promises.placed(request, placement, now)
        self._traffic.placed(placement, now)
        self._progress.placed(placement, request.sequences, now)
        self._explorer.placed(placement)

    def ended(self, request: PlacementRequest, placement: Placement, output_tokens: int, now: float) -> None:
        """Promises end by themselves."""
        self._progress.ended(placement)

    def gone(self, worker_id: str) -> None:
        self._promises.forget(worker_id)
        self._traffic.forget(worker_id)
        self._progress.forget(worker_id)
        self._explorer.forget(worker_id)


def _price_all(ask: ScoringContext, found: Suitable, partners: Partners, waiting: frozenset[str]) -> list[Priced]:
    """Every decode worker computing itself, and the cheapest of them with the cheapest prefill workers and those that
    are `waiting` to be explored."""
    locals_ = [price_local(ask, worker) for worker in found.decodes]
    if not found.prefills or ask.settings.prefer == "local" or ask.request.local_only:
        return locals_
    prefills, priced = _prefills(ask, found), list[Priced]()
    for local in _worth_pairing(ask, locals_):
        if must_be_local(ask.request, local.way.uncached, ask.settings):
            priced.append(local)
            continue
        paired = price_pairs(ask, _partners(ask, local.decode, prefills, partners, waiting), local)
        priced += paired
        if ask.settings.prefer != "disaggregated" or not paired:
            priced.append(local)
    if ask.settings.prefer == "disaggregated" and any(each.prefill is not None for each in priced):
        return [each for each in priced if each.prefill is not None]
    return priced


def _worth_pairing(ask: ScoringContext, priced: list[Priced]) -> list[Priced]:
    """The cheapest to generate on, and the cheapest to do everything on."""
    most = ask.settings.candidates_max
    if len(priced) <= most:
        return priced
    answers = [(each.answer_ms + each.answer_others_ms, each.decode.worker_id, each) for each in priced]
    totals = [(each.total_ms, each.decode.worker_id, each) for each in priced]
    answers.sort()
    totals.sort()
    chosen = {each.decode.worker_id: each for _, _, each in (*answers[:most], *totals[: max(1, most // 4)])}
    return list(chosen.values())


def _partners(
    ask: ScoringContext,
    decode: WorkerView,
    prefills: dict[int, list[PrefillPrice]],
    partners: Partners,
    waiting: frozenset[str],
) -> list[PrefillPrice]:
    """The cheapest prefill workers whose blocks reach a decode worker, and those that are `waiting`."""
    prices, most = prefills.get(decode.pairing, []), ask.settings.candidates_max
    if waiting:
        first = [price for price in prices if price.worker.worker_id in waiting]
        prices, most = [*first, *(price for price in prices if price not in first)], most + len(first)
    if partners.pairs is None:
        return prices[:most]
    chosen = {worker.worker_id for worker in partners.of(decode, [price.worker for price in prices], most)}
    return [price for price in prices if price.worker.worker_id in chosen]


def _prefills(ask: ScoringContext, found: Suitable) -> dict[int, list[PrefillPrice]]:
    """Prefill workers by pairing, the cheapest for this request first."""
    prices = [prefill_price(ask, worker) for worker in found.prefills]
    prices.sort(key=lambda each: (each.total_ms, each.worker.sequences_in_flight, each.worker.worker_id))
    by_pairing: dict[int, list[PrefillPrice]] = {}
    for price in prices:
        by_pairing.setdefault(price.worker.pairing, []).append(price)
    return by_pairing
