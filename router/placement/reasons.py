"""Sentences that explain a placement. Pure."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from router.placement.decision import PlacementRequest, SourceChoice
from router.placement.filters.partners import Partners
from router.placement.filters.sorting import Suitable
from router.placement.scorers.candidate import Priced
from router.placement.view import WorkerView
from router.settings import PlacementSettings

_HEARSAY: Final = MappingProxyType(
    {"approximate": "approximate: it tells of no KV events", "redis": "known from Redis, not from a link"}
)

_LOOKED_AT: Final = 8
"""Candidates that are compared by what they would cost without misses."""


class Chosen(NamedTuple):
    """A decision with everything it was taken from; the winner is first."""

    request: PlacementRequest
    settings: PlacementSettings
    priced: Sequence[Priced]
    found: Suitable
    partners: Partners
    sources: tuple[SourceChoice, ...]


def sentence(chosen: Chosen, why: str | None) -> str:
    """The sentence that says where the request goes and what spoke for it. `why` is what a policy chose by, if not by
    cost."""
    winner = chosen.priced[0]
    decode, prefill = winner.decode.worker_id, winner.prefill
    brought = f", {chosen.sources[0].blocks} blocks from {chosen.sources[0].holder}" if chosen.sources else ""
    if prefill is not None:
        return f"prefill on {prefill.worker_id}{brought}, decode on {decode}: {why or _lead(chosen.priced)}"
    return f"{decode} computes the prompt itself{brought}: {why or _why_local(chosen)}"


def hearsay(chosen: Chosen) -> tuple[str, ...]:
    """Whose blocks mattered that are not known from its own events."""
    winner, held = chosen.priced[0], chosen.request.held
    computing = winner.decode if winner.prefill is None else winner.prefill
    told = list[str]()
    for holder in (computing.worker_id, *[source.holder for source in chosen.sources]):
        known = held.get(holder)
        if known is not None and known.known_by in _HEARSAY:
            told.append(f"what {holder} holds is {_HEARSAY[known.known_by]}")
    return tuple(told)


def at_stake(chosen: Chosen) -> tuple[str, ...]:
    """Sentences on how the objective affected the choice: which candidate would cost less without the misses that are
    risked there, and that the first token is expected too late."""
    request, winner = chosen.request, chosen.priced[0]
    if request.objective is None:
        return ()
    told, missed_ms = list[str](), winner.misses_ms
    plain_ms = winner.total_ms - missed_ms
    for each in chosen.priced[1:_LOOKED_AT]:
        risked_ms = each.stakes_ms + each.answer_stakes_ms
        if risked_ms > missed_ms and each.total_ms - risked_ms < plain_ms:
            less_ms = plain_ms - each.total_ms + risked_ms
            told.append(
                f"{each.name} would take {less_ms:.1f} ms less, but risks misses of objectives for"
                f" {risked_ms:.1f} ms, not {missed_ms:.1f} ms"
            )
            break
    bound_ms = request.objective.ttft_ms
    first_ms = request.age_ms + winner.first_ms
    if bound_ms is not None and first_ms > bound_ms:
        told.append(f"its first token is expected {first_ms:.0f} ms after it came, and is to take {bound_ms:.0f} ms")
    return tuple(told)


def must_be_local(request: PlacementRequest, uncached: int, settings: PlacementSettings) -> bool:
    """Whether a decode worker with so many tokens to compute keeps the prompt, whatever a hand-off would cost."""
    if request.local_only or settings.prefer == "local":
        return True
    return settings.prefer == "auto" and uncached <= settings.local_uncached_tokens_max


def _lead(priced: Sequence[Priced]) -> str:
    expected = f"{priced[0].total_ms:.1f} ms expected"
    return f"{expected}, {priced[1].total_ms:.1f} ms for the next best" if len(priced) > 1 else expected


def _why_local(chosen: Chosen) -> str:
    request, settings, winner = chosen.request, chosen.settings, chosen.priced[0]
    if request.local_only:
        return "a request resumed in several branches is not handed off"
    if settings.prefer == "local":
        return "the setting placement.prefer is local"
    prefills, decode = chosen.found.prefills, winner.decode
    if not prefills:
        return f"no prefill worker can take it; {_lead(chosen.priced)}"
    if must_be_local(request, winner.way.uncached, settings):
        return f"{winner.way.uncached} uncached tokens are not worth a transfer"
    if chosen.partners.left_out and all(each.prefill is None for each in chosen.priced):
        return "no pair with it has been proved to carry blocks, or none carries them now"
    paired = any(worker.pairing == decode.pairing for worker in prefills)
    return _lead(chosen.priced) if paired else _why_unpaired(decode, prefills[0])


def _why_unpaired(decode: WorkerView, prefill: WorkerView) -> str:
    if decode.revision != prefill.revision:
        detail = f"revision {decode.revision} here, {prefill.revision} there"
    else:
        differs = decode.layout.incompatibility(prefill.layout)
        detail = differs or "their blocks have different roots (model content, data type or block size)"
    return f"no prefill worker may be paired with it; {prefill.worker_id}: {detail}"
