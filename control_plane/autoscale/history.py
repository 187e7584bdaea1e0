"""State that one scaling decision leaves to the next. Losing it costs a stabilisation window of extra workers, never
capacity."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.autoscale.traffic import Traffic

Recommended = tuple[tuple[float, int], ...]
"""(when, replicas), the oldest first: only those above all later ones, since nothing else can be the greatest."""


@dataclass(frozen=True)
class History:
    """The state that one scaling decision of a service leaves to the next. `busy_at` is when the service was last
    seen busy or kept awake; None before the first look."""

    traffic: Traffic = field(default_factory=Traffic)
    recommended: Mapping[str, Recommended] = field(default_factory=dict)
    busy_at: float | None = None


def stabilised(past: Recommended, replicas: int, window_s: float, now: float) -> tuple[int, Recommended]:
    """The most that was recommended within the window, and what is to be remembered."""
    kept = tuple((when, count) for when, count in past if when > now - window_s and count > replicas)
    recommended = (*kept, (now, replicas))
    return recommended[0][1], recommended
