"""The cost of bringing KV, learned from the fetches of one worker. No clock."""

from dataclasses import dataclass
from typing import Final

from tandem.worker.median_line import MedianLine

_BYTES_MIN: Final = 1 << 16
"""Size in bytes from which a fetch of another process's blocks counts. Smaller fetches are mostly tails, which are
not fetched for themselves."""
_KEPT_S: Final = 60.0
"""Seconds for which observed figures count. After that nothing is known, so that an origin that was slow once is
tried again."""
_DOWN: Final = 0.5
_UP: Final = 0.02
"""Weight of an observation above the current estimate. A request may wait for others besides its fetch, so those that
went on soon show what the fetch itself takes."""
_BYTES_PER_S: Final = 1e9
"""Bytes per second that an unknown peer or store is assumed to bring once it has begun. The rest of a first fetch was
waiting, which a larger fetch does not repeat. Where the assumption is too high, the next fetches show it; were it too
low, there would be no next fetch. Hand-offs take place whatever they cost, so the first of them gives a rate."""


@dataclass
class _Learned:
    line: MedianLine
    seen: float


class Rates:
    """Seconds over bytes by kind of origin: `prefill` for hand-offs, `peer`, `store`, and own tiers.

    A fetch takes time that does not depend on its size, so what is learned is a line, not a rate.
    """

    def __init__(self) -> None:
        self._learned: dict[str, _Learned] = {}
        self.around_s = 0.0
        """Seconds for which a fetch holds up its work besides the fetch itself, when nothing else waits: the fetch
        has to be requested, and the blocks that it brought wait for the next step."""

    def observe(self, kind: str, size: int, seconds: float, now: float, guess: float | None = None) -> None:
        """Record that `size` bytes came in `seconds`. `guess` (bytes/s) is the rate that was assumed before; without
        it the first fetch determines the rate."""
        if size <= 0 or seconds <= 0 or (guess is None and size < _BYTES_MIN):
            return
        known = self._fresh(kind, now)
        if known is None:
            rate = guess if guess is not None else _first_guess(kind, size, seconds)
            known = self._learned[kind] = _Learned(MedianLine(rate), now)
        known.line.observe(size, seconds)
        known.seen = now

    def held_up(self, seconds: float) -> None:
        """A work waited for so long because of a fetch, beyond the fetch itself."""
        if not self.around_s:
            self.around_s = max(0.0, seconds)
            return
        weight = _DOWN if seconds < self.around_s else _UP
        self.around_s += weight * (min(max(0.0, seconds), 4 * self.around_s) - self.around_s)

    def expected_s(self, kind: str, size: int, now: float) -> float | None:
        """Seconds that `size` bytes are expected to take, or None when nothing was observed recently."""
        known = self._fresh(kind, now)
        return known.line.expected_s(size) if known is not None else None

    def bytes_per_s(self, kind: str, now: float) -> float | None:
        """The rate at which more bytes would come in a fetch that takes place anyway."""
        known = self._fresh(kind, now)
        return known.line.bytes_per_s if known is not None else None

    def _fresh(self, kind: str, now: float) -> _Learned | None:
        known = self._learned.get(kind)
        return known if known is not None and now - known.seen <= _KEPT_S else None


def _first_guess(kind: str, size: int, seconds: float) -> float:
    return size / seconds if kind == "prefill" else max(_BYTES_PER_S, size / seconds)
