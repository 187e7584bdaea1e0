"""Measures how far apart two next-token distributions are when only their most likely tokens are known. Pure.

Each side reports some tokens with their probabilities, which are exact, and leaves `rest = 1 - Σ` to all others. U is
the union of the reported tokens, of which `m` are missing on a side. Each missing token gets an equal share `rest /
(m + 1)` of that side's rest, but no more than the least probability that the side reports: a likelier token would
have been among the reported ones. The remainder is one more outcome, `other`. With P and Q completed like that,

    KL(P ‖ Q) = Σ over U and other of  P · ln(P / Q)      in nats.

Without missing tokens this is a lower bound of the divergence of the whole distributions: merging outcomes never
increases it. It is 0 exactly when both sides report the same.
"""

import math
from collections.abc import Mapping
from typing import Final

_LEAST: Final = 1e-12
"""Lower bound on the probability of every outcome: a probability rounded to zero would make the divergence
infinite."""


def kl(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """KL(first ‖ second) of two sides' reported log-probabilities by token, in nats."""
    union = tuple(dict.fromkeys((*first, *second)))
    one, other = _completed(first, union), _completed(second, union)
    return max(0.0, sum(p * math.log(p / q) for p, q in zip(one, other, strict=True)))


def _completed(reported: Mapping[str, float], union: tuple[str, ...]) -> list[float]:
    """The probabilities of the union and, last, of everything else; they add up to 1."""
    known = {token: max(math.exp(logprob), _LEAST) for token, logprob in reported.items()}
    missing = sum(token not in known for token in union)
    rest = max(1.0 - sum(known.values()), _LEAST)
    share = max(min((*known.values(), rest / (missing + 1))), _LEAST)
    masses = [known.get(token, share) for token in union]
    masses.append(max(rest - missing * share, _LEAST))
    total = sum(masses)
    return [mass / total for mass in masses]
