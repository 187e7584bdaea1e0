"""A request's story as one caller may see it: without what is for operators, with what only people want to read.

Clients choose request ids, so spans of several requests of a tenant may be kept under one id. Those of one request
are below its root span, whose id the router has drawn.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from router.api.chat_templates.render import Renderer
from router.api.prompt_texts import PromptTexts, TextPlace
from tandem.core.spans import FOR_OPERATORS, Attribute, Span

ROOT: Final = "request"
"""The name of a request's root span."""

_TOKEN: Final = "missed_token"


def ids_of(request_id: str, root: Span) -> tuple[str, ...]:
    """Under which ids the spans of a request are kept: its own and those of its parts."""
    parts = root.attributes.get("parts", 1)
    return (request_id, *(f"{request_id}.{number}" for number in range(int(parts)) if parts != 1))


class TraceExplainer:
    """Prepares the spans of one request for one caller. `renderer` is that of the request's model, if it is known."""

    def __init__(self, root: Span, texts: PromptTexts, renderer: Renderer | None, *, operator: bool) -> None:
        self._root = root
        self._texts = texts
        self._renderer = renderer
        self._operator = operator

    def tell(self, spans: Mapping[str, Sequence[Span]]) -> tuple[Span, ...]:
        """The request's own among `spans`, which are by id, in order of time. Where its prompt parted from earlier
        ones is shown in its text."""
        own = _below(self._root, [span for some in spans.values() for span in some])
        told = [self._told(each, span) for each, some in spans.items() for span in some if span.span_id in own]
        return tuple(sorted(told, key=lambda span: span.start_s))

    def _told(self, request_id: str, span: Span) -> Span:
        known = span.attributes
        attributes = {
            name: value for name, value in known.items() if self._operator or not name.startswith(FOR_OPERATORS)
        }
        token, tenant = known.get(_TOKEN), str(self._root.attributes.get("tenant", ""))
        if isinstance(token, int) and self._renderer is not None:
            place = self._texts.place(tenant, request_id, token, self._renderer)
            attributes |= _shown(place) if place is not None else {}
        return span if attributes == known else msgspec.structs.replace(span, attributes=attributes)


def _below(root: Span, spans: Iterable[Span]) -> dict[str, None]:
    """Ids of the root and of everything below it."""
    children: dict[str, list[str]] = {}
    for span in spans:
        children.setdefault(span.parent_id, []).append(span.span_id)
    found, left = dict[str, None](), [root.span_id]
    while left:
        span_id = left.pop()
        if span_id not in found:
            found[span_id] = None
            left += children.get(span_id, ())
    return found


def _shown(place: TextPlace) -> dict[str, Attribute]:
    return {f"missed_{name}": value for name, value in msgspec.structs.asdict(place).items()}
