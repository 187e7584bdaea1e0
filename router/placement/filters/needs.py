"""Filters for requests that need what only some workers have: an engine's feature, a LoRA adapter. Pure."""

from collections.abc import Callable
from typing import Final

from router.placement.decision import Needs
from router.placement.view import WorkerView

_AHEAD_MAX: Final = 8
"""A worker that has an adapter in use is preferred until it has so many more sequences than one that has not."""


def lacks(needs: Needs, worker: WorkerView) -> str | None:
    """Why a worker cannot serve the request."""
    for feature in needs.features:
        if feature not in worker.features:
            return f"its engine has no {feature}"
    if needs.adapter:
        found = worker.adapters.get(needs.adapter)
        if found is None:
            return f"it does not serve the adapter {needs.adapter}"
        if found != needs.adapter_hash:
            return f"its adapter {needs.adapter} has other content"
    return None


def prefer_warm(
    needs: Needs, workers: list[WorkerView], leave_out: Callable[[WorkerView, str], None]
) -> list[WorkerView]:
    """The workers without those that would have to load the adapter first, as long as the others are not much
    busier."""
    warm = [worker for worker in workers if needs.adapter in worker.warm]
    others = [worker for worker in workers if needs.adapter not in worker.warm]
    if not warm or not others:
        return workers
    calmest = min(warm, key=lambda worker: (worker.sequences, worker.worker_id))
    if calmest.sequences > min(worker.sequences for worker in others) + _AHEAD_MAX:
        return workers
    for worker in others:
        leave_out(worker, f"{calmest.worker_id} has the adapter {needs.adapter} in use already")
    return warm
