"""One worker after the other."""

from collections.abc import Sequence

from router.placement.costs import CostModel
from router.placement.decision import Placement, PlacementRequest, Unplaced
from router.placement.pairs import Pairs
from router.placement.policies.ordered import ordered
from router.placement.policies.stateless import Stateless
from router.placement.view import WorkerView
from router.settings import PlacementSettings


class RoundRobin(Stateless):
    """Goes on after the worker that was placed on last, in order of worker ids."""

    def __init__(self) -> None:
        self._last = {"decode": "", "prefill": ""}

    def choose(
        self,
        request: PlacementRequest,
        workers: Sequence[WorkerView],
        costs: CostModel,
        settings: PlacementSettings,
        pairs: Pairs | None,
        now: float,
    ) -> Placement | Unplaced:
        return ordered(request, workers, costs, settings, pairs, self._by_turn, "it is its turn")

    def placed(self, request: PlacementRequest, placement: Placement, now: float) -> None:
        self._last["decode"] = placement.decode
        if placement.prefill is not None:
            self._last["prefill"] = placement.prefill

    def _by_turn(self, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
        last = self._last["prefill" if workers[0].takes_prompts else "decode"]
        return sorted(workers, key=lambda worker: (worker.worker_id <= last, worker.worker_id))
