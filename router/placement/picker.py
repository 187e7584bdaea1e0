"""Orders priced candidates and makes the placement of the best. Pure."""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter, sub
from typing import Final

from router.placement.decision import Placement
from router.placement.filters.partners import Partners
from router.placement.filters.sorting import Suitable
from router.placement.pairs import look
from router.placement.reasons import Chosen, at_stake, hearsay, sentence
from router.placement.scorers.candidate import Priced
from router.placement.scorers.context import ScoringContext
from router.placement.scorers.sources import sources

_COSTS_TOLD: Final = 8
_EQUAL_MS: Final = 1e-3
"""Costs that differ by less are taken as equal."""
_TOTAL: Final = attrgetter("total_ms")


def by_cost(priced: list[Priced], favourite: str = "") -> list[Priced]:
    """The least expected cost first. Equal ones: the worker that had the request's kin last, the one with fewest
    sequences in flight, the smallest id."""
    ordered = sorted(priced, key=_TOTAL)
    totals = [each.total_ms for each in ordered]
    apart = list(map(sub, totals[1:], totals))
    if apart and min(apart) <= _EQUAL_MS:
        for first, end in _runs(apart):
            ordered[first:end] = sorted(ordered[first:end], key=partial(_rank, favourite))
    return ordered


def _runs(apart: Sequence[float]) -> list[tuple[int, int]]:
    """First place and end of runs of two or more that may be taken as equal; `apart` is what each costs more than the
    one before it. Costs that are rounded to the same are at most `_EQUAL_MS` apart, but for their last digits."""
    runs, first = list[tuple[int, int]](), 0
    for place, more_ms in enumerate(apart, 1):
        if more_ms > 2.0 * _EQUAL_MS:
            if place - first > 1:
                runs.append((first, place))
            first = place
    if len(apart) + 1 - first > 1:
        runs.append((first, len(apart) + 1))
    return runs


def _rank(favourite: str, each: Priced) -> tuple[int, bool, int, str, str]:
    decode, prefill, rounded = each.decode, each.prefill, round(each.total_ms / _EQUAL_MS)
    worker_id, busy = decode.worker_id, decode.sequences_in_flight
    if prefill is None:
        return rounded, worker_id != favourite, busy, worker_id, ""
    computing_id = prefill.worker_id
    return rounded, computing_id != favourite, busy + prefill.sequences_in_flight, worker_id, computing_id


def placement(
    ask: ScoringContext, priced: Sequence[Priced], found: Suitable, partners: Partners, why: str | None = None
) -> Placement:
    """The first candidate wins. `why` is what a policy chose by, if not by cost."""
    request, winner = ask.request, priced[0]
    decode, prefill, way = winner.decode, winner.prefill, winner.way
    held = request.held.get(decode.worker_id)
    told = sources(ask, decode if prefill is None else prefill)
    chosen = Chosen(request, ask.settings, priced, found, partners, told)
    note = (found.last_resort,) if found.last_resort else ()
    return Placement(
        mode="local" if prefill is None else "disaggregated",
        decode=decode.worker_id,
        prefill=None if prefill is None else prefill.worker_id,
        prefill_tokens=way.uncached,
        cached_tokens=request.prompt_tokens - way.uncached,
        costs=tuple([(each.candidate(), each.breakdown()) for each in priced[:_COSTS_TOLD]]),
        reasons=(
            sentence(chosen, why),
            *note,
            *(at_stake(chosen) if why is None else ()),
            *hearsay(chosen),
            *found.sentences(),
            *partners.sentences(),
        ),
        decode_cached_tokens=held.hbm * decode.block_tokens if held is not None else 0,
        path="" if prefill is None else look(partners.pairs, prefill.worker_id, decode.worker_id).path,
        unproved=tuple(partners.unproved),
        sources=chosen.sources,
        new_tokens=way.new,
        answer_tokens=ask.answer_tokens * request.sequences,
        turned=way.new / ((prefill or decode).capacity_tokens * len(found.prefills or found.decodes)),
        beside=ask.stream_weight * (ask.batches.sequences if ask.stakes is None else ask.batches.decoding),
    )
