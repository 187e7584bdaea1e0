"""Percent of new traffic per revision: after capacity, and never to a revision that cannot serve.

The capacity of a revision is that of its scarcest pool, counting only pods that are ready and stay. So the pods that
are about to be taken get no new requests, and what a revision gets never outruns what it has.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import floor

from control_plane.rollout.view import View

Pods = Mapping[str, Mapping[str, int]]


def traffic(view: View, pods: Pods) -> dict[str, int]:
    """The weights for when `pods` (per revision and pool) are reached; empty when no revision can serve."""
    capacities = {name: _capacity(view, name, pods[name]) for name in view.serving}
    capacities = {name: capacity for name, capacity in capacities.items() if capacity}
    if view.replaced in capacities and view.update in capacities:
        return _capped(view, capacities)
    return percentages(capacities, 100)


def _capped(view: View, capacities: Mapping[str, Fraction]) -> dict[str, int]:
    """The update revision gets no more than the spec's weight while the stable one can take the rest."""
    shares = percentages(capacities, 100)
    if view.rejected or shares[view.update] <= view.spec.weight:
        return shares
    rest = {name: capacity for name, capacity in capacities.items() if name != view.update}
    return {**percentages(rest, 100 - view.spec.weight), view.update: view.spec.weight}


def _capacity(view: View, name: str, pods: Mapping[str, int]) -> Fraction:
    """The share of the whole service that the revision can carry."""
    ready = view.ready(name)
    return min(
        (Fraction(min(ready[goal.name], pods[goal.name]), goal.replicas) for goal in view.goals if goal.replicas),
        default=Fraction(0),
    )


def percentages(parts: Mapping[str, Fraction], total: int) -> dict[str, int]:
    """Whole numbers in the proportion of `parts` that sum up to `total`: the largest remainders are rounded up."""
    whole = sum(parts.values())
    exact = {name: part * total / whole for name, part in parts.items()}
    rounded = {name: floor(value) for name, value in exact.items()}
    short = total - sum(rounded.values())
    by_remainder = sorted(exact, key=lambda name: (rounded[name] - exact[name], name))
    return {name: rounded[name] + (name in by_remainder[:short]) for name in exact}
