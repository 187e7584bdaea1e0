"""Compares two sides' answers to the same prompts, position by position. Pure.

Positions are compared from the first one on, for as long as both sides give the same tokens: beyond the first
difference they continue different texts, from which nothing can be learned. The position of the first difference
itself still counts: there both sides have seen the same text and drawn differently.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from types import MappingProxyType
from typing import Final

import msgspec

from tandem.apps.cli.verify.divergence import kl
from tandem.apps.cli.verify.replies import Reply

AT_LEAST: Final = ("agreement", "identical")
AT_MOST: Final = ("kl", "kl_max")
DEFAULTS: Final[Mapping[str, float]] = MappingProxyType({"agreement": 0.99, "kl": 1e-5})
"""Thresholds that equal weights on the same engine meet; weights rounded to int8 do not. Other data types and
quantizations need bounds that fit them."""


class Compared(msgspec.Struct, frozen=True):
    """One prompt. `agreed` leading tokens are equal, of `tokens` of the longer answer; `diverged_at` is the first
    position (from 0) where they are not, None when there is none."""

    number: int
    tokens: int
    agreed: int
    diverged_at: int | None
    kl_mean: float
    kl_max: float
    positions: int
    """The number of positions compared."""
    first: str = ""
    second: str = ""
    """With `first`, what each side answered at the first difference; empty where its answer has ended."""


class Verdict(msgspec.Struct, frozen=True):
    """All prompts. `failures` say which thresholds were not met."""

    prompts: int
    identical: float
    """The share of prompts with equal answers."""
    agreement: float
    """The share of tokens before the first difference."""
    kl: float
    """The mean over all compared positions."""
    kl_max: float
    positions: int
    first_divergence: int | None
    """The earliest position at which two answers part."""
    median_divergence: float | None
    """The median over prompts whose answers do."""
    failures: tuple[str, ...]


def compare(number: int, first: Reply, second: Reply) -> Compared:
    """The answers to one prompt."""
    shorter, longer = sorted((len(first.tokens), len(second.tokens)))
    by_id = first.ids is not None and second.ids is not None
    agreed = 0
    while agreed < shorter and _same(first, second, agreed, by_id=by_id):
        agreed += 1
    diverged_at = None if agreed == longer else agreed
    positions = min(agreed + 1, shorter)
    apart = [kl(first.top[at], second.top[at]) for at in range(positions)]
    said = ("", "") if diverged_at is None else (_said(first, diverged_at), _said(second, diverged_at))
    return Compared(
        number, longer, agreed, diverged_at, fmean(apart) if apart else 0.0, max(apart, default=0.0), positions, *said
    )


def judge(compared: Sequence[Compared], thresholds: Mapping[str, float]) -> Verdict:
    """Everything together, against thresholds by name."""
    positions = sum(each.positions for each in compared)
    tokens = sum(each.tokens for each in compared)
    parted = [each.diverged_at for each in compared if each.diverged_at is not None]
    figures = {
        "identical": 1.0 - len(parted) / len(compared),
        "agreement": sum(each.agreed for each in compared) / tokens if tokens else 1.0,
        "kl": sum(each.kl_mean * each.positions for each in compared) / positions if positions else 0.0,
        "kl_max": max(each.kl_max for each in compared),
    }
    failures = [
        f"{name} is {figures[name]:.6g}, {'below' if name in AT_LEAST else 'above'} {bound:g}"
        for name, bound in thresholds.items()
        if (figures[name] < bound if name in AT_LEAST else figures[name] > bound)
    ]
    return Verdict(
        prompts=len(compared),
        positions=positions,
        first_divergence=min(parted, default=None),
        median_divergence=median(parted) if parted else None,
        failures=tuple(failures),
        **figures,
    )


def _same(first: Reply, second: Reply, at: int, *, by_id: bool) -> bool:
    return first.name(at) == second.name(at) if by_id else first.tokens[at] == second.tokens[at]


def _said(reply: Reply, at: int) -> str:
    return reply.shown(at) if at < len(reply.tokens) else ""
