"""The interface of placement policies, which decide where requests go.

A policy is synchronous and reads no clock. One owner calls it: `choose` for every decision, `placed` when the attempt
is sent as chosen, `ended` when it is over, `gone` when a worker is lost. The owner also keeps the `WorkerView`s and
the `CostModel` current; a policy only reads those. It needs no router: a simulator of a fleet calls it the same way.
"""

from collections.abc import Sequence
from typing import Protocol

from router.placement.costs import CostModel
from router.placement.decision import Placement, PlacementRequest, Unplaced
from router.placement.pairs import Pairs
from router.placement.view import WorkerView
from router.settings import PlacementSettings


class Policy(Protocol):
    """Decides for one fleet. What it keeps between decisions is its own, bounded, and no module's."""

    def choose(
        self,
        request: PlacementRequest,
        workers: Sequence[WorkerView],
        costs: CostModel,
        settings: PlacementSettings,
        pairs: Pairs | None,
        now: float,
    ) -> Placement | Unplaced:
        """Workers for a request, or why there are none. Without `pairs` every pair is trusted; `now` is in seconds
        of the owner's clock. Asking changes nothing that a later answer depends on, but for a policy's own draw."""
        ...

    def placed(self, request: PlacementRequest, placement: Placement, now: float) -> None:
        """Record that an attempt was sent as `placement` says."""
        ...

    def ended(self, request: PlacementRequest, placement: Placement, output_tokens: int, now: float) -> None:
        """The attempt of `placement` is over, with `output_tokens` new output tokens of all its sequences."""
        ...

    def gone(self, worker_id: str) -> None:
        """A worker is lost, and with it whatever it had."""
        ...
