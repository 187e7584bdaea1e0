"""Orders priced candidates and makes the placement of the best. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from router.placement.decision import Candidate, Placement
from router.placement.filters.partners import Partners
from router.placement.filters.sorting import Suitable
from router.placement.pairs import look
from router.placement.reasons import Chosen, hearsay, sentence
from router.placement.scorers.ask import Ask
from router.placement.scorers.candidate import Priced
from router.placement.scorers.sources import sources

_COSTS_TOLD: Final = 8
_EQUAL_MS: Final = 1e-3
"""Costs that differ by less are taken as equal."""


def by_cost(priced: list[Priced], favourite: str = "") -> list[Priced]:
    """The least expected cost first. Equal ones: the worker that had the request's kin last, the one with fewest
    sequences in flight, the smallest id."""
    totals = [each.total_ms for each in priced]
    order = sorted(range(len(priced)), key=totals.__getitem__)
    if len(priced) > 1 and any(totals[left] >= totals[right] - _EQUAL_MS for left, right in pairwise(order)):
        order.sort(key=lambda place: (round(totals[place] / _EQUAL_MS), *_tie(priced[place], favourite)))
    return [priced[place] for place in order]


def _tie(each: Priced, favourite: str) -> tuple[bool, int, str, str]:
    decode, prefill = each.decode, each.prefill
    if prefill is None:
        return decode.worker_id != favourite, decode.sequences_in_flight, decode.worker_id, ""
    busy = decode.sequences_in_flight + prefill.sequences_in_flight
    return prefill.worker_id != favourite, busy, decode.worker_id, prefill.worker_id


def placement(
    ask: Ask, priced: Sequence[Priced], found: Suitable, partners: Partners, why: str | None = None
) -> Placement:
    """The first candidate wins. `why` is what a policy chose by, if not by cost."""
    request, winner = ask.request, priced[0]
    decode, prefill, prompt = winner.decode, winner.prefill, winner.prompt
    held = request.held.get(decode.worker_id)
    told = sources(ask, decode if prefill is None else prefill)
    chosen = Chosen(request, ask.settings, priced, found, partners, told)
    note = (found.last_resort,) if found.last_resort else ()
    return Placement(
        mode="local" if prefill is None else "disaggregated",
        decode=decode.worker_id,
        prefill=None if prefill is None else prefill.worker_id,
        prefill_tokens=prompt.uncached,
        cached_tokens=request.prompt_tokens - prompt.uncached,
        costs=tuple(
            (
                Candidate(each.decode.worker_id, "" if each.prefill is None else each.prefill.worker_id),
                each.breakdown(),
            )
            for each in priced[:_COSTS_TOLD]
        ),
        reasons=(sentence(chosen, why), *note, *hearsay(chosen), *found.sentences(), *partners.sentences()),
        decode_cached_tokens=held.hbm * decode.block_tokens if held is not None else 0,
        path="" if prefill is None else look(partners.pairs, prefill.worker_id, decode.worker_id).path,
        unproved=tuple(partners.unproved),
        sources=chosen.sources,
        new_tokens=prompt.new,
        answer_tokens=ask.answer_tokens * request.sequences,
        turned=prompt.new / ((prefill or decode).capacity_tokens * len(found.prefills or found.decodes)),
        beside=ask.stream_weight * ask.batches.sequences,
    )
