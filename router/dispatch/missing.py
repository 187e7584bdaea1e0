"""Decides what becomes of blocks of a prompt that decode could not fetch. Pure.

Computing them again is a retry: otherwise a fault that all hand-offs share would have every prompt computed twice at
once. Where too much is being retried, decode waits, and the budget is asked again for a bounded time: nothing else
brings the blocks any more, and failing the request would help no one.
"""

from dataclasses import dataclass, replace
from typing import Final

from router.dispatch.retry_budget import backoff_s
from router.settings import RetrySettings

_ASK_LEAST_S: Final = 0.02
"""Least number of seconds to wait before the retry budget is asked again."""


@dataclass(frozen=True)
class MissingBlocks:
    """The blocks that decode misses since it reported, at `since`, that its fetch failed with `code`. The retry
    budget has refused `refused` times to have the rest computed, and is asked next at `ask_at`."""

    code: str
    since: float
    ask_at: float
    refused: int = 0

    def again(self, ask_at: float) -> "MissingBlocks":
        """The budget has refused once more."""
        return replace(self, ask_at=ask_at, refused=self.refused + 1)


@dataclass(frozen=True)
class RecomputeDecision:
    """Whether decode computes what is missing now, and why; otherwise the budget is asked again at `ask_at`."""

    compute: bool
    reason: str
    ask_at: float = 0.0


def decide_recompute(
    missing: MissingBlocks, now: float, granted: bool, settings: RetrySettings, bound_s: float
) -> RecomputeDecision:
    """`granted`: the budget has a retry for it. It is asked for at most `bound_s`."""
    told, until = f"its blocks did not come: {missing.code}", missing.since + bound_s
    if granted:
        return RecomputeDecision(True, told)
    if now >= until:
        return RecomputeDecision(
            True, f"{told}; nothing else brings them, and no retry was granted within {bound_s:.1f} s"
        )
    wait_s = max(_ASK_LEAST_S, backoff_s(settings, missing.refused + 2))
    return RecomputeDecision(False, f"{told}; decode waits, as others are retried", min(now + wait_s, until))
