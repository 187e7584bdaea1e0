"""A request's story as text: a bar per stage, then transfer, tokens, placement and retries. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Final

from tandem.apps.cli.request_trace import PULL, RequestTrace, is_handoff, number, place_of
from tandem.core.spans import FOR_OPERATORS, Attribute, Span
from tandem.core.tiers import TIERS

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_RIGHT: Final = "  ▐▐▐▐███"
"""Unicode has no eighths that fill a cell from its right, only the half."""


def render(story: RequestTrace, width: int = 100) -> str:
    """The whole story, bars fitted to a line of `width` columns."""
    parts = ("\n".join(_head(story)), "\n".join(_bars(story, width)))
    facts = (*_transfers(story), *_reuse(story), *_tokens(story), *_placements(story), *_attempts(story))
    return "\n\n".join((*parts, "\n".join(facts)))


def _head(story: RequestTrace) -> Iterable[str]:
    root = story.root
    name = root.attributes.get("request_id", "request")
    yield f"{name}: {root.attributes.get('outcome', 'unknown')} in {_ms(story.end_s - story.begin_s)}"
    known = ("model", "prompt_tokens", "cached_tokens", "completion_tokens")
    figures = [f"{key.replace('_', ' ')} {root.attributes[key]}" for key in known if key in root.attributes]
    yield f"trace {root.trace_id}" + "".join(f", {figure}" for figure in figures)
    if "reason" in root.attributes:
        yield f"reason: {root.attributes['reason']}"


def _bars(story: RequestTrace, width: int) -> Iterable[str]:
    labels = [f"{'  ' * story.depth(span)}{span.name}" for span in story.spans]
    places = [place_of(span) for span in story.spans]
    label_width, place_width = max(map(len, labels)), max(map(len, places))
    room = max(10, width - label_width - place_width - 15)
    for span, label, place in zip(story.spans, labels, places, strict=True):
        bar = _bar(span, story.begin_s, story.end_s, room)
        yield f"{place:{place_width}}  {label:{label_width}}  {bar} {_ms(span.end_s - span.start_s):>10}"


def _bar(span: Span, begin_s: float, end_s: float, room: int) -> str:
    """A bar of `room` columns, its end in eighths of a column; what took no time still shows as a sliver."""
    per_s = room * 8 / max(end_s - begin_s, 1e-9)
    start = min(round((span.start_s - begin_s) * per_s), room * 8 - 1)
    end = min(max(round((span.end_s - begin_s) * per_s), start + 1), room * 8)
    cells = []
    for cell in range(room):
        filled = max(0, min(end, cell * 8 + 8) - max(start, cell * 8))
        begins_inside = cell * 8 < start < cell * 8 + 8 < end
        cells.append(_RIGHT[filled] if begins_inside else _EIGHTHS[filled])
    return "".join(cells)


def _transfers(story: RequestTrace) -> Iterable[str]:
    for span in story.named(PULL):
        moved, seconds = number(span, "bytes"), span.end_s - span.start_s
        rate = span.attributes.get("gb_per_s", moved / seconds / 1e9 if seconds > 0 else 0.0)
        line = f"{'transfer' if is_handoff(span) else 'fetched':10} {_size(moved)} in {number(span, 'blocks')} blocks"
        line += (
            f"{_origin(span)} over {span.attributes.get('path') or '?'} to {place_of(span)}, {float(rate):.3g} GB/s"
        )
        if "exposed_ms" in span.attributes:
            line += f", {float(span.attributes['exposed_ms']):.1f} ms of it after the prompt was computed"
        yield line + (f"; failed: {span.attributes['failed']}" if "failed" in span.attributes else "")


def _origin(span: Span) -> str:
    """Whose blocks they were, unless they were computed for this request."""
    if is_handoff(span):
        return ""
    kind = str(span.attributes["kind"])
    holder = span.attributes.get("holder")
    return f" from {kind} {holder}" if holder else f" from its {kind}"


def _reuse(story: RequestTrace) -> Iterable[str]:
    """Lines on where cached tokens were found, and why there are not more."""
    root = story.root.attributes
    found = [f"{tier} {root[key]}" for tier in TIERS if (key := f"cached_{tier}") in root]
    if found:
        yield f"cached     {', '.join(found)} of {root.get('prompt_tokens', '?')} prompt tokens"
    for span in story.named("dispatch"):
        known = span.attributes
        if "missed" not in known:
            continue
        line = f"missed     {known['missed']}: {known.get('missed_because', '')}"
        yield line + (f" (line {known['missed_line']}, column {known['missed_column']})" if _has_text(known) else "")
        if _has_text(known):
            yield f"  {_quoted(known['missed_before'])} ▸ {_quoted(known['missed_after'])}"
        if f"{FOR_OPERATORS}missed_because" in known:
            yield f"  for operators: {known[f'{FOR_OPERATORS}missed_because']}"


def _has_text(known: Mapping[str, Attribute]) -> bool:
    """A prompt of which nothing was known before has no place worth showing."""
    return "missed_line" in known and known.get("missed_token", 0) != 0


def _quoted(text: Attribute) -> str:
    return json.dumps(str(text), ensure_ascii=False)


def _tokens(story: RequestTrace) -> Iterable[str]:
    prefills = {place_of(span): span for span in story.named("prefill")}
    for place, span in prefills.items():
        line = (
            f"tokens     {place} computed {number(span, 'tokens_computed')}, reused {number(span, 'tokens_reused')}"
        )
        yield line + f" in {number(span, 'chunks')} chunks"
    for span in story.named("decode"):
        extra = "" if place_of(span) in prefills else ", computed none of the prompt"
        yield f"tokens     {place_of(span)} generated {number(span, 'tokens')}{extra}"
    for span in story.named("prefill"):
        if span.attributes.get("reuse"):
            yield f"fetching   {span.attributes['reuse']}"
        if span.attributes.get("reasons"):
            yield f"chunking   {span.attributes['reasons']}"


def _placements(story: RequestTrace) -> Iterable[str]:
    for span in story.named("place"):
        chosen = [str(span.attributes[key]) for key in ("prefill", "decode") if key in span.attributes]
        yield f"placement  {span.attributes.get('mode', '?')}: {' → '.join(chosen)}"
        costs = str(span.attributes.get("costs", "")).splitlines()
        yield from (f"  {'won ' if rank == 0 else 'lost'} {line}" for rank, line in enumerate(costs))
        if span.attributes.get("reasons"):
            yield f"  because {span.attributes['reasons']}"


def _attempts(story: RequestTrace) -> Iterable[str]:
    attempts = story.named("attempt")
    yield f"retries    {max(0, len(attempts) - 1)}"
    if len(attempts) > 1:
        yield from (_attempt(span) for span in attempts)


def _attempt(span: Span) -> str:
    notes = f" ({span.attributes['notes']})" if "notes" in span.attributes else ""
    return f"  attempt {span.attributes.get('number', '?')}: {span.attributes.get('outcome', '?')}{notes}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _size(count: int) -> str:
    for unit, bytes_per in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= bytes_per:
            return f"{count / bytes_per:.1f} {unit}"
    return f"{count} B"
