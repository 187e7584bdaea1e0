"""The part of the policy protocol that a policy without memory leaves empty."""

from router.placement.decision import Placement, PlacementRequest


class Stateless:
    """Learns nothing from what becomes of its placements."""

    def placed(self, request: PlacementRequest, placement: Placement, now: float) -> None:
        """Nothing follows from it."""

    def ended(self, request: PlacementRequest, placement: Placement, output_tokens: int, now: float) -> None:
        """Nothing follows from it."""

    def gone(self, worker_id: str) -> None:
        """Nothing was kept of it."""
