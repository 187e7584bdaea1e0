"""Trends of the last placements, to estimate those to come: how fast prompts arrive, how much of them is reused,
beside how many sequences they are computed, and how fast each worker's cache is turned over. Pure."""

import math
from typing import Final

from router.placement.decision import Placement
from router.placement.scorers.context import Trend
from router.placement.scorers.stakes import SHORT_MS

_WINDOW_S: Final = 20.0
"""Time constant of the arrival rate."""
_WARM: Final = 0.1
"""The least share of the window that a rate is taken from, however short the past is."""
_SHARE: Final = 0.01
"""Weight of one placement in the reused share, and in how much slower first tokens are than alone."""
_FILLS: Final = 256.0
"""Placements per worker after which what they added to caches counts e times less."""
_SCALE_MAX: Final = 1e9


class Traffic:
    """Owned by one policy; learns from each placement."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._at = 0.0
        self._recent = 0.0
        """Placements, each counting e times less after every window."""
        self._reuse = 0.0
        self._fills: dict[str, float] = {}
        """New tokens per worker, in units of `_scale`, which grows instead of all of them fading."""
        self._scale = 1.0
        self._filled = 0.0
        self._beside = 0.0
        """A mean over what the caches have taken up, which counts e times less when they have been turned over."""
        self._turned = 0.0
        self._slowdown = 0.0

    def trend(self, now: float) -> Trend:
        """The trend as of `now`."""
        mean = self._filled / len(self._fills) if self._fills else 0.0
        return Trend(self._rate(now) / 1e3, self._reuse, self._fills, mean, self._beside, self._slowdown)

    def placed(self, placement: Placement, now: float) -> None:
        """An attempt was sent."""
        if self._began is None:
            self._began = now
        self._recent = 1.0 + self._recent * math.exp(-max(0.0, now - self._at) / _WINDOW_S)
        self._at = now
        prompt = placement.prefill_tokens + placement.cached_tokens
        self._reuse += _SHARE * (placement.cached_tokens / prompt - self._reuse)
        if (first_ms := placement.first_ms) > 0.0:
            cost = placement.costs[0][1]
            alone_ms = max(SHORT_MS, cost.fetch_ms + cost.prefill_ms)
            self._slowdown += _SHARE * (first_ms / alone_ms - self._slowdown)
        self._turned = min(1.0, self._turned + placement.turned)
        if self._turned > 0.0:
            self._beside += placement.turned / self._turned * (placement.beside - self._beside)
        self._fill(placement.computing, placement.new_tokens)

    def forget(self, worker_id: str) -> None:
        """Forget a worker: its successor begins with an empty cache."""
        self._filled -= self._fills.pop(worker_id, 0.0)

    def _rate(self, now: float) -> float:
        """Placements per second."""
        if self._began is None:
            return 0.0
        seen = 1.0 - math.exp(-max(0.0, now - self._began) / _WINDOW_S)
        faded = self._recent * math.exp(-max(0.0, now - self._at) / _WINDOW_S)
        return faded / (_WINDOW_S * max(_WARM, seen))

    def _fill(self, worker_id: str, tokens: int) -> None:
        known = self._fills.get(worker_id, 0.0)
        self._scale *= 1.0 + 1.0 / (_FILLS * (len(self._fills) or 1))
        self._fills[worker_id] = known + self._scale * tokens
        self._filled += self._scale * tokens
        if self._scale > _SCALE_MAX:
            self._fills = {each: fill / self._scale for each, fill in self._fills.items()}
            self._filled, self._scale = sum(self._fills.values()), 1.0
