"""Applies the filters to a fleet and sorts what is left by what it can do for one request. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.placement.decision import PlacementRequest, Unplaced
from router.placement.filters.needs import lacks, prefer_warm
from router.placement.filters.revisions import other_revision
from router.placement.filters.workers import ALWAYS, NEVER_FITS, OVERDUE, failed, full, passes
from router.placement.view import WorkerView
from router.settings import PlacementSettings


@dataclass(slots=True)
class Suitable:
    """Workers by role. `left_out` counts the others by reason."""

    decodes: list[WorkerView] = field(default_factory=list)
    """Workers that generate, and may compute the prompt themselves."""
    prefills: list[WorkerView] = field(default_factory=list)
    holders: list[WorkerView] = field(default_factory=list)
    """Workers that hold leading blocks of the prompt and may be asked for them, whatever else they may do."""
    last_resort: str = ""
    """Why workers decode that would get nothing if there were others."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    saturated: bool = False

    def sentences(self) -> tuple[str, ...]:
        """The workers that were left out, by reason."""
        if not self.left_out:
            return ()
        return tuple(f"{names(workers)} left out: {reason}" for reason, workers in self.left_out.items())

    def leave_out(self, worker: WorkerView, reason: str) -> None:
        self.left_out.setdefault(reason, []).append(worker.worker_id)

    def unplaced(self, model: str) -> Unplaced:
        """The answer when no worker can decode, with the reasons."""
        if self.saturated:
            code = "queue_full"
        elif any(reason.endswith(NEVER_FITS) for reason in self.left_out):
            code = "out_of_blocks"
        else:
            code = "no_workers"
        return Unplaced(code, self.sentences() or (f"no worker serves {model}",))


def suitable(request: PlacementRequest, workers: Sequence[WorkerView], settings: PlacementSettings) -> Suitable:
    """Sort a fleet for one request. If there is no other worker to decode, and none is full, workers decode that take
    prompts for others and could do both; without these, workers that failed the request before; without these, and if
    none is full, workers whose step is overdue: a step that is merely slow ends, and another worker may never
    come."""
    found, before, late = Suitable(), list[WorkerView](), list[WorkerView]()
    either: list[WorkerView] = []
    model, held, excluded, needs = request.model, request.held, request.excluded, request.needs
    sequences, most = request.sequences, settings.sequences_per_worker_max
    for worker in workers:
        if worker.model != model:
            continue
        if request.revision and (other := other_revision(request, worker)) is not None:
            found.leave_out(worker, other)
            continue
        failure = failed(request, worker, settings) if excluded else None
        if worker.worker_id in held and worker.ready and failure is None:
            found.holders.append(worker)
        if worker.role == "store":
            continue
        if needs is not None and (lacking := lacks(needs, worker)) is not None:
            found.leave_out(worker, lacking)
            continue
        if not passes(request, worker):
            found.leave_out(worker, _why_not(request, worker, settings))
        elif worker.overdue and (failure is not None or worker.role == "prefill"):
            found.leave_out(worker, OVERDUE)
        elif worker.overdue:
            late.append(worker)
        elif worker.takes_prompts and (failure is None or worker.role == "prefill"):
            _add_prefill(request, worker, failure, found)
            if failure is None and worker.role != "prefill":
                either.append(worker)
        elif failure is None and worker.sequences + sequences <= (
            worker.sequences_max if worker.sequences_max < most else most
        ):
            found.decodes.append(worker)
        elif failure is None:
            _add_decode(request, worker, settings, found.decodes, found)
        else:
            before.append(worker)
    if either and not found.decodes and not found.saturated:
        _let_decode(request, either, settings, found)
    if before:
        _let_try_again(request, before, settings, found)
    _sort_overdue(request, late, settings, found)
    if request.needs is not None and request.needs.adapter:
        found.decodes = prefer_warm(request.needs, found.decodes, found.leave_out)
        found.prefills = prefer_warm(request.needs, found.prefills, found.leave_out)
    return found


def _why_not(request: PlacementRequest, worker: WorkerView, settings: PlacementSettings) -> str:
    """The first reason against a worker that does not pass."""
    reasons = [reason for check in ALWAYS if (reason := check(request, worker, settings)) is not None]
    return reasons[0]


def _add_prefill(request: PlacementRequest, worker: WorkerView, failure: str | None, found: Suitable) -> None:
    if failure is not None:
        found.leave_out(worker, failure)
    elif not request.local_only:
        found.prefills.append(worker)


def _add_decode(
    request: PlacementRequest,
    worker: WorkerView,
    settings: PlacementSettings,
    decodes: list[WorkerView],
    found: Suitable,
) -> None:
    fullness = full(request, worker, settings)
    if fullness is None:
        decodes.append(worker)
    else:
        found.saturated = True
        found.leave_out(worker, fullness)


def _let_decode(
    request: PlacementRequest, either: Sequence[WorkerView], settings: PlacementSettings, found: Suitable
) -> None:
    """Let workers that take prompts for others decode, and take no such prompts: no worker is left to answer them."""
    for worker in either:
        _add_decode(request, worker, settings, found.decodes, found)
    found.prefills = [worker for worker in found.prefills if worker.role == "prefill"]
    if found.decodes:
        found.last_resort = "only workers that take prompts for others are left"


def _let_try_again(
    request: PlacementRequest, before: Sequence[WorkerView], settings: PlacementSettings, found: Suitable
) -> None:
    """Let workers that failed the request decode where no other worker does."""
    again = list[WorkerView]()
    for worker in before:
        _add_decode(request, worker, settings, again, found)
    if again and not found.decodes:
        found.decodes, found.last_resort = again, "only workers that already failed this request are left"


def _sort_overdue(
    request: PlacementRequest, late: Sequence[WorkerView], settings: PlacementSettings, found: Suitable
) -> None:
    """Let workers whose step is overdue decode only where no other worker could, now or as soon as it is less
    full."""
    needed = not found.decodes and not found.saturated
    for worker in late:
        if needed:
            _add_decode(request, worker, settings, found.decodes, found)
            found.last_resort = "only workers whose engine's step is overdue are left"
        else:
            found.leave_out(worker, OVERDUE)


def names(workers: Sequence[str]) -> str:
    """The first three, and how many more."""
    shown = ", ".join(workers[:3])
    return shown if len(workers) <= 3 else f"{shown} and {len(workers) - 3} more"
