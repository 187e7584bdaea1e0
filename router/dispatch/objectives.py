"""What a request is to hold, as its service says, and what that counts beside others. Pure."""

from typing import Final

from router.fleet.services import ServiceFacts
from router.placement import Objective

_PRIORITY_MAX: Final = 3
"""Priorities beyond count like this one: each doubles the weight of the one before, and none outweighs all others."""


def objective_of(facts: ServiceFacts | None, *, begun: bool) -> Objective | None:
    """The bounds of a service; None where it has none. What has begun to answer waits for no first token."""
    if facts is None:
        return None
    slo = facts.slo
    ttft_ms = None if slo.ttft_s is None or begun else 1e3 * slo.ttft_s
    tpot_ms = None if slo.step_s is None else 1e3 * slo.step_s
    return None if ttft_ms is None and tpot_ms is None else Objective(ttft_ms, tpot_ms)


def weight_of(priority: int) -> float:
    """1 for no priority; each one above doubles it, each below halves it, within bounds."""
    return float(2.0 ** max(-_PRIORITY_MAX, min(_PRIORITY_MAX, priority)))
