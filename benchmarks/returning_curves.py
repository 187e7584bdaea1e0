"""What pairs of asks say of bringing prompts back: how long each way takes, and from how many tokens on it pays."""

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

Leads = Mapping[int, Sequence[float]]
"""By how many milliseconds bringing is ahead of computing, pair by pair, by tokens."""
_DRAWS, _OUTSIDE = 400, 5
"""Samples drawn again from the pairs, and the percentage of them on either side of the interval that is told."""
_BLOCK: Final = 16
_FROM_SHARE: Final = 0.9
"""A prompt counts as brought when so much of its whole blocks came from where it should."""


@dataclass(frozen=True)
class PromptPair:
    """A prompt asked again, and a new one as long beside it."""

    tokens: int
    new_ms: float
    again_ms: float
    brought: int
    """Tokens that came from where they should."""

    @property
    def came(self) -> bool:
        """Whether the prompt was brought from where it should."""
        return self.brought >= _FROM_SHARE * (self.tokens // _BLOCK * _BLOCK)

    @property
    def lead_ms(self) -> float:
        return self.new_ms - self.again_ms


@dataclass(frozen=True)
class CostEstimate:
    """What the cost model expected of a prompt that came back, either way."""

    tokens: int
    compute_ms: float
    bring_ms: float

    @property
    def lead_ms(self) -> float:
        return self.compute_ms - self.bring_ms


@dataclass(frozen=True)
class Crossing:
    """From how many tokens on bringing is ahead, and the interval in which most samples of the pairs have it. None
    where bringing is not behind at the shortest length and ahead at the longest: then nothing was measured."""

    tokens: float | None
    low: float
    high: float

    @classmethod
    def of(cls, leads: Leads) -> "Crossing":
        draw = random.Random(5)
        found = []
        for _ in range(_DRAWS):
            drawn = {length: draw.choices(values, k=len(values)) for length, values in leads.items()}
            found.append(edge(drawn))
        found.sort()
        cut = _DRAWS * _OUTSIDE // 100
        return cls(crossing(leads), found[cut], found[-1 - cut])


def leads_of(samples: Sequence[PromptPair] | Sequence[CostEstimate]) -> Leads:
    """By length, the shortest first."""
    lengths = sorted({sample.tokens for sample in samples})
    return {length: [each.lead_ms for each in samples if each.tokens == length] for length in lengths}


def crossing(leads: Leads) -> float | None:
    """Where the lead changes its sign, between two lengths; None when it does not."""
    found = edge(leads)
    return found if 0.0 < found < float("inf") else None


def edge(leads: Leads) -> float:
    """The same, but 0 when the lead is positive at every length, infinity when it is at none.

    Between lengths the lead is taken to be straight. A block that is computed costs more the further back its prompt
    goes, one that is brought does not: where bringing has begun to win, more of it wins more. So medians that fall
    from one length to the next are noise, and are replaced by what rises and fits them best.
    """
    lengths = list(leads)
    fitted = rising([statistics.median(leads[length]) for length in lengths], [len(leads[each]) for each in lengths])
    if not fitted or fitted[-1] <= 0:
        return float("inf")
    if fitted[0] > 0:
        return 0.0
    for (shorter, behind), (longer, ahead) in pairwise(zip(lengths, fitted, strict=True)):
        if ahead > 0:
            return shorter + (longer - shorter) * behind / (behind - ahead)
    raise AssertionError("the last of the fitted leads is positive")


def rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The values that never fall and fit these best in least squares: neighbours in the wrong order are pooled
    (Ayer and others, 1955)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pool = value, float(weight), 1
        while pools and pools[-1][0] >= pool[0]:
            before = pools.pop()
            weighed = before[1] + pool[1]
            pool = (before[0] * before[1] + pool[0] * pool[1]) / weighed, weighed, before[2] + pool[2]
        pools.append(pool)
    return [value for value, _, count in pools for _ in range(count)]


def apart(said: float | None, measured: float | None) -> float:
    """The relative difference; infinity when one of both is not known."""
    return float("inf") if said is None or measured is None else abs(said - measured) / measured
