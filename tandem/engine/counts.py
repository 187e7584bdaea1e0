"""Counts of an engine for metrics, besides load: what became of drafted tokens, and how evenly experts are used."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec


class Speculation(msgspec.Struct, frozen=True):
    """Tokens drafted ahead since the last report. `accepted[k]` is how often a sequence had exactly `k` tokens of a
    draft accepted; whatever else was drafted was computed in vain."""

    drafted: int
    accepted: tuple[int, ...]

    @property
    def accepted_tokens(self) -> int:
        return sum(count * times for count, times in enumerate(self.accepted))

    @property
    def wasted_tokens(self) -> int:
        return self.drafted - self.accepted_tokens

    def __add__(self, other: "Speculation") -> "Speculation":
        longest = max(len(self.accepted), len(other.accepted))
        return Speculation(
            self.drafted + other.drafted,
            tuple(_at(self.accepted, count) + _at(other.accepted, count) for count in range(longest)),
        )


class ExpertBalance(msgspec.Struct, frozen=True, array_like=True):
    """The load of the busiest expert, and of the busiest rank, as a multiple of the mean, over recent tokens and
    averaged over the layers that have experts; 1 is even. `over_ranks` is None when experts are not distributed over
    ranks."""

    over_experts: float
    over_ranks: float | None


def speculation_of(drafts: int, drafted: int, accepted_at: Sequence[int]) -> Speculation:
    """The speculation figures from vLLM's counts: `accepted_at[i]` of the drafts had at least `i + 1` tokens
    accepted."""
    least = (drafts, *accepted_at, 0)
    return Speculation(drafted, tuple(here - more for here, more in pairwise(least)))


def mean_balance(parts: Sequence[ExpertBalance]) -> ExpertBalance | None:
    """The mean balance of ranks that have different layers, about as many each; None without ranks."""
    if not parts:
        return None
    over_ranks = [part.over_ranks for part in parts if part.over_ranks is not None]
    return ExpertBalance(
        sum(part.over_experts for part in parts) / len(parts),
        sum(over_ranks) / len(over_ranks) if over_ranks else None,
    )


def _at(counts: Sequence[int], index: int) -> int:
    return counts[index] if index < len(counts) else 0
