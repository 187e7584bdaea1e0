"""The less loaded of two workers drawn at random."""

from collections.abc import Sequence

from router.placement.costs import CostModel
from router.placement.decision import Placement, PlacementRequest, Unplaced
from router.placement.pairs import Pairs
from router.placement.policies.least_loaded import load_of
from router.placement.policies.ordered import ordered
from router.placement.policies.stateless import Stateless
from router.placement.view import WorkerView
from router.settings import PlacementSettings
from tandem.core.entropy import Entropy, below


class PowerOfTwo(Stateless):
    """Every decision draws anew."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def choose(
        self,
        request: PlacementRequest,
        workers: Sequence[WorkerView],
        costs: CostModel,
        settings: PlacementSettings,
        pairs: Pairs | None,
        now: float,
    ) -> Placement | Unplaced:
        return ordered(
            request, workers, costs, settings, pairs, self._drawn, "the less loaded of two that were drawn"
        )

    def _drawn(self, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
        """The better of two different ones, the other, then all others by load."""
        if len(workers) < 2:
            return workers
        first = below(self._entropy, len(workers))
        second = below(self._entropy, len(workers) - 1)
        pair = (first, second + (second >= first))
        drawn = sorted((workers[index] for index in pair), key=load_of)
        return [*drawn, *sorted((each for each in workers if each not in drawn), key=load_of)]
