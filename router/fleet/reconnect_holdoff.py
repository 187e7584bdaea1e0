"""Whether a fleet is coming back together, so that placing had better wait a moment. Pure.

A router that was stopped, or cut off, loses most of its links at once and gets them back one after the other. What
waited meanwhile would all go to the first worker that answers again, and stand in line there while the others idle.
So requests wait in the router's own line until most of what was lost is back, or has had its time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from router.placement.decision import Unplaced
from router.placement.view import WorkerView


@dataclass(frozen=True)
class ReconnectHoldoff:
    """Placing waits: why, and until when at the latest."""

    until: float
    reason: str

    @property
    def obstacle(self) -> Unplaced:
        """The hold-off in the form of an answer of placement."""
        return Unplaced("no_workers", (self.reason,))


@dataclass
class _Workers:
    """The live and the lost workers of one model, by id, and whether each generates."""

    here: dict[str, bool] = field(default_factory=dict)
    lost: dict[str, tuple[bool, float]] = field(default_factory=dict)
    since: float = 0.0
    """When the first of the workers that generate now joined."""

    @property
    def generate(self) -> bool:
        """Whether any live worker of the model generates."""
        return any(self.here.values())

    def settled_at(self, within_s: float, now: float, *, generating: bool) -> float:
        """When no more workers will be expected back than are here, even if none comes; `now` if that is so
        already."""
        here = sum(generates or not generating for generates in self.here.values())
        ends = sorted(
            max(at, self.since) + within_s for generates, at in self.lost.values() if generates or not generating
        )
        # Nobody waits for one alone.
        most = max(1, here)
        return ends[len(ends) - most - 1] if len(ends) > most else now

    def write_off(self, within_s: float, now: float) -> None:
        """Stop expecting lost workers whose time is over. The time does not run while there is no worker to place
        on."""
        if self.lost and self.generate:
            self.lost = {
                worker_id: (generates, at)
                for worker_id, (generates, at) in self.lost.items()
                if max(at, self.since) + within_s > now
            }


class ReconnectTracker:
    """Tracks which workers come and go, as the fleet reports them.

    A lost worker is expected back for `within_s`, counted from its loss or from when there was a worker to place on
    again, whichever is later. Placing waits while more workers are expected back than are here, counting those that
    generate or all of them. So a fleet that really has lost most of its workers waits once, for `within_s`.
    """

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._models: dict[str, _Workers] = {}

    def usable(self, view: WorkerView, now: float) -> None:
        """A worker can be used."""
        workers = self._models.setdefault(view.model, _Workers())
        workers.write_off(self._within_s, now)
        generates = _generates(view)
        if generates and not workers.generate:
            workers.since = now
        workers.lost.pop(view.worker_id, None)
        workers.here[view.worker_id] = generates

    def lost(self, views: Iterable[WorkerView], now: float) -> None:
        """Note that these workers were lost together. A worker that had announced its leaving is not expected
        back."""
        for view in views:
            workers = self._models.get(view.model)
            if workers is not None and view.worker_id in workers.here:
                workers.write_off(self._within_s, now)
                del workers.here[view.worker_id]
                if not view.draining:
                    workers.lost[view.worker_id] = _generates(view), now

    def gone(self, view: WorkerView) -> None:
        """A worker is wanted no longer."""
        workers = self._models.get(view.model)
        if workers is not None:
            workers.here.pop(view.worker_id, None)
            workers.lost.pop(view.worker_id, None)

    def look(self, model: str, now: float) -> ReconnectHoldoff | None:
        """The hold-off if requests for a model must wait now, else None. Without a live worker that generates there
        is nothing to hold off."""
        workers = self._models.get(model)
        if workers is None or not workers.lost or not workers.generate:
            return None
        workers.write_off(self._within_s, now)
        until = max(workers.settled_at(self._within_s, now, generating=each) for each in (True, False))
        if until <= now:
            return None
        reason = (
            f"{len(workers.lost)} workers were lost together and {len(workers.here)} are here: placing waits for the"
            f" others, at most {until - now:.2f} s more"
        )
        return ReconnectHoldoff(until, reason)


def _generates(view: WorkerView) -> bool:
    return view.role not in ("prefill", "store")
