"""Health of revisions since their rollout began, from totals that began earlier."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from control_plane.rollout import Health

Key = tuple[str, str]
Totals = Callable[[str], Health]
"""Gives the totals that routers have counted of a revision so far."""


@dataclass
class _Base:
    aim: str
    totals: dict[str, Health] = field(default_factory=dict)


class RolloutHealth:
    """One per process. What was counted before a rollout began, or before this process did, is left out."""

    def __init__(self) -> None:
        self._bases: dict[Key, _Base] = {}

    def since(self, key: Key, aim: str, revisions: Iterable[str], totals: Totals) -> dict[str, Health]:
        """The health of each revision, counted since `aim` became the revision that is asked for."""
        base = self._bases.get(key)
        if base is None or base.aim != aim:
            base = self._bases[key] = _Base(aim)
        found = {}
        for revision in revisions:
            now = totals(revision)
            found[revision] = _difference(now, base.totals.setdefault(revision, now))
        return found

    def forget(self, key: Key) -> None:
        self._bases.pop(key, None)


def _difference(now: Health, base: Health) -> Health:
    return Health(
        max(0, now.requests - base.requests),
        max(0, now.errors - base.errors),
        max(0, now.slo_misses - base.slo_misses),
    )
