"""The objective of a request, as its service states it, and its weight beside the objectives of others. Pure."""

from typing import Final

from router.fleet.services import ServiceFacts
from router.placement import Objective

_PRIORITY_MAX: Final = 3
"""Priorities beyond count like this one: each doubles the weight of the one before, and none outweighs all others."""


def objective_of(facts: ServiceFacts | None, *, begun: bool) -> Objective | None:
    """The bounds of a service; None where it has none. What has begun to answer waits for no first token."""
    return None if facts is None else Objective.of(facts.slo, begun=begun)


def weight_of(priority: int) -> float:
    """1 for no priority; each one above doubles it, each below halves it, within bounds."""
    return float(2.0 ** max(-_PRIORITY_MAX, min(_PRIORITY_MAX, priority)))
