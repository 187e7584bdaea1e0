"""Filters over workers: each gives the reason why a worker is out, or None. Pure."""

from collections.abc import Callable
from typing import Final

from router.placement.decision import PlacementRequest
from router.placement.view import WorkerView
from router.settings import PlacementSettings

Filter = Callable[[PlacementRequest, WorkerView, PlacementSettings], str | None]

NEVER_FITS: Final = "never fit its blocks or context"
OVERDUE: Final = "its engine's step is overdue"
"""The reason against a worker that may be hung: it gets no work while another worker could take it."""


def unready(request: PlacementRequest, worker: WorkerView, settings: PlacementSettings) -> str | None:
    """The reason against a worker that takes nothing but canaries yet."""
    return None if worker.ready else "not ready yet"


def draining(request: PlacementRequest, worker: WorkerView, settings: PlacementSettings) -> str | None:
    """The reason against a worker that takes no new work."""
    return "draining" if worker.draining else None


def too_small(request: PlacementRequest, worker: WorkerView, settings: PlacementSettings) -> str | None:
    """The reason against a worker on which the request could not run even alone. A worker that only computes the
    prompt needs no room for an answer."""
    tokens = request.prompt_tokens + (0 if worker.role == "prefill" else request.sequences)
    fits = tokens <= worker.capacity_tokens and request.prompt_tokens < worker.context_tokens
    return None if fits else f"{request.prompt_tokens} prompt tokens {NEVER_FITS}"


def failed(request: PlacementRequest, worker: WorkerView, settings: PlacementSettings) -> str | None:
    """The reason against an incarnation that has failed the request before."""
    found = request.excluded and (worker.worker_id, worker.epoch) in request.excluded
    return "it failed this request before" if found else None


def sequences_max(worker: WorkerView, settings: PlacementSettings) -> int:
    """The sequences that a worker gets at most: as many as its engine computes at once, within the setting."""
    return min(worker.sequences_max, settings.sequences_per_worker_max)


def full(request: PlacementRequest, worker: WorkerView, settings: PlacementSettings) -> str | None:
    """The reason against a worker that generates for as many sequences as it may. One request alone always fits."""
    most = sequences_max(worker, settings)
    over = worker.sequences + request.sequences > max(most, request.sequences)
    return f"it has {most} sequences or nearly" if over else None


ALWAYS: Final[tuple[Filter, ...]] = (unready, draining, too_small)
"""The filters that apply to every worker, in the order in which reasons are given."""


def passes(request: PlacementRequest, worker: WorkerView) -> bool:
    """Whether none of `ALWAYS` has a reason, in one call: for nearly every worker none has."""
    tokens = request.prompt_tokens
    if not worker.ready or worker.draining or tokens >= worker.context_tokens:
        return False
    return tokens + (0 if worker.role == "prefill" else request.sequences) <= worker.capacity_tokens
