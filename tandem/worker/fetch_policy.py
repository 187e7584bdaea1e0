"""Decide how many leading blocks of a prompt are worth fetching instead of computing them. The decision is pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isinf


@dataclass(frozen=True)
class FetchOption:
    """Blocks up to number `end`, counted from the prompt's beginning, can be had from `origin`: together with all
    before them in `seconds`."""

    end: int
    seconds: float
    origin: str


@dataclass(frozen=True)
class FetchDecision:
    """The decision to fetch the first `blocks` blocks, which should take `seconds` instead of `otherwise_s`."""

    blocks: int = 0
    seconds: float = 0.0
    otherwise_s: float = 0.0
    reason: str = ""


def choose_fetch(
    stretches: Sequence[FetchOption], here: int, otherwise: Callable[[int, int], float]
) -> FetchDecision:
    """Choose the end of the fetch that saves the most time. `here` leading blocks need not be brought;
    `otherwise(start, end)` is what those blocks cost when they are not brought (infinity while the cost is unknown,
    and then everything is worth it)."""
    best, saved_s = FetchDecision(), 0.0
    for stretch in stretches:
        if stretch.end <= here:
            continue
        otherwise_s = otherwise(here, stretch.end)
        if otherwise_s - stretch.seconds > saved_s or isinf(otherwise_s):
            saved_s = otherwise_s - stretch.seconds
            reason = _reason(stretch, stretch.end - here, otherwise_s)
            best = FetchDecision(stretch.end, stretch.seconds, otherwise_s, reason)
    if not best.blocks and stretches and stretches[-1].end > here:
        last = stretches[-1]
        otherwise_ms = otherwise(here, last.end) * 1e3
        reason = f"not brought: {last.end - here} blocks in {last.seconds * 1e3:.1f} ms against {otherwise_ms:.1f} ms"
        return FetchDecision(reason=reason)
    return best


def _reason(stretch: FetchOption, count: int, otherwise_s: float) -> str:
    instead = "" if otherwise_s == inf else f" instead of {otherwise_s * 1e3:.1f} ms"
    return f"brings {count} blocks, the last from {stretch.origin}, in {stretch.seconds * 1e3:.1f} ms{instead}"
