"""Records what happens in a world, in order: a digest over all of it, and the latest lines to explain a failure
with."""

from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final

from tandem.core.spans import Span

_KEPT: Final = 20_000
_SHOWN: Final = 40


class Trace:
    """`tandem.core.spans.Recorder` of a world, and the place for every other observation.

    Only what clients see and what breaks is part of the digest; spans are kept for the story.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._digest = blake2b(digest_size=16)
        self._lines: deque[tuple[float, str, str | Span]] = deque(maxlen=_KEPT)

    def note(self, request_id: str, text: str) -> None:
        """Something a client saw, or with an empty `request_id` something that happened to the platform."""
        now = self._now()
        self._digest.update(f"{now:.9f} {request_id} {text}\n".encode())
        self._lines.append((now, request_id, text))

    def record(self, request_id: str, spans: Sequence[Span], tenant: str = "") -> None:
        now = self._now()
        self._lines.extend((now, request_id, span) for span in spans)

    def spans(self, request_id: str, tenant: str | None = None) -> tuple[Span, ...]:
        return ()

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def tail(self, request_id: str) -> tuple[str, ...]:
        """The last lines about a request and about the platform; about everything when it is empty."""
        chosen = [line for line in self._lines if not request_id or line[1] in ("", request_id)]
        return tuple(_line(*line) for line in chosen[-_SHOWN:])


def _line(at: float, request_id: str, what: str | Span) -> str:
    if isinstance(what, Span):
        figures = ", ".join(f"{key}={value}" for key, value in what.attributes.items())
        what = f"{what.service} {what.name} {(what.end_s - what.start_s) * 1e3:.1f} ms: {figures}"
    return f"{at:10.4f} s  {request_id or '-':8} {what}"
