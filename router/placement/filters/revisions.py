"""Keeps a request to the workers of one revision. Pure."""

from router.placement.decision import PlacementRequest
from router.placement.view import WorkerView


def other_revision(request: PlacementRequest, worker: WorkerView) -> str | None:
    """Why a worker is left out where the request is for one revision; None if it is not. A worker that only keeps
    blocks belongs to no revision."""
    if worker.revision == request.revision or worker.role == "store":
        return None
    return f"it is of revision {worker.revision}, and this request is for {request.revision}"
