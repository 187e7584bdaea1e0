"""Is a new revision worse than the old one? A one-sided test of two proportions, with a margin.

Both revisions serve at the same time and get the same kind of requests, so that what ails the cluster ails both. The
new one regresses when its share of bad requests exceeds the old one's by more than the margin, and chance would show
a difference beyond the margin in fewer than one of some 700 looks (z > 3, pooled variance).
"""

from math import sqrt
from typing import Final

from control_plane.rollout.model import FailureKind, Health

REQUESTS_MIN: Final = 50
"""Minimum number of requests of the new revision before it is judged at all."""
_Z: Final = 3.0


def regression(new: Health, old: Health, margin: float) -> tuple[FailureKind, str] | None:
    """The kind of regression and a sentence that quantifies it, errors first; None while nothing is proven."""
    if worse(new.errors, new.requests, old.errors, old.requests, margin):
        return "errors", _sentence("failed", new.errors, new.requests, old.errors, old.requests)
    if worse(new.slo_misses, new.requests, old.slo_misses, old.requests, margin):
        return "slo", _sentence("missed the SLO", new.slo_misses, new.requests, old.slo_misses, old.requests)
    return None


def worse(new_bad: int, new_all: int, old_bad: int, old_all: int, margin: float) -> bool:
    """Whether `new_bad` of `new_all` exceeds `old_bad` of `old_all` by more than `margin` and chance."""
    if new_all < REQUESTS_MIN:
        return False
    new_share, old_share = new_bad / new_all, old_bad / old_all if old_all else 0.0
    excess = new_share - old_share - margin
    if excess <= 0:
        return False
    pooled = (new_bad + old_bad) / (new_all + old_all)
    deviation = sqrt(pooled * (1 - pooled) * (1 / new_all + (1 / old_all if old_all else 0.0)))
    return excess > _Z * deviation


def _sentence(verb: str, new_bad: int, new_all: int, old_bad: int, old_all: int) -> str:
    return f"{new_bad} of {new_all} requests {verb}, against {old_bad} of {old_all} on the old revision"
