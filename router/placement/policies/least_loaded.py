"""The worker with the least to do: fewest sequences to generate, fewest queued tokens to compute prompts."""

from collections.abc import Sequence

from router.placement.costs import CostModel
from router.placement.decision import Placement, PlacementRequest, Unplaced
from router.placement.pairs import Pairs
from router.placement.policies.ordered import ordered
from router.placement.policies.stateless import Stateless
from router.placement.view import WorkerView
from router.settings import PlacementSettings


class LeastLoaded(Stateless):
    """Blind to prefixes."""

    def choose(
        self,
        request: PlacementRequest,
        workers: Sequence[WorkerView],
        costs: CostModel,
        settings: PlacementSettings,
        pairs: Pairs | None,
        now: float,
    ) -> Placement | Unplaced:
        return ordered(request, workers, costs, settings, pairs, by_load, "it has the least to do")


def by_load(workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
    """Least first; ties by the smallest id."""
    return sorted(workers, key=load_of)


def load_of(worker: WorkerView) -> tuple[int, int, str]:
    """A worker's load, for comparison with others of the same use."""
    if worker.takes_prompts:
        return worker.queued_prompt_tokens, worker.sequences, worker.worker_id
    return worker.sequences, worker.queued_prompt_tokens, worker.worker_id
